"""A twin that was started again: with the kernel, modules, options and services that its next boot has.

Nothing that only ran is there: no jobs, no messages of the boot before. What a driver shows of its devices
stays as it is now; what depends on another driver file follows from the file, or is unknown.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.generations import TURING, is_before
from probes.facts.gpu.gpus import UNFINISHED
from probes.facts.gpudirect import parse_driver_version
from probes.facts.gpudirect_probe import FIRST_DMABUF_DRIVER
from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.pci.nic_families import MELLANOX
from probes.facts.system import tools
from probes.facts.system.tools import CUDA, NVML
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import CommandOutput, CudaGpu
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import TcpSocket
from probes.host.values import PROC_MODULES
from probes.plans.packages import FABRIC_MANAGER
from probes.setup.twin.host import TwinHost, unknown_path
from probes.setup.twin.tree import TwinTree
from probes.simulation.commands import boot
from probes.simulation.node.modules.modules import modinfo_fields, refcnt, users_of
from probes.simulation.node.system.services import has_switches, run, stop

ONLY_AFTER = "only known after the boot"
# Drivers -> their modules, which bring nothing without a device.
_DRIVERS = {
    **{name: family.modules for family in MELLANOX for name in family.pci_drivers},
    "nvidia": ("nvidia",),
}
_PROCESS = re.compile(r"/proc/(\d+)(?:/.*)?")
_IOMMU_GROUP = re.compile(r"/sys/kernel/iommu_groups/\d+/type")
_BY_FILE = ("/proc/driver/nvidia/version", "/proc/driver/nvidia/params")  # what modinfo and modprobe.d decide
_PARAMETER = re.compile(r"/sys/module/(\w+)/parameters/")
_REFCNT = re.compile(r"/sys/module/(\w+)/refcnt")
_MISMATCH = "driver/library version mismatch: {} is installed, and the kernel module will be {}"
_COMMANDS = ("modinfo", "modprobe", "dmesg", "systemctl")


@frozen
class NextStart:
    """What the next start of a kernel has that the node does not have now."""

    release: str
    cmdline: Maybe[str]
    iommu: Maybe[str] | None  # type of IOMMU groups, "": no IOMMU; None: as now
    dmabuf: Maybe[bool] | None  # whether the NIC driver supports DMA-BUF; None: as now
    later: Mapping[str, str]  # module -> what may install it during or after the boot
    driver: Unknown | None  # why version and flavor of the NVIDIA driver's file are unknown
    changed: bool  # the NVIDIA driver's file is another one than the loaded driver's
    missing: str = ""  # what cannot be read, in words


class BootedTwin(TwinHost):
    """A twin after its next start."""

    def __init__(self, tree: TwinTree, devices: Mapping[str, Sequence[str]], start: NextStart) -> None:
        super().__init__(tree, {}, devices)
        self._modules.idle = frozenset(
            name for driver, names in _DRIVERS.items() if not devices.get(driver) for name in names
        )
        self.start = start
        self._own = str(known(self._base.link("/proc/self"), ""))
        before = tuple(tree.live_modules)
        for name in tuple(tree.units) if tree.disk is not tree.base else ():
            stop(tree, name)  # what runs on the hardware now is not in the image
        boot.start(self, tree, [name for name, paths in devices.items() if paths], before)
        self._bind_drivers()
        for name, state in self._units.items() if "nvidia" in self._absent_later else ():
            if name.startswith("nvidia-") and state == "active":  # it starts when the driver is there
                run(tree, name)
        for path in devices.get("efa", ()):
            if not isinstance(self._base.size(f"{path}/p2p"), Unknown):
                tree.add(f"{path}/p2p", f"{self._peer_provider()}\n")

    def _peer_provider(self) -> str:
        """Return what the EFA driver names: it loads efa_nv_peermem by itself, which needs open modules."""
        live, refused = self.tree.live_modules, self.tree.refusals
        is_open = self.tree.description.driver.flavor == "open"
        has_file = bool(modinfo_fields(self.tree, EFA_PEERMEM)) and EFA_PEERMEM not in refused
        return "NVIDIA" if "nvidia" in live and is_open and (EFA_PEERMEM in live or has_file) else ""

    def _why_not(self, argv: Sequence[str]) -> str:
        """Return "": what the kernel refused before is in the tree, and it refuses it again."""
        return "needs root" if argv[0] == "setpci" and self._is_config_cut(list(argv[1:])) else ""

    def _unknown_path(self, path: str) -> Unknown | None:
        if path in _BY_FILE and "nvidia" in self.tree.live_modules:
            return None
        unknown = super()._unknown_path(path)
        if unknown is None and unknown_path(path, self._absent_later) is not None:
            return self._later(path)
        return unknown

    @property
    def _absent_later(self) -> tuple[str, ...]:
        """Return the modules that the boot alone does not load, and something else may."""
        return tuple(name for name in self.start.later if name not in self.tree.live_modules)

    def _unknown(self, source: str) -> Unknown:
        return Unknown(Reason.NOT_YET, source, ONLY_AFTER)

    def _later(self, source: str, *modules: str) -> Unknown | None:
        """Return that a module is installed later, if it is not loaded by the boot alone."""
        for module in self._absent_later:
            if not modules or module in modules:
                return Unknown(Reason.NOT_YET, source, self.start.later[module])
        return None

    # Files

    def _content(self, path: str, limit: int) -> Maybe[bytes]:
        if (gone := self._gone(path)) is not None:
            return gone
        if path == PROC_MODULES:
            later = self._later(path)
            return self._proc_modules().encode() if later is None else later
        if self.start.iommu is not None and _IOMMU_GROUP.fullmatch(path):
            kind = self.start.iommu
            return kind if isinstance(kind, Unknown) else f"{kind}\n".encode()
        counted = _REFCNT.fullmatch(path)
        if counted is not None and counted[1] in boot.MODULES:
            is_live = counted[1] in self.tree.live_modules
            count = f"{refcnt(self.tree, counted[1], 0.0)}\n".encode()
            return count if is_live else Unknown(Reason.NOT_THERE, path)
        if path == _BY_FILE[0] and self.start.driver is not None and self.tree.changed_file(path):
            return self.start.driver
        if self._is_parameter_of_now(path) and self.tree.changed_file(path) is None:
            return self._base.read_bytes(path, limit)
        if path == "/proc/cmdline" and isinstance(self.start.cmdline, Unknown):
            return self.start.cmdline
        return super()._content(path, limit)

    def names(self, path: str) -> Maybe[tuple[str, ...]]:
        """Return the names in a directory; of processes only the first and gdrtop's own."""
        gone = self._gone(path)
        names = super().names(path) if gone is None else gone
        if isinstance(names, Unknown):
            return names
        if path == "/sys/class/iommu" and self.start.iommu is not None:
            return () if self.start.iommu == "" else names
        if path == _BY_FILE[0] and self.start.driver is not None and self.tree.changed_file(path):
            return self.start.driver
        if self._is_parameter_of_now(f"{path}/"):
            return tuple(sorted({*names, *known(self._base.names(path), ())}))
        if path != "/proc":
            return names
        return tuple(name for name in names if self._gone(f"/proc/{name}") is None)

    def _is_parameter_of_now(self, path: str) -> bool:
        """Return whether a path is a parameter of a module that was loaded and is loaded again."""
        match = _PARAMETER.match(path)
        return match is not None and match[1] in self.tree.live_modules and match[1] in self._modules.of_node

    def _gone(self, path: str) -> Unknown | None:
        match = _PROCESS.fullmatch(path)
        if match is None or match[1] in ("1", self._own) or self.tree.changed_file(f"/proc/{match[1]}/comm"):
            return None
        return Unknown(Reason.NOT_THERE, path)

    def _proc_modules(self) -> str:
        """Return /proc/modules with the references of services only."""
        lines = []
        for line in self._modules.proc_modules().splitlines():
            name, size, _, _, *rest = line.split(" ")
            users = "".join(f"{user}," for user in users_of(self.tree, name)) or "-"
            lines.append(" ".join((name, size, str(refcnt(self.tree, name, 0.0)), users, *rest)) + "\n")
        return "".join(lines)

    # Programs and libraries

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        """Return what modinfo, modprobe, systemctl and dmesg print then; other commands as now."""
        command = self.tree.commands.get(argv[0]) if argv[0] in _COMMANDS else None
        if command is None:
            is_image = self.tree.disk is not self.tree.base
            return self.tree.disk.run(argv, seconds) if is_image else super().run(argv, seconds)
        output = command(tuple(argv), 0.0)
        if isinstance(output, Unknown | CommandOutput):
            return output
        return CommandOutput(tuple(argv), 0, output, "")

    def nvml(self) -> Maybe[NvmlFacts]:
        """Return what NVML reports now, with the driver version and the services of the next boot."""
        if (later := self._later("NVML", "nvidia")) is not None:
            return later
        if (absent := self._changed("nvml", "nvidia")) is not None:
            return absent
        version = self._version()
        if differing := self._mismatch(version):
            return Unknown(Reason.DRIVER_ERROR, "NVML", differing)
        if self.tree.unstarted:
            return Unknown(Reason.DRIVER_ERROR, "NVML", self.tree.unstarted)
        if missing := self._missing_library(NVML):
            return Unknown(Reason.NOT_THERE, "NVML", missing)
        facts = super().nvml()
        if isinstance(facts, Unknown):
            return self._unknown("NVML") if self.start.changed else facts
        return replace(facts, driver_version=version or facts.driver_version)

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """Return the figures of idle GPUs: without processes."""
        live = super().nvml_live()
        return live if isinstance(live, Unknown) else tuple(replace(gpu, processes=()) for gpu in live)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda reports now; another driver's support for DMA-BUF follows from its file."""
        if (later := self._later("libcuda", "nvidia", "nvidia_uvm")) is not None:
            return later
        has_driver = {"nvidia", "nvidia_uvm"} <= set(self.tree.live_modules)
        is_asked = has_driver and self._changed("cuda", "nvidia", "nvidia_uvm") is None
        if is_asked and self._mismatch(self._version()):
            return Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 803")
        if is_asked and self.tree.unstarted:
            return Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 100")
        if missing := self._missing_library(CUDA):
            return Unknown(Reason.NOT_THERE, "libcuda", missing)
        # Fabric Manager, which runs now, will not set up this node's NVSwitches.
        states = tuple(units.get(FABRIC_MANAGER) == "active" for units in (self._units, self.tree.units))
        if is_asked and has_switches(self.tree) and states == (True, False):
            return Unknown(Reason.DRIVER_ERROR, "libcuda", "cuInit(0) returned 802")
        gpus = super().cuda_gpus()
        if not self.start.changed:
            return gpus
        if isinstance(gpus, Unknown):
            return gpus if gpus.reason is Reason.NOT_THERE else self._unknown("libcuda")
        if self.start.driver is not None:
            return tuple(replace(gpu, dmabuf_supported=self.start.driver) for gpu in gpus)
        driver, number = self.tree.description.driver, parse_driver_version(self._version())
        is_new = number is None or number >= FIRST_DMABUF_DRIVER
        is_old_gpu = is_before(self.tree.description.gpu.capability, TURING)
        exports = driver.flavor == "open" and is_new and not is_old_gpu
        return tuple(
            replace(gpu, dmabuf_supported=known(gpu.rdma_supported, False) and exports) for gpu in gpus
        )

    def _unknown_fabric(self) -> Unknown | None:
        """Return that the NVLink fabric's state is unknown: a service that does not work now starts again."""
        now = self._base.nvml()
        gpus = () if isinstance(now, Unknown) else now.gpus
        states = [known(gpu.fabric, "") for gpu in gpus if not isinstance(gpu, Unknown)]
        if states and set(states) <= set(UNFINISHED) and self.tree.units.get(FABRIC_MANAGER) == "active":
            return self._unknown(FABRIC_MANAGER)
        return super()._unknown_fabric()

    def _version(self) -> str:
        return self.tree.text("/sys/module/nvidia/version").strip()

    def _missing_library(self, name: str) -> str:
        """Return that an image has no library of the driver; a live node may have it elsewhere."""
        if self.tree.disk is self.tree.base or tools.probe_libraries(self).found[name]:
            return ""
        return f"{name} is not installed"

    def _mismatch(self, version: str) -> str:
        """Return how the driver's library differs from its kernel module; "" if it does not."""
        found = tools.probe_libraries(self).found[NVML]
        here = next((known(library.version, "") for library in found), "")
        return _MISMATCH.format(here, version) if here and version and here != version else ""

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        """Return the answers of now, if the NIC driver is the same; else what the kernel's config shows."""
        answers = super().dmabuf_errnos(devices)
        supports = self.start.dmabuf
        if supports is None or supports is True:
            return answers
        new = self._unknown("ibv_reg_dmabuf_mr") if isinstance(supports, Unknown) else errno.EOPNOTSUPP
        return {name: answer if isinstance(answer, Unknown) else new for name, answer in answers.items()}

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return that no program uses RDMA."""
        resources = super().rdma_resources()
        if isinstance(resources, Unknown):
            return resources
        return RdmaResources(shares_namespaces=resources.shares_namespaces)

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        """Return that no queue pair is connected."""
        return map_known(super().packet_numbers(), lambda _: ())

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        """Return that no program is connected."""
        return ()
