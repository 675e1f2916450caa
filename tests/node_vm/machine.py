"""Boots the virtual node in QEMU and ends it again, whatever happens."""

import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.node_vm.guest import Guest
from tests.node_vm.image import Image, cache_directory
from tests.node_vm.shape import Shape, devices

# A plain machine needs a tenth of these; a wait that ends early means that something is wrong.
BOOT_SECONDS = 300.0
# Emulated CPUs may lock up while the kernel starts on a host without a free core: it is started again.
STALLED_SECONDS = 120.0
MOST_RESETS = 3
KVM_SECONDS = 10.0
MEMORY_MIB = 1024  # of each NUMA node
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
        self,
        image: Image,
        shape: Shape,
        append: str = "",
        may_reboot: bool = False,
        wire: Wire | None = None,
    ) -> None:
        self.shape = shape
        self._wire = wire
        if wire is not None:
            append = f"{append} wire={wire.end}"
        self._directory = Path(tempfile.mkdtemp(prefix="node-vm-"))
        self._serial = self._directory / "serial.log"
        self._monitor = self._directory / "monitor"
        self._image = image
        self._port = free_port()
        self._process = self._start(acceleration(image), append, may_reboot)
        try:
            self.guest = Guest(self._port, self._key(), self._directory / "ssh")
            if not self._is_up(boots=1, seconds=STALLED_SECONDS):
                _stop(self._process)
                self._process = self._start(acceleration(image), append, may_reboot)
            self._come_up(boots=1)
        except BaseException:
            self.end()
            raise

    def reboot(self) -> None:
        """Starts the guest's kernel anew; what was written to its disk is there."""
        boots = self._said().count(UP)
        # Without systemd there is nobody to ask for an orderly reboot.
        self.guest.shell(
            "sync; (sleep 0.5; echo u > /proc/sysrq-trigger; echo b > /proc/sysrq-trigger) >/dev/null 2>&1 &"
        )
        self.guest.hang_up()
        for _ in range(MOST_RESETS):
            if self._is_up(boots + 1, STALLED_SECONDS):
                break
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.connect(str(self._monitor))
                monitor.recv(4096)  # its greeting: a command is read only afterwards
                monitor.sendall(b"system_reset\n")
                monitor.recv(4096)
        self._come_up(boots + 1)

    def _is_up(self, boots: int, seconds: float) -> bool:
        """Whether the kernel comes up within `seconds`."""
        try:
            self._wait(lambda: self._said().count(UP) >= boots, seconds)
        except NoBoot:
            return False
        return True

    def _come_up(self, boots: int) -> None:
        self._wait(lambda: self._said().count(UP) >= boots)
        self._wait(self.guest.answers)
        # Devices first, as on a real node; then what modules-load.d names, by Debian's own reading of it.
        self.guest.run("sh", "-c", "dress-up && /etc/init.d/kmod start", seconds=BOOT_SECONDS)

    def end(self) -> None:
        """Switches it off and removes its files; nothing of its disk is kept."""
        _stop(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _key(self) -> Path:
        """The key as ssh wants it: nobody else's."""
        key = self._directory / "key"
        key.write_bytes(self._image.key.read_bytes())
        key.chmod(0o600)
        return key

    def _start(self, accelerator: str, append: str, may_reboot: bool) -> subprocess.Popen[bytes]:
        forward = f"hostfwd=tcp:127.0.0.1:{self._port}-:22"
        command = [
            *_board(self._image, accelerator, f"{COMMAND_LINE} {append}", self._serial),
            *("-netdev", f"user,id=net0,restrict=on,{forward}"),
            *("-device", "virtio-net-pci,netdev=net0,romfile=,bus=pcie.0,addr=3"),
            *devices(self.shape),
            *("-monitor", f"unix:{self._monitor},server=on,wait=off"),
            *(self._wire.arguments() if self._wire else ()),
        ]
        if may_reboot:
            command.remove("-no-reboot")
        return _spawn(command, self._directory / "qemu.log")

    def _said(self) -> str:
        return self._serial.read_text(errors="replace") if self._serial.exists() else ""

    def _wait(self, condition: Callable[[], bool], seconds: float = BOOT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self._process.poll() is not None:
                told = (self._directory / "qemu.log").read_text(errors="replace")
                raise NoBoot(f"qemu ended with {self._process.returncode}: {told[-2000:]}")
            if time.monotonic() > deadline:
                raise NoBoot(f"not up after {seconds:.0f} s; it said last: {self._said()[-2000:]}")
            time.sleep(0.1)


def _board(image: Image, accelerator: str, append: str, serial: Path) -> list[str]:
    """Two sockets, two NUMA nodes, the disks; nothing written to them outlives the guest."""
    board = ["qemu-system-x86_64", "-M", "q35", "-smp", "2,sockets=2,cores=1", "-m", f"{2 * MEMORY_MIB}M"]
    # A node, not somebody's virtual machine: in one, ACS would be the hypervisor's matter.
    board += ["-accel", accelerator, "-cpu", f"{'host' if accelerator == 'kvm' else 'max'},-hypervisor"]
    board += ["-smbios", "type=1,manufacturer=gdrtop,product=node of the tests"]
    board += ["-no-reboot", "-display", "none", "-vga", "none", "-nodefaults", "-serial", f"file:{serial}"]
    for number in range(2):
        board += ["-object", f"memory-backend-ram,id=ram{number},size={MEMORY_MIB}M"]
        board += ["-numa", f"node,nodeid={number},cpus={number},memdev=ram{number}"]
    board += ["-numa", "dist,src=0,dst=1,val=21"]
    board += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", append]
    for address, disk in ((2, image.disk), (6, image.program)):
        board += ["-drive", f"file={disk},format=raw,if=none,id=disk{address},snapshot=on"]
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
    if told[:1] != [boot]:
        told = [boot, _tried(image)]
        kept.write_text(" ".join(told))
    return told[1]


def _tried(image: Image) -> str:
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        with tempfile.TemporaryDirectory(prefix="node-vm-") as place:
            serial = Path(place) / "serial.log"
            process = _spawn(_board(image, "kvm", COMMAND_LINE, serial), Path(place) / "qemu.log")
            try:
                deadline = time.monotonic() + KVM_SECONDS
                while process.poll() is None and time.monotonic() < deadline:
                    if serial.exists() and STARTS in serial.read_text(errors="replace"):
                        return "kvm"
                    time.sleep(0.05)
            finally:
                _stop(process)
    return "tcg,thread=multi"


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


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
