"""A twin of a node: answers as the node does, with the changes of the commands that it played.

It never changes the node: its commands are those of the simulation, which change only the twin's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.kernel.modules import PROC_MODULES_LIMIT_BYTES
from probes.facts.pci.nic_families import EFA, RDMA_MODULE_OF, SLINGSHOT, VERBS_MODULES
from probes.facts.system.services import SERVICES
from probes.host.nvml import NvmlFacts, NvmlGpu, NvmlLive
from probes.host.protocol import READ_LIMIT_BYTES, CommandOutput, CudaGpu, FileRange, HostBase, KernelMessage
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.values import PROC_MODULES
from probes.plans.packages import FABRIC_MANAGER
from probes.setup.twin.tree import TwinTree
from probes.simulation.commands.catalogue import perform
from probes.simulation.commands.command_result import CommandResult, done
from probes.simulation.node.modules.modules import users_of

# The loaded modules of a twin: those of the node with their reference counts, and what commands changed.
#
# No twin can know what a module brings that was not loaded when the twin was made.

# Paths that appear with a module, or whose content changes with it.
_PATHS = {
    "nvidia": ("/proc/driver/nvidia", "/sys/module/nvidia/parameters", "/dev/nvidia"),
    "nvidia_uvm": ("/sys/module/nvidia_uvm/parameters",),
    "nvidia_peermem": ("/sys/kernel/mm/memory_peers",),
    "nv_peer_mem": ("/sys/kernel/mm/memory_peers",),
    **{
        name: ("/sys/class/net", "/sys/class/infiniband", f"/sys/module/{name}/parameters")
        for name in RDMA_MODULE_OF
    },
    **dict.fromkeys(VERBS_MODULES, ("/sys/class/infiniband", "/dev/infiniband")),
    **dict(zip(SLINGSHOT.modules, (("/sys/class/cxi", "/dev/cxi"), ("/dev/cxi",)), strict=True)),
    "ib_uverbs": ("/sys/class/infiniband_verbs", "/dev/infiniband"),
    "rdma_cm": ("/dev/infiniband/rdma_cm",),
    "gdrdrv": ("/dev/gdrdrv",),
}
# Devices below /sys/devices that a driver creates, and the link to the driver.
_OF_DEVICES = {
    **dict.fromkeys(RDMA_MODULE_OF, ("/infiniband", "/net", "/driver")),
    **dict.fromkeys(RDMA_MODULE_OF.values(), ("/infiniband",)),
    **dict.fromkeys(EFA.pci_drivers, ("/infiniband", "/driver")),
    **dict.fromkeys(SLINGSHOT.pci_drivers, ("/cxi", "/net", "/driver")),
    "nvidia": ("/driver",),
}
_ANSWERS = {
    "nvml": ("nvidia",),
    "cuda": ("nvidia", "nvidia_uvm"),
    "dmabuf": (*RDMA_MODULE_OF, *VERBS_MODULES, "ib_uverbs", "ib_core"),
    "rdma": ("ib_core", *VERBS_MODULES),
}


class TwinModules:
    """The modules that are loaded now, against those that were loaded when the twin was made."""

    def __init__(self, tree: TwinTree) -> None:
        self._tree = tree
        self.of_node = tuple(tree.live_modules)  # loaded when the twin was made
        self.idle: frozenset[str] = frozenset()  # drivers without devices, which bring nothing
        for name in self.of_node:
            tree.references[name, "node"] = self._references(name)

    @property
    def new(self) -> tuple[str, ...]:
        """Return the modules that were loaded on the twin and not on the node."""
        known_ones = {*self.of_node, *self.idle}
        return tuple(name for name in self._tree.live_modules if name not in known_ones)

    def is_removed(self, name: str) -> bool:
        """Return whether a module of the node was removed on the twin."""
        return name in self.of_node and name not in self._tree.live_modules

    def count(self, name: str) -> int:
        """Return a module's reference count, without users that were removed and with new ones."""
        words = self._lines().get(name)
        if words is None or not words[2].isdecimal():
            return 0
        gone = sum(self.is_removed(user) for user in _users(words))
        is_live = name in self._tree.live_modules
        new = sum(user in users_of(self._tree, name) for user in self.new) if is_live else 0
        return max(0, int(words[2]) - gone + new)

    def proc_modules(self) -> str:
        """Return /proc/modules as the node's kernel would show it now."""
        lines, old = [], self._lines()
        for name in reversed(self._tree.live_modules):
            words = old.get(name, [name, "65536", "0", "-", "Live", "0x0", "(OE)"])
            users = [user for user in _users(words) if user in self._tree.live_modules]
            users += [user for user in self.new if user in users_of(self._tree, name)]
            count = self.count(name) if name in old else len(users)
            shown = "".join(f"{user}," for user in dict.fromkeys(users)) or "-"
            lines.append(" ".join([name, words[1], str(count), shown, *words[4:]]) + "\n")
        return "".join(lines)

    def _references(self, name: str) -> Callable[[float], int]:
        return lambda _: self.count(name) - len(users_of(self._tree, name))

    def _lines(self) -> dict[str, list[str]]:
        """Return the words of the node's own lines of /proc/modules, by module."""
        text = known(self._tree.base.read(PROC_MODULES, PROC_MODULES_LIMIT_BYTES), "")
        return {words[0]: words for line in text.split("\n") if len(words := line.split()) > 4}


def _users(words: list[str]) -> list[str]:
    """Return the modules that a line of /proc/modules names as users."""
    return [user for user in words[3].split(",") if user not in ("", "-", "[permanent]")]


def unknown_path(path: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why a path is unknown after these modules were loaded on the twin; None: it is not."""
    for module in new_modules:
        parts = _OF_DEVICES.get(module, ()) if path.startswith("/sys/devices/") else ()
        if path.startswith(_PATHS.get(module, ())) or any(f"{part}/" in f"{path}/" for part in parts):
            return not_known(path, module)
    return None


def unknown_answer(kind: str, new_modules: Iterable[str]) -> Unknown | None:
    """Return why an answer ("nvml", "cuda", "dmabuf", "rdma") is unknown after these modules were loaded."""
    return next((not_known(kind, module) for module in new_modules if module in _ANSWERS[kind]), None)


def not_known(source: str, module: str) -> Unknown:
    """Return that only the loaded module shows this."""
    return Unknown(Reason.NOT_YET, source, f"only known once {module} is loaded")


_COMMANDS = (
    *("modprobe", "rmmod", "systemctl", "setpci", "nvidia-smi", "nvidia-modprobe", "ip", "ibportstate"),
    *("tee", "rm", "cp", "mv", "install", "mkdir", "mknod", "chmod", "ln", "sync", "udevadm", "sysctl"),
    *("modinfo", "dmesg"),
)
"""Commands of the simulation whose effect does not depend on anything but what the twin reads."""
_WHOLE_CONFIG_BYTES = 256  # less: only root can read the rest
_AS_NOW = (
    *("process_usage", "interface_counters", "thread_names", "ethtool_counters", "collectives"),
    *("rdma_statistics", "fec_states", "tcp_sockets", "environment"),
)
"""Questions that the node itself answers: no command of a plan changes what it says."""


class TwinHost(HostBase):
    """A node below the changes of `tree`."""

    UNANSWERED = (Reason.NOT_RECORDED, "not queried in a rehearsal")

    def __init__(
        self, tree: TwinTree, refused: Mapping[str, str], devices: Mapping[str, Sequence[str]]
    ) -> None:
        """Make the twin.

        `refused`: modules that the kernel has refused since its boot, and how; `devices`: directories of the
        PCI functions that a driver serves, by driver.
        """
        self.tree = tree
        self._devices = devices
        self._base = tree.base
        self._refused = refused
        self.origin = Origin(Source.SIMULATED, f"rehearsal on a twin of {tree.description.hostname}")
        self._modules = TwinModules(tree)
        self._units = dict(tree.units)
        self._persistent = frozenset(tree.persistent)
        self.not_rehearsed: list[str] = []
        for question in _AS_NOW:
            setattr(self, question, getattr(tree.base, question))

    # Commands

    def perform(self, argv: Sequence[str], stdin: str = "") -> CommandResult:
        """Play a command; one that the twin cannot play succeeds, and is named in `not_rehearsed`."""
        if why := self._why_not(argv):
            words = f"{' '.join(argv[:6])} ({why})"
            if words not in self.not_rehearsed:
                self.not_rehearsed.append(words)
            return done(f"not rehearsed: {why}")
        result = perform(self, self.tree, argv, stdin, self.monotonic())
        self._bind_drivers()
        return result

    def _bind_drivers(self) -> None:
        """Bind the drivers that are new on the twin to their devices, as the kernel does."""
        for driver in self._modules.new:
            for path in self._devices.get(driver, ()):
                event = self.tree.text(f"{path}/uevent")
                if event and "DRIVER=" not in event:
                    self.tree.add(f"{path}/uevent", f"DRIVER={driver}\n{event}")

    def _why_not(self, argv: Sequence[str]) -> str:
        """Return why the twin cannot play a command, or ""."""
        name, words = argv[0].rpartition("/")[2] if argv else "", list(argv[1:])
        if name not in _COMMANDS:
            return "gdrtop cannot simulate this command"
        if name in ("modprobe", "nvidia-modprobe") and "-r" not in words:
            if not isinstance(self._base.run(("modinfo", "ib_core")), CommandOutput):
                return "gdrtop needs modinfo to know what loading does"
            for word in words:
                if word.replace("-", "_") in self._refused:
                    return f"the kernel refused it before: {self._refused[word.replace('-', '_')]}"
        if words == ["reboot"]:
            return "gdrtop forecast shows what a reboot brings"
        if name == "systemctl":
            units = [word.removesuffix(".service") for word in words[1:] if not word.startswith("-")]
            if any(unit not in SERVICES for unit in units):
                return "the effect of this service is unknown"
        if name == "nvidia-smi" and "-pm" not in words:
            return "only persistence mode can be rehearsed"
        return "needs root: configuration space" if name == "setpci" and self._is_config_cut(words) else ""

    def _is_config_cut(self, words: Sequence[str]) -> bool:
        functions = [words[place + 1] for place, word in enumerate(words[:-1]) if word == "-s"]
        contents = (self.read_bytes(f"/sys/bus/pci/devices/{bdf}/config", 4096) for bdf in functions)
        return any(isinstance(content, bytes) and len(content) < _WHOLE_CONFIG_BYTES for content in contents)

    # Files

    def read_bytes(self, path: str, limit: int = READ_LIMIT_BYTES) -> Maybe[bytes]:
        content = self._content(path, limit)
        if not isinstance(content, Unknown) and len(content) > limit:
            return Unknown(Reason.MALFORMED, path, f"more than {limit} bytes")
        return content

    def _content(self, path: str, limit: int) -> Maybe[bytes]:
        if tuple(self.tree.live_modules) != self._modules.of_node:
            if path == PROC_MODULES:
                return self._modules.proc_modules().encode()
            module = path.removeprefix("/sys/module/").removesuffix("/refcnt")
            if path == f"/sys/module/{module}/refcnt" and module in self._modules.of_node:
                if self._modules.is_removed(module):
                    return Unknown(Reason.NOT_THERE, path)
                return f"{self._modules.count(module)}\n".encode()
        real = self._real(path)
        if isinstance(real, Unknown):
            return real if self._is_changed(path, real) else self.tree.host_of(path).read_bytes(path, limit)
        written = self.tree.changed_file(real)
        if written is None:
            return self.tree.host_of(real).read_bytes(real, limit)
        written = written(self.monotonic()) if callable(written) else written
        return written.encode() if isinstance(written, str) else written

    def _real(self, path: str) -> str | Unknown:
        """Return the path without links; NOT_YET: only a module that is new on the twin shows it."""
        if (unknown := self._unknown_path(path)) is not None:
            return unknown
        real = self.tree.real(path)
        if not isinstance(real, Unknown) and (unknown := self._unknown_path(real)) is not None:
            return unknown
        return real

    def _is_changed(self, path: str, real: Unknown) -> bool:
        """Return whether the twin hides a path; else only the node knows why: needs root, not there."""
        return self.tree.is_hidden(path) or real.reason is Reason.NOT_YET

    def _unknown_path(self, path: str) -> Unknown | None:
        """Return why a path is unknown: a module that is new on the twin decides it."""
        return unknown_path(path, self._modules.new)

    def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
        return self.tree.host_of(path).read_range(path, offset, limit)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        real = self._real(path)
        if isinstance(real, Unknown):
            return real if self._is_changed(path, real) else self.tree.host_of(path).names(path)
        return self.tree.node_names(real)

    def link(self, path: str) -> Maybe[str]:
        parent, _, name = path.rpartition("/")
        real = self._real(parent)
        place = path if isinstance(real, Unknown) else f"{real}/{name}"
        if (unknown := self._unknown_path(place)) is not None:
            return unknown
        if (target := self.tree.changed_link(place)) is not None:
            return target
        if self.tree.is_hidden(place):
            return Unknown(Reason.NOT_THERE, path)
        return self.tree.host_of(path).link(path)

    def resolve(self, path: str) -> Maybe[str]:
        real = self._real(path)
        if isinstance(real, Unknown) and not self.tree.is_hidden(path) and real.reason is Reason.NOT_THERE:
            return self.tree.host_of(path).resolve(path)
        return real

    def size(self, path: str) -> Maybe[int]:
        real = self._real(path)
        if isinstance(real, Unknown):
            return real if self._is_changed(path, real) else self.tree.host_of(path).size(path)
        written = self.tree.changed_file(real)
        if written is None:
            return 0 if real in self.tree.made else self.tree.host_of(path).size(path)
        content = self.read_bytes(path, 1 << 30)
        return content if isinstance(content, Unknown) else len(content)

    def access(self, path: str, write: bool = False) -> Maybe[bool]:
        real = self._real(path)
        if isinstance(real, Unknown):
            return real if self._is_changed(path, real) else self.tree.host_of(path).access(path, write)
        is_changed = self.tree.changed_file(real) is not None
        return real not in self.tree.denied and (is_changed or self.tree.host_of(path).access(path, write))

    # Programs and libraries

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return the output of a read-only command of the node, with the changes of services and log."""
        answer = self._base.run(argv, seconds)
        if isinstance(answer, Unknown):
            return answer
        if argv[:2] == ("systemctl", "show") and self.tree.units != self._units:
            return replace(answer, stdout=self._shown(answer.stdout))
        if argv[:1] == ("dmesg",) and self.tree.kernel_log:
            return replace(answer, stdout=answer.stdout + "".join(self.tree.kernel_log))
        return answer

    def _shown(self, text: str) -> str:
        blocks = []
        for block in text.split("\n\n"):
            fields = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
            name = fields.get("Id", "").removesuffix(".service")
            if name in self.tree.units and self.tree.units[name] != self._units.get(name):
                fields["ActiveState"] = self.tree.units[name]
            blocks.append("\n".join(f"{key}={value}" for key, value in fields.items()))
        return "\n\n".join(blocks)

    def _changed(self, kind: str, *modules: str) -> Unknown | None:
        """Return why the node's answer no longer counts: a module was removed, or is new on the twin."""
        for module in modules:
            if self._modules.is_removed(module):
                return Unknown(Reason.NOT_THERE, kind, f"{module} is not loaded")
        return unknown_answer(kind, self._modules.new)

    def _unknown_fabric(self) -> Unknown | None:
        """Return that the state of the NVLink fabric is unknown, if Fabric Manager was started or stopped."""
        if self.tree.units.get(FABRIC_MANAGER) == self._units.get(FABRIC_MANAGER):
            return None
        return not_known("libcuda", FABRIC_MANAGER)

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return what NVML reports, with the persistence mode that was set on the twin."""
        changed = self._changed("nvml", "nvidia")
        facts = self._base.nvml() if changed is None else changed
        if isinstance(facts, Unknown):
            return facts
        return replace(facts, gpus=tuple(map(self._gpu, facts.gpus)))

    def _gpu(self, gpu: Maybe[NvmlGpu]) -> Maybe[NvmlGpu]:
        if isinstance(gpu, Unknown):
            return gpu
        fabric = self._unknown_fabric()
        if fabric is not None and gpu.fabric != "not supported":
            gpu = replace(gpu, fabric=fabric)
        if frozenset(self.tree.persistent) == self._persistent:
            return gpu
        return replace(gpu, persistence=gpu.index in self.tree.persistent)

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        changed = self._changed("nvml", "nvidia")
        return self._base.nvml_live() if changed is None else changed

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        unknown = unknown_answer("dmabuf", self._modules.new)
        return self._base.dmabuf_errnos(devices) if unknown is None else dict.fromkeys(devices, unknown)

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        unknown = unknown_answer("dmabuf", self._modules.new)
        return self._base.data_direct_paths(devices) if unknown is None else dict.fromkeys(devices, unknown)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        changed = self._changed("cuda", "nvidia", "nvidia_uvm")
        changed = self._unknown_fabric() if changed is None else changed
        return self._base.cuda_gpus() if changed is None else changed

    def rdma_resources(self) -> Maybe[RdmaResources]:
        changed = self._changed("rdma", "ib_core")
        return self._base.rdma_resources() if changed is None else changed

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        changed = self._changed("rdma", "ib_core")
        return self._base.packet_numbers() if changed is None else changed

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        """Return no message: those of the node belong to its own view."""
        return ()

    def is_root(self) -> bool:
        return self._base.is_root()

    def monotonic(self) -> float:
        return self._base.monotonic()

    def wall_clock(self) -> float:
        return self._base.wall_clock()
