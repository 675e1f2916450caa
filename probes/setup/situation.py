"""Where a node stands: drivers, cloud, Slurm and Kubernetes; which path it should use.

Each part is read by one file of probes/facts; this is the whole that setup, manifests and environment ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu import driver_package
from probes.facts.gpu.driver_package import DriverPackage, DriverTraces, module_flavor
from probes.facts.gpudirect import GdrPath, PathState
from probes.facts.node import Node, host_name
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.facts.rdma import nic_driver
from probes.facts.rdma.nic_driver import NicDriver, NicTraces
from probes.facts.system import kubernetes, platform, slurm
from probes.facts.system.kubernetes import (
    ContainerMessage,
    ContainerState,
    GpuOperator,
    KubernetesFacts,
    NetworkOperator,
    message_of,
)
from probes.facts.system.platform import Cloud
from probes.facts.system.slurm import SlurmFacts
from probes.host.probe_table import ProbedFields, Probing, probes_of
from probes.host.protocol import Host
from probes.queries.jobs import usable_paths
from probes.queries.module_need import dmabuf_comes_first, needless_loaders
from probes.queries.modules import no_gpu_or_rdma_device
from probes.snapshot.examination import EXAMINE_SECONDS, Examination
from probes.topology.endpoints import rdma_functions

T = TypeVar("T")
_MESSAGES = {ContainerMessage.WAITING_FOR_DRIVERS: "waiting for MOFED"}  # as the operators' own documents say
_MOST_WAITING = 3
_IN_BRACKETS = re.compile(r"[^\[]*\[([^\]]*).*", re.DOTALL)  # of a name in pci.ids, the model
_NO_NIC = "no RDMA NIC"  # as the verdict says it
_REFUSED = "the NIC driver refuses GPU memory, by the kernel log"
_NO_DEVICE = "There is nothing to set up here. Run gdrtop setup on a node with an NVIDIA GPU and an RDMA NIC."
_NO_STEPS = "There is nothing to set up here. NCCL copies through host memory, without any setting."


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
    kubernetes: Maybe[KubernetesFacts] = _probed(
        "Kubernetes", lambda run: kubernetes.probe(run.host, host_name(run.examination.node))
    )


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
    is_staged: bool = False  # by design, and the steps are about the path through host memory
    instead: str = ""  # what to do on a node on which it is impossible, as sentences
    old_peermem: tuple[Evidence, ...] = ()  # what loads nvidia_peermem at boot though DMA-BUF is usable

    @property
    def has_steps(self) -> bool:
        """Whether there is something to set up."""
        return self.is_staged or not self.is_impossible


def choose_path(examination: Examination) -> PathChoice:
    """Return the path that NVIDIA recommends for what this node has: DMA-BUF where it can work."""
    direct = examination.node.gpudirect
    if isinstance(direct, Unknown):
        return PathChoice(None, f"the state of GPUDirect RDMA is unknown: {direct}", ())
    if direct.peermem.path is GdrPath.CXI:  # Slingshot NICs have no verbs, and so no other path
        own = (direct.peermem,)
        if direct.by_design:
            return PathChoice(None, direct.by_design, own, is_impossible=True, instead=_NO_STEPS)
        reason = "Slingshot NICs have no verbs; libfabric registers GPU memory with the cxi driver"
        lacking = "" if own[0].usable is True else f"; missing here: {_missing(own[0])}"
        return PathChoice(GdrPath.CXI, f"{reason}{lacking}", own)
    paths = (direct.dmabuf, direct.peermem)
    if (absent := no_gpu_or_rdma_device(examination)) is not None:
        reason = absent.cause or "; ".join(evidence.value for evidence in absent.evidence)
        return PathChoice(None, reason, paths, is_impossible=True, instead=_NO_DEVICE)
    if direct.by_design:
        return PathChoice(None, direct.by_design, paths, is_impossible=True, is_staged=True)
    if direct.peermem.path is GdrPath.EFA:
        if direct.dmabuf.usable is True or direct.peermem.usable is not True:
            return PathChoice(GdrPath.DMABUF, "the EFA driver registers GPU memory via DMA-BUF", paths)
        return PathChoice(GdrPath.EFA, "the EFA driver registers GPU memory with its own module", paths)
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


def _missing(path: PathState) -> str:
    """Return the requirements that are not met; else those that are unknown."""
    lacking = [row.lack or row.name for row in path.requirements if row.met is False]
    unknown = [f"{row.name} is unknown" for row in path.requirements if isinstance(row.met, Unknown)]
    return "; ".join(lacking[:3] or unknown[:3]) or "nothing"


def situation_rows(situation: Situation) -> tuple[tuple[str, str], ...]:
    """Return the label and value of each thing that is known about the node, and why not where it is not."""
    node = situation.examination.node
    secure = map_known(node.kernel, lambda kernel: kernel.secure_boot)
    where = map_known(node.platform, lambda platform: platform.environment)
    names = {
        gpu.bdf: gpu.name for gpu in node.known_gpus if gpu.name
    }  # NVML knows new models, an old pci.ids does not
    rows = (
        ("Distribution", _shown(situation.examination.distribution, lambda value: value.name)),
        ("Kernel", _shown(node.kernel_release, str)),
        ("Runs on", _shown(where, _value, "unknown")),
        ("Cloud", _shown(situation.cloud, lambda value: f"{value.provider.value} {value.machine}".strip())),
        ("GPUs", _shown(node.pci, lambda pci: _models(pci.gpus, pci, names) or "none")),
        ("NICs", _nics(node)),
        ("GPU driver", _shown(situation.gpu_driver, _gpu_driver_text)),
        ("NIC driver", _shown(situation.nic_driver, _nic_driver_text)),
        ("Secure Boot", _shown(secure, lambda value: "on" if value else "off", "off (no UEFI)")),
        ("Boot loader", _shown(situation.examination.boot, lambda value: _shown(value.loader, _value))),
        ("Slurm", _shown(situation.slurm, lambda value: known(value.version, "installed"))),
        ("Kubernetes", _shown(situation.kubernetes, lambda value: known(value.distribution, "installed"))),
    )
    facts = situation.kubernetes
    if isinstance(facts, Unknown):
        return rows
    return (
        *rows,
        ("GPU Operator", _shown(facts.gpu_operator, _gpu_operator)),
        ("Network Operator", _shown(facts.network_operator, _network_operator)),
        ("Driver pods", _shown(facts.containers, _containers)),
    )


def _gpu_operator(operator: GpuOperator) -> str:
    driver = _shown(operator.driver_version, str, "") if operator.driver_enabled is True else "host's own"
    enabled = operator.rdma_enabled
    rdma = "" if isinstance(enabled, Unknown) else "rdma on" if enabled else "rdma off"
    parts = (known(operator.state, "state unknown"), f"driver {driver}".strip(), rdma)
    return ", ".join(filter(None, parts))


def _network_operator(operator: NetworkOperator) -> str:
    driver = _shown(operator.ofed_version, lambda version: f"OFED {version}", "no NIC driver")
    return f"{known(operator.state, 'state unknown')}, {driver}"


def _containers(listed: tuple[ContainerState, ...]) -> str:
    waiting = [container for container in listed if not container.ready and container.reason != "Completed"]
    if not waiting:
        return f"{plural(len(listed), 'container')}, all ready"
    return "; ".join(state_of(container) for container in waiting[:_MOST_WAITING])


def _nics(node: Node) -> str:
    """Return the RDMA NICs, which are those that the verdict counts."""
    pci = node.pci
    if isinstance(pci, Unknown):
        return f"unknown ({pci})"
    models = _models(rdma_functions(node), pci, {})
    return models or _shown(node.rdma, lambda _: _NO_NIC, _NO_NIC)


def _models(functions: Iterable[PciFunction], pci: PciFacts, names: dict[str, str]) -> str:
    """Return the models with their number: "8 × ConnectX-7, 2 × ConnectX-6 Dx"; `names`: by address."""
    found = (names.get(function.bdf) or pci.names.get(function.bdf, "") for function in functions)
    models = [_IN_BRACKETS.sub(r"\1", name) or "unknown model" for name in found]
    return ", ".join(f"{models.count(model)} × {model}" for model in dict.fromkeys(models))


def _shown(fact: Maybe[T], show: Callable[[T], str], absent: str = "none") -> str:
    if not isinstance(fact, Unknown):
        return show(fact)
    return absent if fact.reason is Reason.NOT_THERE else f"unknown ({fact})"


def _value(fact: Enum) -> str:
    return str(fact.value)


def _gpu_driver_text(driver: DriverPackage) -> str:
    flavor = "" if isinstance(driver.is_open, Unknown) else module_flavor(driver.is_open)
    built = "DKMS" if driver.by_dkms is True else "prebuilt" if driver.prebuilt is True else ""
    origin = _shown(driver.origin, _value) if not isinstance(driver.origin, Unknown) else ""
    version = _shown(driver.version, str, "no module for this kernel")
    return ", ".join(filter(None, (version, flavor, origin, built)))


def _nic_driver_text(driver: NicDriver) -> str:
    stack, version = _shown(driver.stack, _value), known(driver.version, "")
    return ", ".join(filter(None, (stack, version, "DKMS" if driver.by_dkms is True else "")))


def state_of(container: ContainerState) -> str:
    """Return what a container does, in one line: "nvidia-peermem-ctr: waiting for MOFED"."""
    message = message_of(container)
    words = "" if message is None else _MESSAGES.get(message, message.value)
    if not words:
        words = "ready" if container.ready else container.reason or "not ready"
    return f"{container.name}: {words}"
