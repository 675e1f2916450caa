"""Kubernetes as this node and, with kubectl or oc, its cluster show it.

It reads ClusterPolicy and NVIDIADriver of the GPU Operator, NicClusterPolicy, the labels of the node,
and the driver pods of this node with the last lines of their logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Maybe


@dataclass(frozen=True)
class ContainerState:
    """One container of a driver pod."""

    pod: str
    name: str  # "nvidia-peermem-ctr"
    ready: bool
    restarts: int
    reason: str  # waiting or terminated: "CrashLoopBackOff"; ""
    log: tuple[str, ...]  # last lines, cleaned; () where not read


@dataclass(frozen=True)
class GpuOperator:
    """The fields that decide how GPUDirect RDMA gets onto a node."""

    name: str  # "cluster-policy"
    state: Maybe[str]  # "ready", "notReady"
    version: Maybe[str]
    driver_enabled: Maybe[bool]
    driver_version: Maybe[str]
    module_type: Maybe[str]  # "auto", "open", "proprietary"
    rdma_enabled: Maybe[bool]
    use_host_mofed: Maybe[bool]
    uses_driver_crd: Maybe[bool]
    gdrcopy_enabled: Maybe[bool]


@dataclass(frozen=True)
class NetworkOperator:
    """The NIC driver that the Network Operator installs."""

    name: str
    state: Maybe[str]
    ofed_version: Maybe[str]  # NOT_THERE: it installs no driver
    shared_device_plugin: Maybe[bool]


@dataclass(frozen=True)
class KubernetesFacts:
    """What the node itself shows, then what the API server answers; Unknown: why it was not asked."""

    distribution: Maybe[str]  # "OpenShift", "k3s", "kubeadm", …
    tool: Maybe[str]  # "kubectl" or "oc", where the user has one that works
    node: Maybe[str]
    gpu_operator: Maybe[GpuOperator]
    network_operator: Maybe[NetworkOperator]
    containers: Maybe[tuple[ContainerState, ...]]
    labels: Maybe[dict[str, str]]  # of this node, the operators' only
    allocatable: Maybe[dict[str, str]]  # "nvidia.com/gpu": "8", "rdma/…"
    ready_markers: Maybe[tuple[str, ...]]  # names in /run/nvidia/validations and /run/mellanox/drivers
