"""An examination: the node, and the facts for the doctor that are too slow to read every second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.gpus import FabricServiceFacts, probe_fabric
from probes.facts.jobs import own_container, processes
from probes.facts.jobs.own_container import OwnContainer
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.kernel import boot, module_files, symbol_versions
from probes.facts.kernel import log as kernel_log
from probes.facts.kernel.boot import BootFacts, NextBootFacts
from probes.facts.kernel.log import KernelLogFacts
from probes.facts.kernel.module_files import DkmsFacts, ModuleFileFacts
from probes.facts.kernel.modules import ModuleState
from probes.facts.kernel.symbol_versions import SymbolVersions
from probes.facts.network import routes
from probes.facts.network.routes import InterfaceFacts
from probes.facts.node import Node, probe_node
from probes.facts.pci import config_space, interrupts, rdma_topo
from probes.facts.pci.config_space import ConfigSpaceFacts, PcieErrorFacts
from probes.facts.pci.rdma_topo import RdmaTopoFacts
from probes.facts.rdma import cable_ends, optics, partition_keys, port_health, roce
from probes.facts.rdma.cable_ends import CableEnds
from probes.facts.rdma.optics import Modules, Temperatures
from probes.facts.rdma.partition_keys import FULL_MEMBER, PartitionKeyFacts
from probes.facts.rdma.port_health import PortHealthFacts
from probes.facts.rdma.roce import QosFacts, RailNetworkFacts
from probes.facts.system import cpu, device_nodes, kubernetes, limits, numa, packages, services, tools
from probes.facts.system.cpu import CpuFacts
from probes.facts.system.device_nodes import DeviceNodeFacts
from probes.facts.system.kubernetes import DriverContainerFacts
from probes.facts.system.limits import MemlockFacts, RdmaCgroupFacts
from probes.facts.system.numa import CpuModel, CpusetFacts, MemoryFacts
from probes.facts.system.packages import Distribution
from probes.facts.system.platform import CPUINFO
from probes.facts.system.services import ServiceFacts
from probes.facts.system.site_checks import SiteCheck, run_site_checks
from probes.facts.system.tools import LibraryFacts, ToolFacts
from probes.host.component_history import ComponentHistory
from probes.host.nvml import NvmlLive
from probes.host.probe_table import ProbedFields, Probing, probes_of
from probes.host.probe_thread import ask_here
from probes.host.protocol import Host, LogFinding
from probes.nccl import topology_file
from probes.nccl.log.facts import JobLogReading
from probes.nccl.settings import KEY_VARIABLES, KeyForm, parse_key_setting
from probes.nccl.topology_file import TopologyFileFacts, tree_in_use
from probes.snapshot.condition import Watched
from probes.snapshot.rates import Reading, read
from probes.snapshot.verdict import Usability, assess
from probes.topology.paths import Topology, build

EXAMINE_SECONDS = 10.0
_NOT_READ = Unknown(Reason.NOT_RECORDED, "job logs", "not read")
_NOT_ASKED = Unknown(Reason.NOT_RECORDED, "mlxlink", "not asked: gdrtop topo --ports does, as root")
_NOT_WATCHED = Unknown(Reason.NOT_RECORDED, "live view", "not watched")


class _Examining(Probing):
    """The probes of one examination, and what they ask about."""

    def __init__(
        self, host: Host, seconds: float, node: Node, reading: Reading, with_jobs: bool = True
    ) -> None:
        super().__init__(host, seconds)
        self.with_jobs = with_jobs
        self.node = node
        self.pids = compute_pids(reading)
        self.functions = _path_functions(node)


def _rail_networks(run: _Examining) -> Maybe[RailNetworkFacts]:
    interfaces = run.answer("interfaces", InterfaceFacts)
    return map_known(run.node.rdma, lambda rdma: roce.probe_rails(run.host, rdma, interfaces))


def _partition_keys(run: _Examining) -> Maybe[PartitionKeyFacts]:
    """Read the partition keys, with those that jobs are set to."""
    facts = run.answer("processes", ProcessFacts)
    settings = () if isinstance(facts, Unknown) else facts.variables(KEY_VARIABLES)
    wanted = [(KEY_VARIABLES[name], parse_key_setting(name, value)) for name, value in settings]
    indices = {number for form, number in wanted if form is KeyForm.INDEX and number is not None}
    keys = {number for form, number in wanted if form is not KeyForm.INDEX and number is not None}
    partitions = {key & ~FULL_MEMBER for key in keys}
    return map_known(run.node.rdma, lambda rdma: partition_keys.probe(run.host, rdma, indices, partitions))


def _cpu_model(run: _Examining) -> Maybe[CpuModel]:
    """Read the CPU's model only where a process maps UCX, which depends on it."""
    processes = run.answer("processes", ProcessFacts)
    if isinstance(processes, Unknown):
        return processes
    libraries = (known(process.libraries, ()) for process in processes.processes)
    if not any(library.name == "libucp" for mapped in libraries for library in mapped):
        return Unknown(Reason.NOT_THERE, CPUINFO, "no process maps UCX")
    return numa.probe_cpu_model(run.host)


def _interrupts(run: _Examining) -> Maybe[dict[str, Maybe[tuple[str, ...]]]]:
    """Read the interrupts of NICs only where a job runs: they matter to TCP alone."""
    jobs, pci = run.answer("processes", ProcessFacts), run.node.pci
    if isinstance(jobs, Unknown):
        return jobs
    if isinstance(pci, Unknown):
        return pci
    if not any(known(process.gpu_files, ()) for process in jobs.processes):
        return Unknown(Reason.NOT_THERE, "msi_irqs", "not read, because no process uses a GPU")
    return interrupts.probe(run.host, (nic.bdf for nic in pci.nics if nic.physical_function is None))


def _boot(run: _Examining) -> Maybe[BootFacts]:
    return boot.probe(run.host, run.answer("distribution", Distribution), run.node.kernel_release)


def _rdma_cgroup(run: _Examining) -> Maybe[RdmaCgroupFacts]:
    """Read the limits of the processes that use RDMA, and of gdrtop's own group."""
    facts = run.answer("processes", ProcessFacts)
    jobs = () if isinstance(facts, Unknown) else facts.processes
    pids = [job.pid for job in jobs if job.uverbs_files != () and not job.is_ours]
    return limits.probe_rdma_cgroups(run.host, pids)


_probed: ProbedFields[_Examining] = ProbedFields()


@frozen
class Examination:
    """All facts of one moment. A new probe is one more field declared with `_probed`."""

    node: Node
    topology: Topology
    reading: Reading
    usability: Usability
    is_root: bool
    taken_at: float  # seconds since 1970, by the host's clock
    config_space: Maybe[ConfigSpaceFacts] = _probed(
        "config space", lambda run: config_space.probe(run.host, run.functions), directories=("/sys",)
    )
    pcie_errors: Maybe[PcieErrorFacts] = _probed(
        "PCIe errors", lambda run: config_space.probe_aer(run.host, run.functions), directories=("/sys",)
    )
    kernel_log: Maybe[KernelLogFacts] = _probed("kernel log", lambda run: kernel_log.probe(run.host))
    processes: Maybe[ProcessFacts] = _probed(
        "processes", lambda run: processes.probe(run.host, run.pids, run.with_jobs), directories=("/proc",)
    )
    cpu_model: Maybe[CpuModel] = _probed("CPU model", _cpu_model, needs=("processes",))
    memlock: Maybe[MemlockFacts] = _probed(
        "memlock", lambda run: limits.probe(run.host), directories=("/etc",)
    )
    cpuset: Maybe[CpusetFacts] = _probed("cpuset", lambda run: numa.probe_cpuset(run.host))
    cpu: Maybe[CpuFacts] = _probed("CPUs", lambda run: cpu.probe(run.host), directories=("/sys",))
    memory: Maybe[MemoryFacts] = _probed("memory", lambda run: numa.probe_memory(run.host))
    interrupts: Maybe[dict[str, Maybe[tuple[str, ...]]]] = _probed(
        "interrupts", _interrupts, needs=("processes",), directories=("/proc",)
    )
    rdma_cgroup: Maybe[RdmaCgroupFacts] = _probed(
        "RDMA control groups", _rdma_cgroup, needs=("processes",), directories=("/sys",)
    )
    services: Maybe[ServiceFacts] = _probed(
        "services", lambda run: services.probe(run.host), directories=("/etc", "/usr")
    )
    dkms: Maybe[DkmsFacts] = _probed(
        "DKMS", lambda run: module_files.probe_dkms(run.host), directories=("/var",)
    )
    tools: Maybe[ToolFacts] = _probed("tools", lambda run: tools.probe(run.host), directories=("/usr",))
    libraries: Maybe[LibraryFacts] = _probed(
        "libraries", lambda run: tools.probe_libraries(run.host), directories=("/usr",)
    )
    module_files: Maybe[ModuleFileFacts] = _probed(
        "module files",
        lambda run: module_files.probe(
            run.host,
            run.node.kernel_release,
            {} if isinstance(run.node.modules, Unknown) else run.node.modules.file_names,
        ),
    )
    symbol_versions: Maybe[SymbolVersions] = _probed(
        "symbol versions",
        lambda run: map_known(run.node.modules, lambda modules: symbol_versions.probe(run.host, modules)),
    )
    port_health: Maybe[PortHealthFacts] = _probed(
        "port health", lambda run: map_known(run.node.rdma, lambda rdma: port_health.probe(run.host, rdma))
    )
    temperatures: Maybe[Temperatures] = _probed(
        "temperatures", lambda run: map_known(run.node.rdma, lambda rdma: optics.probe(run.host, rdma))
    )
    device_nodes: Maybe[DeviceNodeFacts] = _probed(
        "device nodes", lambda run: device_nodes.probe(run.host), directories=("/dev",)
    )
    own_container: Maybe[OwnContainer] = _probed(
        "own container", lambda run: own_container.probe(run.host, run.node.platform, run.node.rdma)
    )
    fabric_services: Maybe[FabricServiceFacts] = _probed(
        "fabric services", lambda run: probe_fabric(run.host, run.node.pci), directories=("/dev", "/proc")
    )
    rdma_topo: Maybe[RdmaTopoFacts] = _probed(
        "rdma_topo", lambda run: map_known(run.node.pci, lambda pci: rdma_topo.probe(run.host, pci))
    )
    driver_container: Maybe[DriverContainerFacts] = _probed(
        "driver container", lambda run: kubernetes.probe_driver_containers(run.host), directories=("/run",)
    )
    distribution: Maybe[Distribution] = _probed("distribution", lambda run: packages.probe(run.host))
    boot: Maybe[BootFacts] = _probed("boot", _boot, needs=("distribution",), directories=("/boot",))
    interfaces: Maybe[InterfaceFacts] = _probed(
        "interfaces", lambda run: routes.probe(run.host), directories=("/proc",)
    )
    qos: Maybe[QosFacts] = _probed(
        "RoCE QoS", lambda run: map_known(run.node.rdma, lambda rdma: roce.probe(run.host, rdma))
    )
    partition_keys: Maybe[PartitionKeyFacts] = _probed(
        "partition keys", _partition_keys, needs=("processes",), directories=("/sys",)
    )
    cable_ends: Maybe[CableEnds] = _probed(
        "cable ends", lambda run: map_known(run.node.rdma, lambda rdma: cable_ends.probe(run.host, rdma))
    )
    rail_networks: Maybe[RailNetworkFacts] = _probed("RoCE networks", _rail_networks, needs=("interfaces",))
    topology_files: Maybe[TopologyFileFacts] = _probed(
        "topology files",
        lambda run: topology_file.probe(run.host, run.answer("processes", ProcessFacts)),
        needs=("processes",),
    )
    component_history: Maybe[ComponentHistory] = _probed(
        "component history", lambda run: run.host.component_history()
    )
    site_checks: Maybe[tuple[SiteCheck, ...]] = _probed(
        "site checks", lambda run: run_site_checks(run.host), directories=("/etc",)
    )
    log_findings: Maybe[tuple[LogFinding, ...]] = _probed("log findings", lambda run: run.host.log_findings())
    # From an earlier examination of the same node: the difference shows which errors rise.
    earlier_port_health: Maybe[PortHealthFacts] | None = None
    earlier_pcie_errors: Maybe[PcieErrorFacts] | None = None
    earlier_partition_keys: Maybe[PartitionKeyFacts] | None = None  # a subnet manager may rewrite the tables
    earlier_at: float | None = None  # seconds, Reading.at of that examination
    # By module that was loaded between two examinations: the processes of now that ran already, if any.
    older_pids: Mapping[str, frozenset[int]] = field(default_factory=dict)
    next_boot: NextBootFacts | None = None  # of a copy that was started for a forecast; None: of no forecast
    job_logs: Maybe[tuple[JobLogReading, ...]] = _NOT_READ  # of jobs that use NCCL
    modules: Maybe[Modules] = _NOT_ASKED  # what optical modules report of themselves
    watched: Maybe[Watched] = _NOT_WATCHED  # what jobs and ports do, over the time that gdrtop watched


PROBES = probes_of(Examination)


def examine(
    host: Host,
    node: Node | None = None,
    before: Examination | None = None,
    seconds: float = EXAMINE_SECONDS,
    with_jobs: bool = True,
) -> Examination:
    """Run every probe of the doctor, each within `seconds`, and assess the paths.

    `node`: the node if it has just been probed; `before`: the examination before, for errors that rise.
    Without jobs, nothing of a process is read that only matters for one: judge it by `without_jobs`.
    """
    node = probe_node(host) if node is None else node
    reading = ask_here(host, "counters and GPU state", lambda: read(host, node))
    answers = _Examining(host, seconds, node, reading, with_jobs).run(PROBES)
    topology = build(node, tree_in_use(answers["topology_files"]))
    return Examination(
        node=node,
        topology=topology,
        reading=reading,
        usability=assess(node, topology, reading, files=answers["topology_files"]),
        is_root=host.is_root(),
        taken_at=host.wall_clock(),
        earlier_port_health=None if before is None else before.port_health,
        earlier_pcie_errors=None if before is None else before.pcie_errors,
        earlier_partition_keys=None if before is None else before.partition_keys,
        earlier_at=None if before is None else before.reading.at,
        older_pids={} if before is None else _older_pids(before, node, answers["processes"]),
        **answers,
    )


def _older_pids(before: Examination, node: Node, processes: Maybe[ProcessFacts]) -> dict[str, frozenset[int]]:
    """Return the processes that started without a module which has been loaded since, by module."""
    here = frozenset(
        process.pid for process in known(map_known(processes, lambda facts: facts.processes), ())
    )
    known_before = known(map_known(before.processes, lambda facts: facts.processes), ())
    then, now = (
        known(map_known(each.modules, lambda facts: facts.modules), {}) for each in (before.node, node)
    )
    absent = ModuleState.NOT_LOADED
    new = [name for name in then if name in now and then[name].state is absent is not now[name].state]
    older = {**before.older_pids, **dict.fromkeys(new, frozenset(process.pid for process in known_before))}
    return {name: pids & here for name, pids in older.items()}


def _path_functions(node: Node) -> tuple[str, ...]:
    """Return the functions on GPUs' and NICs' paths, and virtual functions, which have their own ATS."""
    if isinstance(node.pci, Unknown):
        return ()
    virtual = (bdf for bdf, function in node.pci.functions.items() if function.physical_function is not None)
    return (*config_space.path_functions(node.pci), *virtual)


def compute_pids(reading: Reading) -> tuple[int, ...]:
    """Return the processes that NVML reports on any GPU."""
    gpus: tuple[NvmlLive, ...] = () if isinstance(reading.gpus, Unknown) else tuple(reading.gpus.values())
    return tuple(pid for gpu in gpus if not isinstance(gpu.processes, Unknown) for pid in gpu.processes)
