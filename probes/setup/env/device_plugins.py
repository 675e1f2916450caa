"""Which extended resources and device classes of Kubernetes are RDMA devices, GPUs, or neither.

Names and their owners: READMEs of Mellanox/k8s-rdma-shared-dev-plugin, k8snetworkplumbingwg/
sriov-network-device-plugin and sriov-network-operator; Network Operator; aws-efa-k8s-device-plugin; GKE, ACK
and AMD documentation; Project-HAMi. An admin may choose any name, so others are unknown.
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown

EFA = "vpc.amazonaws.com/efa"
GPU = re.compile(r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.{1,32})")
_GPU_CLASS = re.compile(r"(?:gpu|mig)\.nvidia\.com")


@frozen
class _Plugin:
    """The names that one device plugin or driver gives."""

    names: re.Pattern[str]
    is_rdma: bool
    reason: str


def _plugin(names: str, is_rdma: bool, reason: str) -> _Plugin:
    return _Plugin(re.compile(names, re.IGNORECASE), is_rdma, reason)


_SPEAKING = r"(?:rdma|mlnx|mlx5?|hca|roce|infiniband|ib|sriov|hostdev|nic|efa|mrdma|dranet)"
# The first match counts.
_PLUGINS = (
    _plugin(r"rdma/.+", True, "k8s-rdma-shared-dev-plugin"),
    _plugin(re.escape(EFA), True, "EFA plugin of AWS"),
    _plugin(r"aliyun/erdma", True, "eRDMA controller of ACK"),
    _plugin(r"amd\.com/v?nic", True, "AMD Network Operator"),
    _plugin(r"(?:mellanox\.com|openshift\.io)/.+", True, "SR-IOV device plugin"),
    _plugin(r"networking\.gke\.io\.networks/.+", True, "networks of GKE"),
    _plugin(r"nvidia\.com/(?:gpu.*|mig-.+|.?gpu.*)", False, "GPUs or parts of them"),
    _plugin(r"nvidia\.com/(?:sriovlegacy|mlnxnics)", True, "Network Operator"),
    _plugin(rf"(?:nvidia|intel)\.com/(?:.*[-_.])?{_SPEAKING}(?:[-_.0-9].*|s)?", True, "SR-IOV device plugin"),
    _plugin(r"(?:amd|google|gpu\.intel|habana|aws\.amazon)\.(?:com|ai)/.+", False, "accelerators"),
    _plugin(r"intel\.com/(?:qat|sgx|dsa|dlb|iaa|vpu|fpga).*", False, "accelerators of CPUs"),
    _plugin(r"sgx\.intel\.com/.+|devices\.kubevirt\.io/.+|.*/fuse", False, "no network device"),
    _plugin(r"(?:attachable-volumes|.*ephemeral-storage|hugepages).*", False, "memory or storage"),
    # Device classes of Dynamic Resource Allocation.
    _plugin(r"mrdma\.google\.com|dra\.net|dranet.*", True, "DRANET"),
    _plugin(r"(?:.*\.)?compute-domain.*\.nvidia\.com", False, "IMEX channels"),
    _plugin(_GPU_CLASS.pattern, False, "GPUs"),
    _plugin(rf"(?:.*[-_.])?{_SPEAKING}(?:[-_.].*)?", True, "a network driver"),
)


def is_rdma(name: str) -> Maybe[bool]:
    """Return whether a resource or device class is an RDMA device; unknown for a name of the admin's own."""
    found = next((plugin.is_rdma for plugin in _PLUGINS if plugin.names.fullmatch(name)), None)
    return Unknown(Reason.NOT_RECORDED, name, "not the name of a known plugin") if found is None else found


def is_gpu_class(name: str) -> bool:
    """Return whether a device class of Dynamic Resource Allocation is a GPU."""
    return bool(_GPU_CLASS.fullmatch(name))
