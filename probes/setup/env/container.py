"""What a container may use, whatever starts it, and how each kind of file says so."""

from __future__ import annotations

import re
from enum import Enum
from fnmatch import fnmatchcase

from probes.base.frozen import frozen
from probes.base.site import site
from probes.base.unknown import Maybe, Reason, Unknown

MANY = 9999  # all GPUs of a node


class Network(Enum):
    """The network namespace of a container."""

    HOST = "host"
    ATTACHED = "attached"  # its own, with an interface of a NIC
    OWN = "own"
    UNKNOWN = "unknown"


class Syntax(Enum):
    """What starts a container; the value is its table in container.toml."""

    KUBERNETES = "kubernetes"
    DOCKER = "docker"
    COMPOSE = "compose"
    OF_HOST = "host"  # Enroot and Apptainer use its devices, network and limits unless an option hides them


@frozen
class Container:
    """A container with GPUs, and what it has for RDMA."""

    subject: str  # "Container train", "Service vllm", "docker run": begins a title
    line: int
    syntax: Syntax
    gpus: int | None  # None: the number is unknown; MANY: all
    resources: tuple[str, ...] = ()  # what device plugins and drivers give it, without GPUs
    has_devices: bool = False  # the runtime passes in files of /dev/infiniband
    mounts_files: bool = False  # it sees them, which is no right to open them
    is_privileged: bool = False
    locks_memory: bool = False  # without a limit
    network: Network = Network.UNKNOWN
    has_shm: bool = False  # more than the 64 MiB that runtimes give
    hidden_by: str = ""  # the option that hides the host's devices
    elsewhere: str = ""  # the sentence that says which other container has the device files
    expects_rdma: bool = True  # something in it makes sense with RDMA only
    is_rootless: bool = False  # perhaps: then no device cgroup, only the modes of files count
    is_partial: bool = False  # a template, or a variable of a shell, may add anything


# Which extended resources and device classes of Kubernetes are RDMA devices, GPUs, or neither.
#
# Names and their owners: READMEs of Mellanox/k8s-rdma-shared-dev-plugin, k8snetworkplumbingwg/
# sriov-network-device-plugin and sriov-network-operator; Network Operator; aws-efa-k8s-device-plugin; GKE,
# ACK and AMD documentation; Project-HAMi. An admin may choose any name, so others are unknown.

EFA = "vpc.amazonaws.com/efa"
GPU = re.compile(r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.{1,32})")
_GPU_CLASS = re.compile(r"(?:gpu|mig)\.nvidia\.com")


_SPEAKING = r"(?:rdma|mlnx|mlx5?|hca|roce|infiniband|ib|sriov|hostdev|nic|efa|mrdma|dranet)"
# Whether a name is an RDMA device; the first match counts.
_PLUGINS = (
    (r"rdma/.+", True),  # k8s-rdma-shared-dev-plugin
    (re.escape(EFA), True),
    (r"aliyun/erdma", True),  # eRDMA controller of ACK
    (r"amd\.com/v?nic", True),  # AMD Network Operator
    (r"(?:mellanox\.com|openshift\.io)/.+", True),  # SR-IOV device plugin
    (r"networking\.gke\.io\.networks/.+", True),
    (r"nvidia\.com/(?:gpu.*|mig-.+|.?gpu.*)", False),
    (r"nvidia\.com/(?:sriovlegacy|mlnxnics)", True),  # Network Operator
    (rf"(?:nvidia|intel)\.com/(?:.*[-_.])?{_SPEAKING}(?:[-_.0-9].*|s)?", True),  # SR-IOV device plugin
    (r"(?:amd|google|gpu\.intel|habana|aws\.amazon)\.(?:com|ai)/.+", False),  # accelerators
    (r"intel\.com/(?:qat|sgx|dsa|dlb|iaa|vpu|fpga).*", False),  # accelerators of CPUs
    (r"sgx\.intel\.com/.+|devices\.kubevirt\.io/.+|.*/fuse", False),
    (r"(?:attachable-volumes|.*ephemeral-storage|hugepages).*", False),
    # Device classes of Dynamic Resource Allocation.
    (r"mrdma\.google\.com|dra\.net|dranet.*", True),  # DRANET
    (r"(?:.*\.)?compute-domain.*\.nvidia\.com", False),  # IMEX channels
    (_GPU_CLASS.pattern, False),
    (rf"(?:.*[-_.])?{_SPEAKING}(?:[-_.].*)?", True),  # a network driver
)


def is_rdma(name: str) -> Maybe[bool]:
    """Return whether a resource or device class is an RDMA device; unknown for a name of the admin's own."""
    if any(fnmatchcase(name, each) for each in _of_site()):
        return True
    matches = (kind for names, kind in _PLUGINS if re.fullmatch(names, name, re.IGNORECASE))
    found = next(matches, None)
    return Unknown(Reason.NOT_RECORDED, name, "not the name of a known plugin") if found is None else found


def device_name(is_efa: bool) -> str:
    """Return the resource that a pod here has to ask for, as far as it is known."""
    return EFA if is_efa else next((name for name in _of_site() if "*" not in name), "rdma/NAME")


def _of_site() -> list[str]:
    return [name.strip() for name in site().places.rdma_resources.split(",") if name.strip()]


def is_gpu_class(name: str) -> bool:
    """Return whether a device class of Dynamic Resource Allocation is a GPU."""
    return bool(_GPU_CLASS.fullmatch(name))
