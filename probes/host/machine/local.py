"""The live host, and the only access to a node: files, read-only commands, netlink, NVML, verbs, libcuda.

All probes ask a `Host` and open nothing themselves, so that a dumped tree, a simulated node and a recording
can answer the same questions as this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from probes.base.text import BDF, printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host import trusted_path
from probes.host.component_history import ComponentHistory
from probes.host.fec import SOURCE as FEC_SOURCE
from probes.host.fec import FecState
from probes.host.machine import library_probes
from probes.host.machine.command import run_command, run_program
from probes.host.machine.files import LocalFiles, unknown_from
from probes.host.machine.kernel_log_reader import KERNEL_LOG, KernelLogReader
from probes.host.machine.library_child import DATA_DIRECT, DMABUF
from probes.host.machine.nvml_library import NvmlLibrary
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.probe_thread import note, start_probe
from probes.host.protocol import TREE_ONLY, CommandOutput, CudaGpu, HostBase, KernelMessage, read_collectives
from probes.host.ras import ANSWER_SECONDS
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import SOURCE, TcpSocket, read_socket_inodes
from probes.host.usage import InterfaceCounters, ProcessUsage, read_counters, read_thread_names, read_usage
from probes.host.values import RDMA_CLASS

if TYPE_CHECKING:  # imported on first use
    from probes.host.machine.ethtool_socket import EthtoolReader
    from probes.host.machine.ras_client import RasMonitor
    from probes.host.machine.rdma_reader import ResourceReader

T = TypeVar("T")
DRIVER_LOADED = ("/sys/module/nvidia", "/proc/driver/nvidia/version")
NVIDIA_DRIVER = "/sys/bus/pci/drivers/nvidia"
_LISTED_SECONDS = 10.0


class LocalHost(LocalFiles):
    """This machine, or a directory tree of a node below `root` (a dump, a container's /host mount).

    A directory tree has no commands and libraries: its answers to these questions are those of HostBase.
    """

    def __init__(self, root: str = "/", history: Callable[[], Maybe[ComponentHistory]] | None = None) -> None:
        """`history`: reads what `gdrtop watch` has kept of this machine; None: it is not asked for."""
        super().__init__(root)
        self._history = history
        self._library = NvmlLibrary()
        self._libraries = GpuLibraries(self)
        self._resources: ResourceReader | None = None
        self._ethtool: EthtoolReader | None = None
        self._kernel_log = KernelLogReader()
        self._ras_monitors: dict[str, RasMonitor] = {}

    def _even_for_root(self, answer: Maybe[T]) -> Maybe[T]:
        if isinstance(answer, Unknown) and answer.reason is Reason.NEEDS_ROOT and self._is_root:
            return Unknown(Reason.IO_ERROR, answer.source, "refused, even for root")
        return answer

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        note(" ".join(argv), seconds)
        return super().run(argv) if self._root else run_command(argv, seconds)

    def trusted_bytes(self, path: str) -> Maybe[bytes]:
        if self._root or not self._is_root:
            return self.read_bytes(path)
        try:
            return self.read_bytes(trusted_path.require_path(path))
        except trusted_path.NotTrusted as error:
            return Unknown(Reason.NEEDS_PERMISSION, printable(path), printable(str(error.strerror), 200))
        except (OSError, ValueError) as error:
            return unknown_from(error, path, self._is_root)

    def run_trusted(self, argv: Sequence[str], seconds: float, user: str) -> Maybe[CommandOutput]:
        note(" ".join(argv), seconds)
        if self._root:
            return super().run_trusted(argv, seconds, user)
        if not self._is_root:
            return run_program(argv, seconds, tuple(argv), is_patient=False)
        file, arguments = trusted_path.__file__, (user, *argv)
        return library_probes.run_child(file, arguments, seconds, tuple(argv), is_patient=False)

    def nvml(self) -> Maybe[NvmlFacts]:
        return super().nvml() if self._root else self._ask_nvml(self._library.facts)

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        return super().nvml_live() if self._root else self._ask_nvml(self._library.live)

    def _ask_nvml(self, ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        note("NVML")
        why = self._libraries.why_no_nvml()
        return ask() if why is None else why

    def release(self) -> None:
        """End the NVML session, which keeps the driver module in use; the next question opens a new one."""
        self._library.release()

    def dmabuf_errnos(self, devices: Sequence[str]) -> Mapping[str, Maybe[int]]:
        if self._root:
            return super().dmabuf_errnos(devices)
        note(DMABUF, library_probes.CHILD_SECONDS)
        return library_probes.probe_dmabuf(devices)

    def data_direct_paths(self, devices: Sequence[str]) -> Mapping[str, Maybe[str]]:
        if self._root:
            return super().data_direct_paths(devices)
        note(DATA_DIRECT, library_probes.CHILD_SECONDS)
        return library_probes.probe_data_direct(devices)

    def cuda_gpus(self) -> Maybe[tuple[CudaGpu, ...]]:
        """Return what libcuda reports on each GPU, unless that would load modules or create device files."""
        if self._root:
            return super().cuda_gpus()
        why = self._libraries.why_no_cuda()
        return library_probes.probe_cuda() if why is None else why

    def process_usage(self, pids: Sequence[int]) -> Mapping[int, Maybe[ProcessUsage]]:
        if self._root:
            return read_usage(self, pids)
        from probes.host.machine.live_usage import process_usage  # psutil takes 20 ms to import

        note("process usage")
        return process_usage(pids)

    def interface_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[InterfaceCounters]]:
        if self._root:
            return read_counters(self, names)
        from probes.host.machine.live_usage import interface_counters

        note("/proc/net/dev")
        return interface_counters(names)

    def rdma_resources(self) -> Maybe[RdmaResources]:
        """Return the RDMA resources of all processes; TIMED_OUT while a NIC's firmware does not answer."""
        if self._root:
            return super().rdma_resources()
        # Opening the socket would load ib_core; checking this path has no side effects.
        if not os.path.exists(RDMA_CLASS):
            return Unknown(Reason.NOT_THERE, RDMA_CLASS, "ib_core is not loaded")
        from probes.host.machine import rdma_reader

        note(rdma_reader.SOURCE, rdma_reader.SECONDS)
        if self._resources is None:
            self._resources = self._resource_reader()
        reading = start_probe(self, rdma_reader.SOURCE, self._resources.read)
        answer = reading.answer(rdma_reader.SECONDS)
        if rdma_reader.is_final(answer):
            return answer
        by_command = rdma_reader.resources_from_command(self.run)
        return self._even_for_root(answer) if isinstance(by_command, Unknown) else by_command

    def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
        """Return the packet numbers of all connected queue pairs; TIMED_OUT as `rdma_resources`."""
        if self._root:
            return super().packet_numbers()
        if not os.path.exists(RDMA_CLASS):
            return Unknown(Reason.NOT_THERE, RDMA_CLASS, "ib_core is not loaded")
        from probes.host.machine import rdma_reader

        note(rdma_reader.SOURCE, rdma_reader.SECONDS)
        reading = start_probe(self, "packet numbers", self._resource_reader().read_packets)
        return reading.answer(rdma_reader.SECONDS)

    def rdma_statistics(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        if self._root or not os.path.exists(RDMA_CLASS):
            return super().rdma_statistics(names)
        from probes.host.machine import rdma_reader

        note(rdma_reader.SOURCE, rdma_reader.SECONDS)
        read = partial(self._resource_reader().read_statistics, tuple(names))
        answers = start_probe(self, "rdma statistic", read).answer(rdma_reader.SECONDS)
        if isinstance(answers, Unknown):
            return dict.fromkeys(names, answers)
        late = Unknown(Reason.TIMED_OUT, rdma_reader.SOURCE, "no answer yet")  # to an earlier, slow question
        return {name: answers.get(name, late) for name in names}

    def _resource_reader(self) -> ResourceReader:
        from probes.host.machine.rdma_namespaces import RdmaNamespaces, can_enter
        from probes.host.machine.rdma_reader import ResourceReader

        return ResourceReader(namespaces=RdmaNamespaces(can_enter()))

    def tcp_sockets(self) -> Maybe[tuple[TcpSocket, ...]]:
        if self._root:
            return super().tcp_sockets()
        from probes.host.machine import tcp_socket_reader

        note(SOURCE, tcp_socket_reader.SECONDS)
        why = tcp_socket_reader.why_not_asked(self)
        return self._even_for_root(tcp_socket_reader.read_sockets() if why is None else why)

    def namespace_sockets(self, pid: int) -> Maybe[tuple[TcpSocket, ...]]:
        if self._root:
            return super().namespace_sockets(pid)
        from probes.host.machine import tcp_socket_reader

        note(SOURCE, tcp_socket_reader.SECONDS)
        why = tcp_socket_reader.why_not_asked(self)
        return tcp_socket_reader.read_namespace(f"/proc/{pid}/ns/net") if why is None else why

    thread_names = read_thread_names
    socket_inodes = read_socket_inodes

    def ethtool_counters(self, names: Sequence[str]) -> Mapping[str, Maybe[dict[str, int]]]:
        """Return some of the counters of `ethtool -S`; TIMED_OUT while a driver is being reconfigured."""
        if self._root:
            return super().ethtool_counters(names)
        from probes.host.machine import ethtool_socket

        if self._ethtool is None:
            self._ethtool = ethtool_socket.EthtoolReader()
        note("ethtool -S", ethtool_socket.SECONDS)
        reading = start_probe(self, "ethtool -S", partial(self._ethtool.read, tuple(names)))
        answers = reading.answer(ethtool_socket.SECONDS)
        if isinstance(answers, Unknown):
            return dict.fromkeys(names, answers)
        late = Unknown(Reason.TIMED_OUT, "ethtool -S", "no answer yet")  # to an earlier, slow question
        return {name: self._even_for_root(answers.get(name, late)) for name in names}

    def fec_states(self, names: Sequence[str]) -> Mapping[str, Maybe[FecState]]:
        """Return the error correction of interfaces; TIMED_OUT while a driver is being reconfigured."""
        if self._root or not names:
            return super().fec_states(names)
        from probes.host.machine import ethtool_netlink

        note(FEC_SOURCE, ethtool_netlink.SECONDS)
        reading = start_probe(self, FEC_SOURCE, partial(ethtool_netlink.read_fec, tuple(names)))
        answers = reading.answer(ethtool_netlink.SECONDS)
        if isinstance(answers, Unknown):
            return dict.fromkeys(names, answers)
        late = Unknown(Reason.TIMED_OUT, FEC_SOURCE, "no answer yet")  # to an earlier, slow question
        return {name: answers.get(name, late) for name in names}

    def kernel_messages(self) -> Maybe[tuple[KernelMessage, ...]]:
        if self._root:
            return Unknown(Reason.NOT_RECORDED, KERNEL_LOG, TREE_ONLY)
        note(KERNEL_LOG)
        try:
            return self._kernel_log.read()
        except OSError as error:
            return unknown_from(error, KERNEL_LOG, self._is_root)

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        """Return the answer of NCCL's RAS service to a command; it may take 20 seconds."""
        if self._root:
            return super().ras_answer(address, command)
        from probes.host.machine import ras_client

        note(f"RAS at {address}", seconds)
        return ras_client.ask(address, command, seconds)

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        if self._root:
            return super().ras_events(address)
        from probes.host.machine.ras_client import RasMonitor

        if address not in self._ras_monitors:
            self._ras_monitors[address] = RasMonitor(address)
        events = self._ras_monitors[address].read()
        if last:
            self._ras_monitors.pop(address).close()
        return events

    collectives = read_collectives

    def component_history(self) -> Maybe[ComponentHistory]:
        if self._root or self._history is None:
            return super().component_history()
        note("component history")
        return self._history()

    def environment(self, name: str) -> Maybe[str]:
        """Return an environment variable of this process; a directory tree has none."""
        if self._root:
            return super().environment(name)
        text = os.environ.get(name)
        return Unknown(Reason.NOT_THERE, name) if text is None else printable(text)

    def is_root(self) -> bool:
        return self._is_root


class GpuLibraries:
    """Why NVML and libcuda must not be asked: without a driver, and while a GPU sleeps.

    They would load a missing driver (nvidia-modprobe(1)), and wake a GPU up, each second again. An idle GPU
    is suspended only where its power/control is "auto" (NVIDIA driver README, PCI-Express Runtime D3 Power
    Management); which GPUs may sleep at all is looked up every ten seconds.
    """

    def __init__(self, files: HostBase, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = files, clock
        self._may_sleep: tuple[str, ...] = ()
        self._listed_at: float | None = None

    def why_no_nvml(self) -> Unknown | None:
        """Return why NVML is not asked; None: it is."""
        if not any(map(self._is_there, DRIVER_LOADED)):
            return Unknown(Reason.NOT_THERE, "NVML", "the NVIDIA driver is not loaded")
        return self.why_not_asked("NVML")

    def why_no_cuda(self) -> Unknown | None:
        """Return why libcuda is not asked; None: it is."""
        missing = next((path for path in library_probes.CUDA_NEEDS if not self._is_there(path)), None)
        if missing is not None:
            return Unknown(Reason.NOT_THERE, "libcuda", f"not queried, because {missing} is missing")
        return self.why_not_asked("libcuda")

    def _is_there(self, path: str) -> bool:
        return not isinstance(self._files.size(path), Unknown)

    def why_not_asked(self, library: str) -> Unknown | None:
        """Return why a library is not asked; None: no GPU sleeps."""
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= _LISTED_SECONDS:
            self._listed_at = now
            bdfs = filter(BDF.fullmatch, known(self._files.names(NVIDIA_DRIVER), ()))
            self._may_sleep = tuple(bdf for bdf in bdfs if self._power(bdf, "control") == "auto")
        for bdf in self._may_sleep:
            if self._power(bdf, "runtime_status") in ("suspended", "suspending"):
                detail = f"not queried, because {bdf} is asleep and {library} would wake it up"
                return Unknown(Reason.NOT_THERE, f"{NVIDIA_DRIVER}/{bdf}/power/runtime_status", detail)
        return None

    def _power(self, bdf: str, name: str) -> str:
        return known(self._files.read(f"{NVIDIA_DRIVER}/{bdf}/power/{name}", 4096), "")
