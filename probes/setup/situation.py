"""Where a node stands: distribution, drivers, boot, cloud, Slurm and Kubernetes.

Each part is read by one file of probes/facts; this is the whole that setup, manifests and environment ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Maybe
from probes.facts.gpu.driver_package import DriverPackage
from probes.facts.kernel.boot import BootFacts
from probes.facts.rdma.nic_driver import NicDriver
from probes.facts.system.cloud import Cloud
from probes.facts.system.distribution import Distribution
from probes.facts.system.kubernetes import KubernetesFacts
from probes.facts.system.slurm import SlurmFacts
from probes.snapshot.examination import Examination


@dataclass(frozen=True)
class Situation:
    """What setup needs to know of a node besides its examination."""

    examination: Examination
    distribution: Maybe[Distribution]
    gpu_driver: Maybe[DriverPackage]  # NOT_THERE: no driver is installed
    nic_driver: Maybe[NicDriver]  # NOT_THERE: no RDMA driver is installed
    boot: Maybe[BootFacts]
    cloud: Maybe[Cloud]  # NOT_THERE: no known cloud
    slurm: Maybe[SlurmFacts]  # NOT_THERE: no Slurm
    kubernetes: Maybe[KubernetesFacts]  # NOT_THERE: no kubectl, no kubelet
