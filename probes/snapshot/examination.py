"""Everything the doctor looks at: the node, and facts too dear to be read every second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs import processes
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel import dkms, module_files
from probes.facts.kernel import log as kernel_log
from probes.facts.kernel.dkms import DkmsFacts
from probes.facts.kernel.log import KernelLogFacts
from probes.facts.kernel.module_files import ModuleFileFacts
from probes.facts.node import PATIENCE_SECONDS, Node, probe_node
from probes.facts.pci import aer as pcie_errors
from probes.facts.pci import config_space, rdma_topo
from probes.facts.pci.aer import PcieErrorFacts
from probes.facts.pci.config_space import ConfigSpaceFacts
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.rdma_topo import RdmaTopoFacts
from probes.facts.rdma import port_health
from probes.facts.rdma.port_health import PortHealthFacts
from probes.facts.system import cpuset, device_nodes, driver_container, libraries, memlock, services, tools
from probes.facts.system.cpuset import CpusetFacts
from probes.facts.system.device_nodes import DeviceNodeFacts
from probes.facts.system.driver_container import DriverContainerFacts
from probes.facts.system.libraries import LibraryFacts
from probes.facts.system.memlock import MemlockFacts
from probes.facts.system.services import ServiceFacts
from probes.facts.system.tools import ToolFacts
from probes.host.nvml import NvmlLive
from probes.host.probe_thread import RunningProbe, begin
from probes.host.protocol import Host
from probes.nccl import topology_file as topology_files
from probes.nccl.topology_file import TopologyFileFacts
from probes.snapshot.rates import Reading, read
from probes.snapshot.verdict import Verdict, judge
from probes.topology.paths import Topology, build

EXAMINE_SECONDS = 10.0
T = TypeVar("T")


@dataclass(frozen=True)
class Examination:
    """All facts of one moment; each probe's, or the reason why it gave none."""

    node: Node
    topology: Topology
    reading: Reading
    verdict: Verdict
    config_space: Maybe[ConfigSpaceFacts]
    pcie_errors: Maybe[PcieErrorFacts]
    kernel_log: Maybe[KernelLogFacts]
    processes: Maybe[ProcessFacts]
    memlock: Maybe[MemlockFacts]
    cpuset: Maybe[CpusetFacts]
    services: Maybe[ServiceFacts]
    dkms: Maybe[DkmsFacts]
    tools: Maybe[ToolFacts]
    libraries: Maybe[LibraryFacts]
    module_files: Maybe[ModuleFileFacts]
    port_health: Maybe[PortHealthFacts]
    device_nodes: Maybe[DeviceNodeFacts]
    rdma_topo: Maybe[RdmaTopoFacts]
    driver_container: Maybe[DriverContainerFacts]
    topology_files: Maybe[TopologyFileFacts]
    is_root: bool
    # As an earlier examination of the same node had them: what rises between the two.
    earlier_port_health: Maybe[PortHealthFacts] | None = None
    earlier_pcie_errors: Maybe[PcieErrorFacts] | None = None
    earlier_at: float | None = None  # seconds, Reading.at of that one


def examine(
    host: Host, node: Node | None = None, before: Examination | None = None, seconds: float = EXAMINE_SECONDS
) -> Examination:
    """Reads what the doctor wants to know; every probe within `seconds`, in a thread of its own.

    `node`: as it was probed just now; `before`: the examination before, for what rises in between.
    """

    def start(name: str, ask: Callable[[], Maybe[T]]) -> RunningProbe[T]:
        # One after the other while they are quick: threads hinder each other at the interpreter's lock.
        running = begin(host, name, ask)
        running.wait(min(PATIENCE_SECONDS, seconds))
        return running

    node = probe_node(host) if node is None else node
    topology = build(node)
    reading = read(host, node)
    functions = () if isinstance(node.pci, Unknown) else _path_functions(node.pci)
    rdma = node.rdma
    pids = compute_pids(reading)
    config_space_run = start("config space", lambda: config_space.probe(host, functions))
    pcie_errors_run = start("PCIe errors", lambda: pcie_errors.probe(host, functions))
    kernel_log_run = start("kernel log", lambda: kernel_log.probe(host))
    processes_run = start("processes", lambda: processes.probe(host, pids))
    memlock_run = start("memlock", lambda: _unless_lacking(host, ("/etc",), memlock.probe))
    cpuset_run = start("cpuset", lambda: cpuset.probe(host))
    services_run = start(
        "services",
        lambda: _unless_lacking(
            host,
            (
                "/etc",
                "/usr",
            ),
            services.probe,
        ),
    )
    dkms_run = start("DKMS", lambda: dkms.probe(host))
    tools_run = start("tools", lambda: _unless_lacking(host, ("/usr",), tools.probe))
    libraries_run = start("libraries", lambda: _unless_lacking(host, ("/usr",), libraries.probe))
    module_files_run = start("module files", lambda: module_files.probe(host, node.kernel_release))
    port_health_run = start(
        "port health", lambda: rdma if isinstance(rdma, Unknown) else port_health.probe(host, rdma)
    )
    device_nodes_run = start("device nodes", lambda: _unless_lacking(host, ("/dev",), device_nodes.probe))
    pci = node.pci
    rdma_topo_run = start(
        "rdma_topo", lambda: pci if isinstance(pci, Unknown) else rdma_topo.probe(host, pci)
    )
    driver_container_run = start("driver container", lambda: driver_container.probe(host))
    seen = processes_run.answer(seconds)
    topology_files_run = start("topology files", lambda: topology_files.probe(host, seen))
    files = topology_files_run.answer(seconds)
    return Examination(
        node=node,
        topology=topology,
        reading=reading,
        verdict=judge(node, topology, reading, files=files),
        config_space=config_space_run.answer(seconds),
        pcie_errors=pcie_errors_run.answer(seconds),
        kernel_log=kernel_log_run.answer(seconds),
        processes=seen,
        memlock=memlock_run.answer(seconds),
        cpuset=cpuset_run.answer(seconds),
        services=services_run.answer(seconds),
        dkms=dkms_run.answer(seconds),
        tools=tools_run.answer(seconds),
        libraries=libraries_run.answer(seconds),
        module_files=module_files_run.answer(seconds),
        port_health=port_health_run.answer(seconds),
        device_nodes=device_nodes_run.answer(seconds),
        rdma_topo=rdma_topo_run.answer(seconds),
        driver_container=driver_container_run.answer(seconds),
        topology_files=files,
        is_root=host.is_root(),
        earlier_port_health=None if before is None else before.port_health,
        earlier_pcie_errors=None if before is None else before.pcie_errors,
        earlier_at=None if before is None else before.reading.at,
    )


def _unless_lacking(host: Host, directories: tuple[str, ...], probe: Callable[[Host], Maybe[T]]) -> Maybe[T]:
    """What a probe finds; in a dumped tree that leaves a directory out, nothing in it is "not there"."""
    if host.origin.source is Source.TREE:
        for directory in directories:
            if isinstance(host.names(directory), Unknown):
                return Unknown(Reason.NOT_RECORDED, directory, "this tree has no such directory")
    return probe(host)


def _path_functions(pci: PciFacts) -> tuple[str, ...]:
    """The functions on GPUs' and NICs' paths; virtual functions too, whose ATS is their own."""
    virtual = (bdf for bdf, one in pci.functions.items() if one.physical_function is not None)
    return (*config_space.path_functions(pci), *virtual)


def compute_pids(reading: Reading) -> tuple[int, ...]:
    """Processes that NVML names on any GPU."""
    gpus: tuple[NvmlLive, ...] = () if isinstance(reading.gpus, Unknown) else tuple(reading.gpus.values())
    return tuple(pid for gpu in gpus if not isinstance(gpu.processes, Unknown) for pid in gpu.processes)
