"""Where a node stands: distribution, drivers, boot, cloud, Slurm and Kubernetes.

Each part is read by one file of probes/facts; this is the whole that setup, manifests and environment ask.
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, map_known
from probes.facts.gpu import driver_package
from probes.facts.gpu.driver_package import DriverPackage, DriverTraces
from probes.facts.kernel import boot
from probes.facts.kernel.boot import BootFacts
from probes.facts.rdma import nic_driver
from probes.facts.rdma.nic_driver import NicDriver, NicTraces
from probes.facts.system import cloud, distribution, kubernetes, slurm
from probes.facts.system.cloud import Cloud
from probes.facts.system.distribution import Distribution
from probes.facts.system.kubernetes import KubernetesFacts
from probes.facts.system.slurm import SlurmFacts
from probes.host.probe_table import ProbedFields, Probing, probes_of
from probes.host.protocol import Host
from probes.snapshot.examination import EXAMINE_SECONDS, Examination


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


def _boot(run: _Situating) -> Maybe[BootFacts]:
    system = run.answer("distribution", Distribution)
    return boot.probe(run.host, system, run.examination.node.kernel_release)


def _kubernetes(run: _Situating) -> Maybe[KubernetesFacts]:
    hostname = map_known(run.examination.node.platform, lambda platform: platform.hostname)
    return kubernetes.probe(run.host, hostname)


_probed: ProbedFields[_Situating] = ProbedFields()


@frozen
class Situation:
    """What setup needs to know of a node besides its examination."""

    examination: Examination
    distribution: Maybe[Distribution] = _probed("distribution", lambda run: distribution.probe(run.host))
    # NOT_THERE: no driver is installed.
    gpu_driver: Maybe[DriverPackage] = _probed("GPU driver package", _gpu_driver, directories=("/usr",))
    # NOT_THERE: no RDMA driver is installed.
    nic_driver: Maybe[NicDriver] = _probed("NIC driver", _nic_driver)
    boot: Maybe[BootFacts] = _probed("boot", _boot, needs=("distribution",), directories=("/boot",))
    # NOT_THERE: no known cloud.
    cloud: Maybe[Cloud] = _probed("cloud", lambda run: cloud.probe(run.host))
    # NOT_THERE: no Slurm.
    slurm: Maybe[SlurmFacts] = _probed("Slurm", lambda run: slurm.probe(run.host), directories=("/etc",))
    # NOT_THERE: no kubelet.
    kubernetes: Maybe[KubernetesFacts] = _probed("Kubernetes", _kubernetes)


PROBES = probes_of(Situation)


def read_situation(host: Host, examination: Examination, seconds: float = EXAMINE_SECONDS) -> Situation:
    """Run every probe of setup, each within `seconds`; one that fails affects only its own field."""
    answers = _Situating(host, seconds, examination).run(PROBES)
    return Situation(examination=examination, **answers)
