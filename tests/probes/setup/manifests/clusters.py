"""The same node in a cluster, with another driver, or on another system."""

from dataclasses import replace
from typing import Any

from probes.base.unknown import Maybe
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.kubernetes import GpuOperator, KubernetesFacts, NetworkOperator
from probes.facts.system.packages import Distribution, Family
from probes.setup.situation import Situation
from tests.support.parsed_manifests import ABSENT, changed


def operator_facts(**fields: Any) -> GpuOperator:
    values: dict[str, Any] = {"driver_enabled": True, "uses_driver_crd": False, **fields}
    names = ("state", "version", "driver_version", "rdma_enabled", "use_host_mofed")
    unread: dict[str, Any] = dict.fromkeys(names, ABSENT)
    return GpuOperator(**{"name": "cluster-policy", **unread, **values})


def in_cluster(
    situation: Situation, gpu: Maybe[GpuOperator] = ABSENT, network: Maybe[NetworkOperator] = ABSENT
) -> Situation:
    facts = KubernetesFacts(
        distribution="kubeadm",
        tool="kubectl",
        node="node",
        gpu_operator=gpu,
        network_operator=network,
        containers=ABSENT,
    )
    return changed(situation, kubernetes=facts)


def with_driver_container(situation: Situation) -> Situation:
    package = DriverPackage("580.95.05", True, DriverOrigin.CONTAINER, ABSENT, ABSENT, ABSENT)
    return changed(situation, gpu_driver=package)


def on(situation: Situation, family: Family, version: str = "") -> Situation:
    system = Distribution("os", version, "An OS", family)
    return changed(situation, examination=replace(situation.examination, distribution=system))


def with_stack(situation: Situation, stack: NicStack) -> Situation:
    return changed(situation, nic_driver=NicDriver(stack, ABSENT, ABSENT, ABSENT, ABSENT))
