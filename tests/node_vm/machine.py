"""Boots the virtual node in QEMU and ends it again, whatever happens."""

import ctypes
import functools
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.node_vm.guest import Guest
from tests.node_vm.image import Image, cache_directory
from tests.node_vm.shape import Shape, devices
from tests.support.system_packages import free_port

# A plain machine needs a tenth of these; a wait that ends early means that something is wrong.
BOOT_SECONDS = 300.0
# Emulated CPUs may lock up while the kernel starts on a host without a free core, and then use what they get
# of it: it is started again. A start takes 12 seconds of a CPU.
STALLED_SECONDS, STALLED_CPU_SECONDS = 120.0, 45.0
MOST_STARTS = 3
FASTEST_CLOCK = 1.5
KVM_SECONDS = 10.0
MEMORY_MIB = 1024  # of each NUMA node
# Both emulated CPUs in one thread: no atomics between them, a third less work, and no kernel that locks up.
KVM, TCG = "kvm", "tcg,thread=single"
STARTS, UP = "NODE-VM-STARTS", "NODE-VM-UP"
# Without a steady clock perftest refuses to measure under emulation; huge pages make of a process's memory
# steps of 2 MB, which are not its own.
COMMAND_LINE = (
    "console=ttyS0 net.ifnames=0 panic=-1 quiet tsc=reliable clocksource=tsc transparent_hugepage=never"
)


class NoBoot(Exception):
    """The guest did not come up; the message holds what it said last."""


@dataclass(frozen=True)
class Wire:
    """One end of an Ethernet cable between two guests; end 1 has to be plugged in first."""

    end: int  # 1 or 2
    port: int  # TCP port of this machine

    def arguments(self) -> list[str]:
        """As QEMU wants it."""
        how = "listen" if self.end == 1 else "connect"
        return [
            *("-netdev", f"socket,id=wire,{how}=127.0.0.1:{self.port}"),
            *(
                "-device",
                f"virtio-net-pci,netdev=wire,romfile=,bus=pcie.0,addr=7,mac=52:54:00:00:00:0{self.end}",
            ),
        ]


class Machine:
    """One running guest."""

    def __init__(
        self, image: Image, shape: Shape, append: str = "", may_reboot: bool = False, wire: Wire | None = None
    ) -> None:
        self.shape = shape
        self._wire = wire
        if wire is not None:
            append = f"{append} wire={wire.end}"
        self._directory = Path(tempfile.mkdtemp(prefix="node-vm-"))
        self._serial = self._directory / "serial.log"
        self._append = append
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # What is written to a disk outlives a reboot only in a copy of its own.
            self._image = replace(image, disk=_copy(image.disk, self._directory)) if may_reboot else image
            self._is_disk_kept = may_reboot
            self.guest = Guest(self._port, self._key(), self._directory / "ssh")
            self._boot()
        except BaseException:
            self.end()
            raise

    def reboot(self, drivers: str = "") -> None:
        """Starts the guest's kernel again; what was written to its disk is there.

        `drivers`: the command that loads the drivers of its devices.
        """
        # Without systemd there is nobody to ask for an orderly reboot.
        self.guest.shell(
            "sync; (sleep 0.5; echo u > /proc/sysrq-trigger; echo b > /proc/sysrq-trigger) >/dev/null 2>&1 &"
        )
        self.guest.hang_up()
        # Its QEMU ends instead: a new one boots in half the time, because it has translated nothing yet.
        assert self._process is not None
        try:
            self._process.wait(BOOT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NoBoot(f"no reboot within {BOOT_SECONDS:.0f} s") from error
        self._boot(drivers)

    def _boot(self, drivers: str = "") -> None:
        for attempt in range(1, MOST_STARTS + 1):
            self._serial.unlink(missing_ok=True)
            begun = time.monotonic()
            self._process = self._start()
            try:
                limits = STALLED_SECONDS * attempt, STALLED_CPU_SECONDS * attempt
                self._wait(lambda: UP in self._said(), *limits)
                self._wait(self.guest.answers)
                self._check_clock(begun)
                break
            except NoBoot:
                self.guest.hang_up()
                _stop(self._process)
                if attempt == MOST_STARTS:
                    raise
        # Devices first, as on a real node; then what modules-load.d names, by Debian's own reading of it.
        self.guest.shell(f"dress-up; {drivers}\n/etc/init.d/kmod start", seconds=BOOT_SECONDS)

    def _check_clock(self, begun: float) -> None:
        """NoBoot where the guest's clock runs much faster than this machine's.

        On a busy machine the kernel may measure the TSC wrong, and then every time limit is over at once.
        """
        uptime, elapsed = float(self.guest.read("/proc/uptime").split()[0]), time.monotonic() - begun
        if uptime > FASTEST_CLOCK * elapsed:
            raise NoBoot(f"up for {uptime:.0f} s by its own clock, {elapsed:.0f} s after its start")

    def end(self) -> None:
        """Switches it off and removes its files; nothing of its disk is kept."""
        if self._process is not None:
            self.guest.hang_up()
            _stop(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _key(self) -> Path:
        """The key as ssh wants it: nobody else's."""
        key = self._directory / "key"
        key.write_bytes(self._image.key.read_bytes())
        key.chmod(0o600)
        return key

    def _start(self) -> subprocess.Popen[bytes]:
        forward = f"hostfwd=tcp:127.0.0.1:{self._port}-:22"
        append = f"{COMMAND_LINE} {self._append}"
        command = [
            *_board(self._image, acceleration(self._image), append, self._serial, self._is_disk_kept),
            *("-netdev", f"user,id=net0,restrict=on,{forward}"),
            *("-device", "virtio-net-pci,netdev=net0,romfile=,bus=pcie.0,addr=3"),
            *devices(self.shape),
            *(self._wire.arguments() if self._wire else ()),
        ]
        return _spawn(command, self._directory / "qemu.log")

    def _said(self) -> str:
        return self._serial.read_text(errors="replace") if self._serial.exists() else ""

    def _wait(
        self, condition: Callable[[], bool], seconds: float = BOOT_SECONDS, cpu_seconds: float = math.inf
    ) -> None:
        """NoBoot where its QEMU ends before, or after so much time or CPU time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._process is None or self._process.poll() is not None:
                status = self._process and self._process.returncode
                told = (self._directory / "qemu.log").read_text(errors="replace")
                raise NoBoot(f"qemu ended with {status}: {told[-2000:]}")
            if time.monotonic() > deadline or _cpu_seconds(self._process.pid) > cpu_seconds:
                raise NoBoot(f"not up after {seconds:.0f} s; it said last: {self._said()[-2000:]}")
            time.sleep(0.1)


def _copy(disk: Path, directory: Path) -> Path:
    subprocess.run(["cp", "--sparse=always", "--reflink=auto", disk, directory], check=True)
    return directory / disk.name


def _board(
    image: Image, accelerator: str, append: str, serial: Path, is_disk_kept: bool = False
) -> list[str]:
    """Two sockets, two NUMA nodes, the disks; what is written to them is kept only on request."""
    board = ["qemu-system-x86_64", "-M", "q35", "-smp", "2,sockets=2,cores=1", "-m", f"{2 * MEMORY_MIB}M"]
    # A node, not somebody's virtual machine: in one, ACS would be the hypervisor's matter.
    board += ["-accel", accelerator, "-cpu", f"{'host' if accelerator == KVM else 'max'},-hypervisor"]
    board += ["-smbios", "type=1,manufacturer=gdrtop,product=node of the tests"]
    board += ["-no-reboot", "-display", "none", "-vga", "none", "-nodefaults", "-serial", f"file:{serial}"]
    for number in range(2):
        board += ["-object", f"memory-backend-ram,id=ram{number},size={MEMORY_MIB}M"]
        board += ["-numa", f"node,nodeid={number},cpus={number},memdev=ram{number}"]
    board += ["-numa", "dist,src=0,dst=1,val=21"]
    board += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", append]
    for address, disk in ((2, image.disk), (6, image.program)):
        kept = "off,cache=unsafe" if is_disk_kept and disk == image.disk else "on"
        board += ["-drive", f"file={disk},format=raw,if=none,id=disk{address},snapshot={kept}"]
        board += ["-device", f"virtio-blk-pci,drive=disk{address},romfile=,bus=pcie.0,addr={address}"]
    return board


@functools.cache
def acceleration(image: Image) -> str:
    """`kvm` where a guest really starts under it; /dev/kvm alone proves nothing.

    The answer is kept until this machine is booted again: where KVM does not work, it takes long to see.
    """
    kept = cache_directory() / "accelerator"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    told = kept.read_text().split() if kept.exists() else []
    if told[:1] != [boot] or told[1] not in (KVM, TCG):
        told = [boot, _tried(image)]
        kept.write_text(" ".join(told))
    return told[1]


def _tried(image: Image) -> str:
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        with tempfile.TemporaryDirectory(prefix="node-vm-") as place:
            serial = Path(place) / "serial.log"
            process = _spawn(_board(image, KVM, COMMAND_LINE, serial), Path(place) / "qemu.log")
            try:
                deadline = time.monotonic() + KVM_SECONDS
                while process.poll() is None and time.monotonic() < deadline:
                    if serial.exists() and STARTS in serial.read_text(errors="replace"):
                        return KVM
                    time.sleep(0.05)
            finally:
                _stop(process)
    return TCG


def _die_with_the_tests() -> None:
    """In the child: killed tests must leave no guest behind (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    # A group of its own: Ctrl-C at the tests must not end the guest before the tests have.
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_the_tests,
        )


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process; 0 once it has ended (proc(5), fields 14 and 15 of /proc/PID/stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
