"""Which extended resources and device classes of Kubernetes are RDMA devices, GPUs, or neither.

Names and their owners: READMEs of Mellanox/k8s-rdma-shared-dev-plugin, k8snetworkplumbingwg/
sriov-network-device-plugin and sriov-network-operator; Network Operator; aws-efa-k8s-device-plugin; GKE, ACK
and AMD documentation; Project-HAMi. An admin may choose any name, so others are unknown.
"""

from __future__ import annotations

import re

from probes.base.unknown import Maybe, Reason, Unknown

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
    matches = (kind for names, kind in _PLUGINS if re.fullmatch(names, name, re.IGNORECASE))
    found = next(matches, None)
    return Unknown(Reason.NOT_RECORDED, name, "not the name of a known plugin") if found is None else found


def is_gpu_class(name: str) -> bool:
    """Return whether a device class of Dynamic Resource Allocation is a GPU."""
    return bool(_GPU_CLASS.fullmatch(name))
