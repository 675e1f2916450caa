"""Where a node stands: drivers, cloud, Slurm and Kubernetes; which path it should use.

Each part is read by one file of probes/facts; this is the whole that setup, manifests and environment ask.
"""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, map_known
from probes.facts.gpu import driver_package
from probes.facts.gpu.driver_package import DriverPackage, DriverTraces
from probes.facts.gpudirect import GdrPath, PathState
from probes.facts.rdma import nic_driver
from probes.facts.rdma.nic_driver import NicDriver, NicTraces
from probes.facts.system import kubernetes, platform, slurm
from probes.facts.system.kubernetes import KubernetesFacts
from probes.facts.system.packages import Distribution
from probes.facts.system.platform import Cloud
from probes.facts.system.slurm import SlurmFacts
from probes.host.probe_table import ProbedFields, Probing, probes_of
from probes.host.protocol import Host
from probes.queries.jobs import usable_paths
from probes.queries.module_need import dmabuf_comes_first, needless_loaders
from probes.queries.modules import no_gpu_or_rdma_device
from probes.snapshot.examination import EXAMINE_SECONDS, Examination

_REFUSED = "the NIC driver refuses GPU memory, by the kernel log"
_NO_DEVICE = "There is nothing to set up here. Run gdrtop setup on a node with an NVIDIA GPU and an RDMA NIC."
_STAGED = (
    "There is nothing to set up here. NCCL copies through host memory on this node, without any setting."
    " Measure that path with gdrtop bench --memory host."
)


class _Situating(Probing):
    """The probes of one situation, and the examination that they build on."""

    def __init__(self, host: Host, seconds: float, examination: Examination) -> None:
        super().__init__(host, seconds)
        self.examination = examination


def _gpu_driver(run: _Situating) -> Maybe[DriverPackage]:
    examination = run.examination
    traces = DriverTraces(
        release=examination.node.kernel_release,
        loaded=map_known(examination.node.gpus, lambda gpus: gpus.driver),
        files=map_known(examination.module_files, lambda facts: facts.files),
        dkms=examination.dkms,
        container=examination.driver_container,
    )
    return driver_package.probe(run.host, traces)


def _nic_driver(run: _Situating) -> Maybe[NicDriver]:
    examination = run.examination
    traces = NicTraces(
        release=examination.node.kernel_release,
        ofed=map_known(examination.tools, lambda tools: tools.ofed),
        files=map_known(examination.module_files, lambda facts: facts.files),
        modules=examination.node.modules,
        dkms=examination.dkms,
        container=examination.driver_container,
    )
    return nic_driver.probe(run.host, traces)


def _kubernetes(run: _Situating) -> Maybe[KubernetesFacts]:
    hostname = map_known(run.examination.node.platform, lambda platform: platform.hostname)
    return kubernetes.probe(run.host, hostname)


_probed: ProbedFields[_Situating] = ProbedFields()


@frozen
class Situation:
    """What setup needs to know of a node besides its examination."""

    examination: Examination
    # NOT_THERE: no driver is installed.
    gpu_driver: Maybe[DriverPackage] = _probed("GPU driver package", _gpu_driver, directories=("/usr",))
    # NOT_THERE: no RDMA driver is installed.
    nic_driver: Maybe[NicDriver] = _probed("NIC driver", _nic_driver)
    # NOT_THERE: no known cloud.
    cloud: Maybe[Cloud] = _probed("cloud", lambda run: platform.probe_cloud(run.host))
    # NOT_THERE: no Slurm.
    slurm: Maybe[SlurmFacts] = _probed("Slurm", lambda run: slurm.probe(run.host), directories=("/etc",))
    # NOT_THERE: no kubelet.
    kubernetes: Maybe[KubernetesFacts] = _probed("Kubernetes", _kubernetes)

    @property
    def distribution(self) -> Maybe[Distribution]:
        """The distribution."""
        return self.examination.distribution


PROBES = probes_of(Situation)


def read_situation(host: Host, examination: Examination, seconds: float = EXAMINE_SECONDS) -> Situation:
    """Run every probe of setup, each within `seconds`; one that fails affects only its own field."""
    return Situation(examination=examination, **_Situating(host, seconds, examination).run(PROBES))


@frozen
class PathChoice:
    """The recommended path and its reason; None: no path can work on this node."""

    recommended: GdrPath | None
    reason: str
    paths: tuple[PathState, ...]  # with the requirements and their evidence; () where they are unknown
    is_impossible: bool = False  # by design or without the devices; False: unknown, or a path was recommended
    instead: str = ""  # what to do on a node on which it is impossible, as sentences
    old_peermem: tuple[Evidence, ...] = ()  # what loads nvidia_peermem at boot though DMA-BUF is usable


def choose_path(examination: Examination) -> PathChoice:
    """Return the path that NVIDIA recommends for what this node has: DMA-BUF where it can work."""
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return PathChoice(None, f"the state of GPUDirect RDMA is unknown: {direct}", ())
    if direct.peermem.path is GdrPath.CXI:
        return _of_slingshot(direct.peermem, direct.by_design)
    paths = (direct.dmabuf, direct.peermem)
    if (absent := no_gpu_or_rdma_device(examination)) is not None:
        reason = absent.cause or "; ".join(evidence.value for evidence in absent.evidence)
        return PathChoice(None, reason, paths, is_impossible=True, instead=_NO_DEVICE)
    if direct.by_design:
        return PathChoice(None, direct.by_design, paths, is_impossible=True, instead=_STAGED)
    if direct.peermem.path is GdrPath.EFA:
        return PathChoice(*_of_efa(direct.dmabuf, direct.peermem), paths)
    dmabuf, peermem = usable_paths(examination)
    is_refused = dmabuf is False and direct.dmabuf.usable is not False
    if dmabuf is True:
        reason = "every requirement of DMA-BUF is met"
        return PathChoice(GdrPath.DMABUF, reason, paths, old_peermem=needless_loaders(examination))
    if peermem is True:
        why = _REFUSED if is_refused else _missing(direct.dmabuf)
        reason = f"DMA-BUF is not usable ({why}), but nvidia_peermem is"
        return PathChoice(GdrPath.PEERMEM, reason, paths)
    if is_refused:
        return PathChoice(GdrPath.PEERMEM, f"DMA-BUF is not usable here: {_REFUSED}", paths)
    if dmabuf_comes_first(examination):
        reason = f"NVIDIA recommends DMA-BUF; missing here: {_missing(direct.dmabuf)}"
        return PathChoice(GdrPath.DMABUF, reason, paths)
    reason = "DMA-BUF would need a different driver or NIC; nvidia_peermem works with what is installed"
    return PathChoice(GdrPath.PEERMEM, reason, paths)


def _of_slingshot(own: PathState, by_design: str) -> PathChoice:
    """Return the only path of Slingshot NICs, which have no verbs."""
    if by_design:
        return PathChoice(None, by_design, (own,), is_impossible=True, instead=_STAGED)
    lacking = f"missing here: {_missing(own)}"
    reason = "Slingshot NICs have no verbs; libfabric registers GPU memory with the cxi driver"
    return PathChoice(GdrPath.CXI, reason if own.usable is True else f"{reason}; {lacking}", (own,))


def _of_efa(dmabuf: PathState, own: PathState) -> tuple[GdrPath, str]:
    if dmabuf.usable is True or own.usable is not True:
        return GdrPath.DMABUF, "the EFA driver registers GPU memory via DMA-BUF"
    return GdrPath.EFA, "the EFA driver registers GPU memory with its own module"


def _missing(path: PathState) -> str:
    """Return the requirements that are not met; else those that are unknown."""
    lacking = [row.lack or row.name for row in path.requirements if row.met is False]
    unknown = [f"{row.name} is unknown" for row in path.requirements if isinstance(row.met, Unknown)]
    return "; ".join(lacking[:3] or unknown[:3]) or "nothing"
