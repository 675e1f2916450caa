"""What every manifest is made from: the node, the path, and who installs the drivers."""

from __future__ import annotations

import re
from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage
from probes.facts.gpu.generations import BLACKWELL, TURING, is_before
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.distribution import Distribution, Family
from probes.facts.system.kubernetes import GpuOperator, KubernetesFacts, NetworkOperator
from probes.queries.modules import has_efa_only, ofed_of, plugin_only_driver
from probes.setup.situation import PathChoice, Situation, choose_path
from probes.snapshot.nic_roles import Role, roles_of

_VERSION = re.compile(r"\d{3,4}\.\d{1,3}(?:\.\d{1,3})?", re.ASCII)


class DriverOwner(Enum):
    """Who installs the NVIDIA driver on the nodes."""

    HOST = "host"
    OPERATOR = "operator"


@frozen
class Refused:
    """Why there is no such manifest for this node and path, as a sentence without a full stop."""

    reason: str
    is_impossible: bool = False  # no path can ever work on this node


@frozen
class ManifestRequest:
    """One node and the choices of the admin."""

    situation: Situation
    choice: PathChoice
    path: GdrPath
    driver: Maybe[DriverOwner]
    role: str = "worker"  # MachineConfig: the pool
    talos_version: tuple[int, int] | None = None  # None: not given and not read


def make_request(
    situation: Situation,
    path: GdrPath | None = None,
    driver: DriverOwner | None = None,
    role: str = "worker",
    talos_version: tuple[int, int] | None = None,
) -> ManifestRequest | Refused:
    """Fill in what the admin did not choose: the recommended path, and who installs the driver here."""
    choice = choose_path(situation.examination)
    if choice.is_impossible:
        return Refused(f"GPUDirect RDMA cannot work on it ({choice.reason})", is_impossible=True)
    if (chosen := path or choice.recommended) is None:
        return Refused(f"gdrtop recommends no path here ({choice.reason}). Choose one with --path")
    if reason := _excluded(situation, chosen):
        return Refused(reason)
    owner = driver or driver_owner(situation)
    return ManifestRequest(situation, choice, chosen, owner, role, talos_version or read_talos(situation))


def _excluded(situation: Situation, path: GdrPath) -> str:
    """Return why this node's hardware or system can never use a path, or ""."""
    gpus = situation.examination.node.gpus
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    old = [is_before(gpu.compute_capability, TURING) for gpu in found]
    if path is GdrPath.DMABUF and old and all(old):
        return "DMA-BUF needs compute capability 7.5 or newer; the GPUs of this node are older"
    if path is not GdrPath.CXI and plugin_only_driver(situation.examination).startswith("cxi"):
        return "the NICs are Slingshot, which uses libfabric; leave out --path"
    if path is GdrPath.PEERMEM:
        if has_efa_only(situation.examination):
            return "the NICs are EFA, which does not use nvidia-peermem"
        if family_of(situation) is Family.TALOS:
            return "Talos has no OFED, so nvidia-peermem cannot register there; use --path dmabuf"
    return ""


def family_of(situation: Situation) -> Family | None:
    """Return the distribution's family; None: unknown."""
    found = situation.distribution
    return found.family if isinstance(found, Distribution) else None


def read_talos(situation: Situation) -> tuple[int, int] | None:
    """Return the version of Talos on this node; None: it is another system."""
    found = situation.distribution
    if not isinstance(found, Distribution) or found.family is not Family.TALOS:
        return None
    match = re.match(r"v?(\d{1,3})\.(\d{1,3})(?!\d)", found.version)
    return (int(match[1]), int(match[2])) if match else None


def driver_owner(situation: Situation) -> Maybe[DriverOwner]:
    """Return who installs the NVIDIA driver on nodes like this one."""
    examination, package = situation.examination, situation.gpu_driver
    origin = package.origin if isinstance(package, DriverPackage) else package
    if origin is DriverOrigin.CONTAINER:
        return DriverOwner.OPERATOR
    if not isinstance(origin, Unknown):
        return DriverOwner.HOST
    container = map_known(examination.driver_container, lambda traces: traces.driver)
    if container is True:
        return DriverOwner.OPERATOR
    family = family_of(situation)
    if family is Family.TALOS:
        return DriverOwner.HOST  # a system extension
    if family in (Family.COREOS, Family.CONTAINER_OS):
        return DriverOwner.OPERATOR
    gpus = examination.node.gpus
    if container is False and isinstance(gpus, GpuFacts) and isinstance(gpus.driver.version, str):
        return DriverOwner.HOST
    operator = gpu_operator(situation)
    if operator is not None and not isinstance(operator.driver_enabled, Unknown):
        return DriverOwner.OPERATOR if operator.driver_enabled else DriverOwner.HOST
    detail = "no driver is installed, or its origin could not be read"
    return Unknown(Reason.NOT_THERE, "the NVIDIA driver", detail)


def kubernetes_of(situation: Situation) -> KubernetesFacts | None:
    """Return what is known of Kubernetes; None: nothing."""
    return situation.kubernetes if isinstance(situation.kubernetes, KubernetesFacts) else None


def gpu_operator(situation: Situation) -> GpuOperator | None:
    """Return the cluster's ClusterPolicy; None: there is none, or it could not be read."""
    cluster = kubernetes_of(situation)
    return cluster.gpu_operator if cluster and isinstance(cluster.gpu_operator, GpuOperator) else None


def network_operator(situation: Situation) -> NetworkOperator | None:
    """Return the cluster's NicClusterPolicy; None: there is none, or it could not be read."""
    cluster = kubernetes_of(situation)
    found = cluster.network_operator if cluster else None
    return found if isinstance(found, NetworkOperator) else None


def nic_stack(situation: Situation) -> Maybe[NicStack]:
    """Return where the RDMA modules come from; without the NIC driver's facts, from ofed_info."""
    driver = situation.nic_driver
    if isinstance(driver, NicDriver) and not isinstance(driver.stack, Unknown):
        return driver.stack
    traces = situation.examination.driver_container
    if not isinstance(traces, Unknown) and traces.mofed is True:
        return NicStack.CONTAINER
    release = ofed_of(situation.examination)
    if isinstance(release, Unknown):
        return NicStack.INBOX if release.reason is Reason.NOT_THERE else release
    return NicStack.MLNX_OFED if release.startswith("MLNX") else NicStack.DOCA_OFED


def has_host_ofed(situation: Situation) -> bool:
    """Return whether OFED is installed on the host itself."""
    stack = nic_stack(situation)
    return not isinstance(stack, Unknown) and stack.is_ofed


def driver_version(situation: Situation) -> str:
    """Return the installed driver's version, "580.95.05"; "" where it is unknown or not a version."""
    package, gpus = situation.gpu_driver, situation.examination.node.gpus
    version = package.version if isinstance(package, DriverPackage) else package
    if isinstance(version, Unknown) and isinstance(gpus, GpuFacts):
        version = gpus.driver.version
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""


def has_nvlink5(situation: Situation) -> bool:
    """Return whether GPUs have NVLink 5 switches, which are managed through ib_umad (B200, B300)."""
    gpus = situation.examination.node.gpus
    found = gpus.gpus if isinstance(gpus, GpuFacts) else ()
    return any(
        known(gpu.compute_capability, (0, 0)) >= BLACKWELL.capability and known(gpu.nvlinks, 0)
        for gpu in found
    )


def compute_nics(situation: Situation) -> tuple[RdmaDevice, ...]:
    """Return the NICs for the traffic of GPUs, without storage and management."""
    examination = situation.examination
    roles = roles_of(examination.node, examination.topology)
    rdma = examination.node.rdma
    devices = rdma.devices if isinstance(rdma, RdmaFacts) else ()
    return tuple(
        device for device in devices if device.name in roles and roles[device.name].role is Role.COMPUTE
    )
