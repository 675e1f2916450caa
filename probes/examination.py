"""Everything the doctor looks at: the node, and facts too dear to be read every second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from probes import (
    config_space,
    device_nodes,
    dkms,
    driver_container,
    kernel_log,
    libraries,
    memlock,
    module_files,
    pcie_errors,
    port_health,
    processes,
    services,
    tools,
    topology_files,
)
from probes.checks.verdict import Verdict, judge
from probes.config_space import ConfigSpaceFacts
from probes.device_nodes import DeviceNodeFacts
from probes.dkms import DkmsFacts
from probes.driver_container import DriverContainerFacts
from probes.host import Host
from probes.kernel_log import KernelLogFacts
from probes.libraries import LibraryFacts
from probes.memlock import MemlockFacts
from probes.module_files import ModuleFileFacts
from probes.node import Node, probe_node
from probes.nvml import NvmlLive
from probes.pci import PciFacts
from probes.pcie_errors import PcieErrorFacts
from probes.port_health import PortHealthFacts
from probes.processes import ProcessFacts
from probes.rates import Reading, read
from probes.rdma import RdmaFacts
from probes.running import begin
from probes.services import ServiceFacts
from probes.tools import ToolFacts
from probes.topology import Topology, build
from probes.topology_files import TopologyFileFacts
from probes.unknown import Maybe, Unknown

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
    services: Maybe[ServiceFacts]
    dkms: Maybe[DkmsFacts]
    tools: Maybe[ToolFacts]
    libraries: Maybe[LibraryFacts]
    module_files: Maybe[ModuleFileFacts]
    port_health: Maybe[PortHealthFacts]
    device_nodes: Maybe[DeviceNodeFacts]
    driver_container: Maybe[DriverContainerFacts]
    topology_files: Maybe[TopologyFileFacts]
    is_root: bool
    # The ports as an earlier examination of the same node had them: what rises between the two.
    earlier_port_health: Maybe[PortHealthFacts] | None = None
    earlier_at: float | None = None  # seconds, Reading.at of that one


def examine(
    host: Host, node: Node | None = None, before: Examination | None = None, seconds: float = EXAMINE_SECONDS
) -> Examination:
    """Reads what the doctor wants to know; every probe within `seconds`, in a thread of its own.

    `node`: as it was probed just now; `before`: the examination before, for what rises in between.
    """

    def answer(name: str, ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        return begin(host, name, ask).answer(seconds)

    node = probe_node(host) if node is None else node
    topology = build(node)
    reading = read(host, node)
    functions = () if isinstance(node.pci, Unknown) else _path_functions(node.pci)
    release = node.kernel if isinstance(node.kernel, Unknown) else node.kernel.release
    rdma = node.rdma
    seen = answer("processes", lambda: processes.probe(host, _compute_pids(reading)))
    return Examination(
        node=node,
        topology=topology,
        reading=reading,
        verdict=judge(node, topology, reading),
        config_space=answer("config space", lambda: config_space.probe(host, functions)),
        pcie_errors=answer("PCIe errors", lambda: pcie_errors.probe(host, functions)),
        kernel_log=answer("kernel log", lambda: kernel_log.probe(host)),
        processes=seen,
        memlock=answer("memlock", lambda: memlock.probe(host)),
        services=answer("services", lambda: services.probe(host)),
        dkms=answer("DKMS", lambda: dkms.probe(host)),
        tools=answer("tools", lambda: tools.probe(host)),
        libraries=answer("libraries", lambda: libraries.probe(host)),
        module_files=answer("module files", lambda: module_files.probe(host, release)),
        port_health=rdma if isinstance(rdma, Unknown) else _port_health(host, rdma, seconds),
        device_nodes=answer("device nodes", lambda: device_nodes.probe(host)),
        driver_container=answer("driver container", lambda: driver_container.probe(host)),
        topology_files=answer("topology files", lambda: topology_files.probe(host, seen)),
        is_root=host.is_root(),
        earlier_port_health=None if before is None else before.port_health,
        earlier_at=None if before is None else before.reading.at,
    )


def _path_functions(pci: PciFacts) -> tuple[str, ...]:
    """The functions on GPUs' and NICs' paths; virtual functions too, whose ATS is their own."""
    virtual = (bdf for bdf, one in pci.functions.items() if one.physical_function is not None)
    return (*config_space.path_functions(pci), *virtual)


def _port_health(host: Host, rdma: RdmaFacts, seconds: float) -> Maybe[PortHealthFacts]:
    return begin(host, "port health", lambda: port_health.probe(host, rdma)).answer(seconds)


def _compute_pids(reading: Reading) -> tuple[int, ...]:
    """Processes that NVML names on any GPU."""
    gpus: tuple[NvmlLive, ...] = () if isinstance(reading.gpus, Unknown) else tuple(reading.gpus.values())
    return tuple(pid for gpu in gpus if not isinstance(gpu.processes, Unknown) for pid in gpu.processes)
