"""What containers with GPUs have for RDMA, and what they miss.

Sources: the pods of NVIDIA's k8s-rdma-shared-dev-plugin, SR-IOV device plugin and Network Operator;
Kubernetes, Device Plugins and Dynamic Resource Allocation; Linux drivers/infiniband/core/umem.c
(RLIMIT_MEMLOCK).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from probes.base.text import printable
from probes.base.unknown import known
from probes.queries.finding import Severity
from probes.setup.environment.assignments import GpuContainer, Problem
from probes.setup.environment.clouds import Stack
from probes.setup.environment.yaml_tree import Mapping, Scalar, Value
from probes.setup.environment.yaml_tree import Sequence as List
from probes.snapshot.examination import Examination

_GPU = re.compile(r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.{1,32})")
_VERBS = "/dev/infiniband"
_GKE = "networking.gke.io/interfaces"  # also brings the RDMA device of each interface
_ATTACHED = ("k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network", _GKE)


def gpu_containers(mapping: Mapping) -> Iterator[GpuContainer]:
    """Yield the containers with GPUs of a pod, or of a template of pods."""
    pod = _map(mapping, "spec")
    containers = pod.items.get("containers")
    if not isinstance(containers, List):
        return
    annotations = _map(_map(mapping, "metadata"), "annotations").items
    has_own_network = not _is_true(pod, "hostNetwork") and not any(name in annotations for name in _ATTACHED)
    mounts = [_text(_map(one, "hostPath"), "path") for one in _maps(pod, "volumes")]
    has_verbs = any(_VERBS.startswith(path.rstrip("/")) for path in mounts if path.startswith("/dev"))
    for container in containers.items:
        if not isinstance(container, Mapping):
            continue
        resources = _map(container, "resources")
        asked = {**_map(resources, "requests").items, **_map(resources, "limits").items}
        gpus = [_count(value) for name, value in asked.items() if _GPU.fullmatch(name)]
        if not gpus or gpus == [0]:
            continue
        security = _map(container, "securityContext")
        is_privileged = _is_true(security, "privileged")
        others = [name for name, value in asked.items() if "/" in name and _count(value) != 0]
        has_device = any(not _GPU.fullmatch(name) for name in others)
        added = _map(security, "capabilities").items.get("add")
        listed = added.items if isinstance(added, List) else []
        capabilities = {one.text for one in listed if isinstance(one, Scalar)}
        yield GpuContainer(
            printable(_text(container, "name"), 63),
            container.line,
            None if None in gpus else sum(filter(None, gpus)),
            is_privileged or has_device or "claims" in resources.items or has_verbs or _GKE in annotations,
            is_privileged or bool({"IPC_LOCK", "CAP_IPC_LOCK", "ALL"} & capabilities),
            has_own_network,
        )


def missing_devices(
    containers: Sequence[GpuContainer], examination: Examination, stack: Stack | None
) -> Iterator[Problem]:
    """Name what containers with GPUs need for RDMA; a warning if they have all GPUs of the node."""
    all_gpus = len(examination.topology.gpus)
    devices = examination.topology.devices.values()
    layers = {known(port.link_layer, "") for device in devices for port in device.ports}
    resource = "vpc.amazonaws.com/efa" if stack is Stack.EFA else "rdma/NAME"
    for one in containers:
        is_whole = one.gpus is not None and one.gpus >= max(2, all_gpus)
        severity = Severity.WARNING if is_whole else Severity.NOTE
        if not one.has_rdma:
            yield Problem(
                one.line,
                severity,
                f"Container {one.name} requests GPUs but no RDMA device",
                f"It has no {_VERBS}, so its traffic to other nodes uses TCP, without GPUDirect RDMA.",
                f"Add {resource}: 1 to resources.limits, with the name that the node's device plugin uses",
            )
        if not one.locks_memory and stack is not Stack.EFA:
            yield Problem(
                one.line,
                severity,
                f"Container {one.name} has no capability IPC_LOCK",
                "Registering memory fails if the runtime limits locked memory.",
                "Add securityContext.capabilities.add: [IPC_LOCK]",
            )
        if one.has_own_network and stack is None and layers == {"Ethernet"}:
            yield Problem(
                one.line,
                severity,
                f"The pod of container {one.name} has neither the host's network nor a second one",
                "RoCE needs the GID of a network interface in the pod.",
                "Attach a network (annotation k8s.v1.cni.cncf.io/networks), or set hostNetwork: true",
            )


def _map(mapping: Mapping, key: str) -> Mapping:
    value = mapping.items.get(key)
    return value if isinstance(value, Mapping) else Mapping(mapping.line)


def _maps(mapping: Mapping, key: str) -> list[Mapping]:
    value = mapping.items.get(key)
    return [one for one in value.items if isinstance(one, Mapping)] if isinstance(value, List) else []


def _text(mapping: Mapping, key: str) -> str:
    value = mapping.items.get(key)
    return value.text if isinstance(value, Scalar) else ""


def _is_true(mapping: Mapping, key: str) -> bool:
    return _text(mapping, key).lower() == "true"


def _count(value: Value) -> int | None:
    """Return the number of devices; None: not a number, as in a template."""
    text = value.text if isinstance(value, Scalar) else ""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
