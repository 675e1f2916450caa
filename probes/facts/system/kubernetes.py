"""Kubernetes as this node and, with kubectl or oc, its cluster show it.

It reads ClusterPolicy and NVIDIADriver of the GPU Operator, NicClusterPolicy, the labels of the node,
and the driver pods of this node with the last lines of their logs. All requests only read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, any_of, first_known, is_there, map_known
from probes.facts.system.driver_container import MOFED
from probes.facts.system.kubectl import Kubectl
from probes.facts.system.kubernetes_objects import (
    LABELS,
    ContainerState,
    GpuOperator,
    NetworkOperator,
    Object,
    containers,
    gpu_operator,
    network_operator,
    text_at,
    texts_at,
)
from probes.host.protocol import Host

__all__ = [
    "ContainerMessage",
    "ContainerState",
    "GpuOperator",
    "KubernetesFacts",
    "NetworkOperator",
    "message_of",
    "waits_for_nic_driver",
]


@frozen
class KubernetesFacts:
    """What the node itself shows, then what the API server answers; Unknown: why it was not asked."""

    distribution: Maybe[str]  # "OpenShift", "k3s", "kubeadm", …
    tool: Maybe[str]  # "kubectl" or "oc", where the user has one that works
    node: Maybe[str]
    gpu_operator: Maybe[GpuOperator]
    network_operator: Maybe[NetworkOperator]
    containers: Maybe[tuple[ContainerState, ...]]
    labels: Maybe[dict[str, str]]  # of this node, the operators' only


class ContainerMessage(Enum):
    """What the last known line of a driver container's log says."""

    WAITING_FOR_DRIVERS = "waiting for the NIC driver and the GPU driver"
    WAITING_FOR_NVLINK = "waiting for mlx5_core and ib_umad"
    PEERMEM_LOADED = "loaded nvidia_peermem"
    PEERMEM_FAILED = "failed to load nvidia_peermem"
    PEERMEM_IN_USE = "nvidia_peermem is in use, so OFED cannot be reloaded"
    DRIVER_IN_USE = "the driver is in use, so it cannot be unloaded"
    STORAGE_MODULES = "storage modules are loaded, so OFED cannot be reloaded"


# NVIDIA gpu-driver-container @ 06a208c, ubuntu24.04/nvidia-driver; Mellanox doca-driver-build @ 445df1e,
# entrypoint/internal/entrypoint/entrypoint.go.
_MESSAGES = (
    ("waiting for mellanox ofed and nvidia drivers to be installed", ContainerMessage.WAITING_FOR_DRIVERS),
    ("waiting for the mlx5_core and ib_umad kernel modules", ContainerMessage.WAITING_FOR_NVLINK),
    ("successfully loaded nvidia-peermem module", ContainerMessage.PEERMEM_LOADED),
    ("nvidia-peermem module already loaded", ContainerMessage.PEERMEM_LOADED),
    ("failed to load nvidia-peermem module", ContainerMessage.PEERMEM_FAILED),
    ("failed to unload nvidia_peermem module", ContainerMessage.PEERMEM_IN_USE),
    ("could not unload nvidia driver kernel modules, driver is in use", ContainerMessage.DRIVER_IN_USE),
    ("storage modules are loaded for current driver", ContainerMessage.STORAGE_MODULES),
)
PEERMEM_CONTAINER = "nvidia-peermem-ctr"
_LOGGED = (PEERMEM_CONTAINER, "nvidia-driver-ctr", "mofed-container", "k8s-driver-manager")
_MAX_LOGS = 4
VALIDATIONS = "/run/nvidia/validations"  # NVIDIA gpu-operator v26.7.0, cmd/nvidia-validator/main.go
_KUBELET = ("/var/lib/kubelet", "/etc/kubernetes", "/var/lib/rancher", "/var/snap/microk8s", "/var/lib/k0s")
# The first path that exists names the distribution.
_DISTRIBUTIONS = (
    ("/etc/machine-config-daemon", "OpenShift"),
    ("/etc/rancher/rke2", "RKE2"),
    ("/etc/rancher/k3s", "k3s"),
    ("/var/lib/rancher/k3s", "k3s"),
    ("/var/snap/microk8s", "MicroK8s"),
    ("/var/lib/k0s", "k0s"),
    ("/etc/eks", "EKS"),
    ("/etc/kubernetes/azure.json", "AKS"),
    ("/home/kubernetes", "GKE"),
    ("/var/lib/kubelet/kubeadm-flags.env", "kubeadm"),
    ("/etc/kubernetes/kubelet.conf", "kubeadm"),
)


def probe(host: Host, hostname: Maybe[str]) -> Maybe[KubernetesFacts]:
    """Read the traces on the node, then ask the API server; NOT_THERE: the node is not in a cluster."""
    markers = first_known(map(host.names, (VALIDATIONS, MOFED)), VALIDATIONS)
    kubelet = any_of(is_there(host.access(path)) for path in _KUBELET)
    if isinstance(markers, Unknown) and isinstance(kubelet, Unknown):
        return kubelet
    if isinstance(markers, Unknown) and not kubelet:
        return Unknown(Reason.NOT_THERE, _KUBELET[0], "no Kubernetes on this node")
    distribution = _distribution(host)
    kubectl = Kubectl(host, ("oc", "kubectl") if distribution == "OpenShift" else ("kubectl", "oc"))
    node = _node(kubectl, hostname)
    policy = _first(kubectl.list("clusterpolicies.nvidia.com"))
    return KubernetesFacts(
        distribution=distribution,
        tool=kubectl.tool,
        node=map_known(node, lambda found: text_at(found, "metadata", "name")),
        gpu_operator=map_known(policy, lambda found: _gpu_operator(kubectl, found)),
        network_operator=map_known(_first(kubectl.list("nicclusterpolicies.mellanox.com")), network_operator),
        containers=map_known(node, lambda found: _containers(kubectl, found)),
        labels=map_known(node, lambda found: _with(LABELS, texts_at(found, "metadata", "labels"))),
    )


def message_of(container: ContainerState) -> ContainerMessage | None:
    """Return what the newest known line of the container's log says."""
    for line in reversed(container.log):
        text = line.lower()
        found = next((message for words, message in _MESSAGES if words in text), None)
        if found is not None:
            return found
    return None


def waits_for_nic_driver(facts: Maybe[KubernetesFacts]) -> Maybe[bool]:
    """Return whether the operator's peermem container waits for the NIC driver or the GPU driver."""
    found = map_known(facts, lambda known_facts: known_facts.containers)
    if isinstance(found, Unknown):
        return found
    waiting = [row for row in found if row.name == PEERMEM_CONTAINER and not row.ready]
    return any(message_of(container) is ContainerMessage.WAITING_FOR_DRIVERS for container in waiting)


def known_phrases(text: str) -> tuple[str, ...]:
    """Return what `message_of` knows in each line of a container's log."""
    return tuple(words for line in text.split("\n") for words, _ in _MESSAGES if words in line.lower())


def _distribution(host: Host) -> Maybe[str]:
    for path, name in _DISTRIBUTIONS:
        if not isinstance(host.access(path), Unknown):
            return name
    return Unknown(Reason.NOT_THERE, _KUBELET[1], "no known distribution")


def _node(kubectl: Kubectl, hostname: Maybe[str]) -> Maybe[Object]:
    """Return this node's object: kubelet calls it by the host name, in full or its first part."""
    if isinstance(hostname, Unknown):
        return hostname
    name = hostname.lower()
    found = kubectl.get("node", name)
    if isinstance(found, Unknown) and found.reason is Reason.NOT_THERE and kubectl.answers:
        return _first(kubectl.list("nodes", "--selector", f"kubernetes.io/hostname={name}"))
    return found


def _first(found: Maybe[tuple[Object, ...]]) -> Maybe[Object]:
    absent = Unknown(Reason.NOT_THERE, "kubectl", "no such object in the cluster")
    return map_known(found, lambda listed: listed[0] if listed else absent)


def _gpu_operator(kubectl: Kubectl, policy: Object) -> GpuOperator:
    without = gpu_operator(policy, Unknown(Reason.NOT_THERE, "nvidiadrivers.nvidia.com"))
    if without.uses_driver_crd is not True:
        return without
    return gpu_operator(policy, kubectl.list("nvidiadrivers.nvidia.com"))


def _containers(kubectl: Kubectl, node: Object) -> Maybe[tuple[ContainerState, ...]]:
    """Return the containers of the driver pods on this node, with logs of those that are not ready."""
    name = text_at(node, "metadata", "name")
    if isinstance(name, Unknown):
        return name
    found: list[ContainerState] = []
    for label in ("app.kubernetes.io/component=nvidia-driver", "nvidia.com/ofed-driver"):
        pods = kubectl.list(
            "pods", "--all-namespaces", "--selector", label, "--field-selector", f"spec.nodeName={name}"
        )
        if isinstance(pods, Unknown):
            return pods
        found += [container for pod in pods for container in containers(pod)]
    return _with_logs(found, kubectl.log)


def _with_logs(
    found: list[ContainerState], log: Callable[[ContainerState], tuple[str, ...]]
) -> tuple[ContainerState, ...]:
    waiting = [
        container
        for container in found
        if container.name in _LOGGED and not container.ready and container.reason != "Completed"
    ]
    logs = {id(container): log(container) for container in waiting[:_MAX_LOGS]}
    return tuple(replace(container, log=logs.get(id(container), ())) for container in found)


def _with(prefixes: tuple[str, ...], values: dict[str, str]) -> dict[str, str]:
    return {printable(key, 253): value for key, value in values.items() if key.startswith(prefixes)}
