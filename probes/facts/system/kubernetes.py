"""Kubernetes as this node and, with kubectl or oc, its cluster show it.

It reads ClusterPolicy and NVIDIADriver of the GPU Operator, NicClusterPolicy, the name of the node,
and the driver pods of this node with the last lines of their logs. All requests only read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import parse_json, printable
from probes.base.unknown import (
    Maybe,
    Reason,
    Unknown,
    any_of,
    false_if_absent,
    first_known,
    is_there,
    known,
    map_known,
)
from probes.host.protocol import CommandOutput, Host

# The JSON of kubectl: only the fields that gdrtop reads, and what they say.
#
# Field names: NVIDIA gpu-operator v26.7.0, api/nvidia/v1/clusterpolicy_types.go and v1alpha1; Mellanox
# network-operator v26.7.0, api/v1alpha1/nicclusterpolicy_types.go; Kubernetes API, core/v1.

_MAX_ITEMS = 16
_MAX_TEXT = 253  # the longest name of an object
_CHART, _VERSION = "helm.sh/chart", "app.kubernetes.io/version"  # labels
_STATE = {"waiting": {"reason": None}, "terminated": {"reason": None}}
_CONTAINER = {"name": None, "ready": None, "restartCount": None, "state": _STATE, "lastState": _STATE}
_DRIVER = {
    "enabled": None,
    "version": None,
    "useNvidiaDriverCRD": None,
    "rdma": {"enabled": None, "useHostMofed": None},
}
# Every field that is read, in all objects: the others, such as variables with passwords, are dropped at once.
_FIELDS: dict[str, Any] = {
    "metadata": {"name": None, "namespace": None, "labels": dict.fromkeys((_CHART, _VERSION))},
    "spec": {**_DRIVER, "driver": _DRIVER, "ofedDriver": {"version": None}, "unschedulable": None},
    "status": {"state": None, "containerStatuses": [_CONTAINER], "initContainerStatuses": [_CONTAINER]},
}


@frozen
class ContainerState:
    """One container of a driver pod."""

    pod: str
    name: str  # "nvidia-peermem-ctr"
    ready: bool
    restarts: int
    reason: str  # waiting or terminated: "CrashLoopBackOff"; ""
    log: tuple[str, ...]  # last lines, cleaned; () where not read
    namespace: str = ""


@frozen
class GpuOperator:
    """The fields that decide how GPUDirect RDMA gets onto a node."""

    name: str  # "cluster-policy"
    state: Maybe[str]  # "ready", "notReady"
    version: Maybe[str]
    driver_enabled: Maybe[bool]
    driver_version: Maybe[str]
    rdma_enabled: Maybe[bool]
    use_host_mofed: Maybe[bool]
    uses_driver_crd: Maybe[bool]


@frozen
class NetworkOperator:
    """The NIC driver that the Network Operator installs."""

    name: str
    state: Maybe[str]
    ofed_version: Maybe[str]  # NOT_THERE: it installs no driver


Object = Mapping[str, Any]


def kept_fields(text: str) -> str:
    """Return the JSON of kubectl with only the fields that are read; "" for anything else."""
    found = objects(text)
    if isinstance(found, Unknown):
        return ""
    return json.dumps({"items": found}, separators=(",", ":"), sort_keys=True)


def objects(text: str) -> Maybe[tuple[Object, ...]]:
    """Parse the objects of a list, or the single object, that kubectl printed."""
    whole = parse_json(text)
    if not isinstance(whole, dict):
        return Unknown(Reason.MALFORMED, "kubectl", "the output is not a JSON object")
    items = whole.get("items", [whole])
    found = items[:_MAX_ITEMS] if isinstance(items, list) else []
    return tuple(_filtered(item, _FIELDS) for item in found if isinstance(item, dict))


def _filtered(value: Any, fields: Any) -> Any:
    """Return the part of a JSON value that `fields` names, with bounded texts and lists."""
    if isinstance(fields, dict):
        items = value if isinstance(value, dict) else {}
        return {key: _filtered(items[key], fields[key]) for key in fields if key in items}
    if isinstance(fields, list):
        listed = value if isinstance(value, list) else []
        return [_filtered(item, fields[0]) for item in listed[:_MAX_ITEMS]]
    return value if isinstance(value, bool | int) else _text(value)


def _text(value: Any) -> str | None:
    return printable(value, _MAX_TEXT) if isinstance(value, str) else None


def text_at(item: Object, *keys: str) -> Maybe[str]:
    """Return a text in an object; NOT_THERE: the object does not set it."""
    value = _at(item, keys)
    return value if isinstance(value, str) and value else _not_set(keys)


def flag_at(item: Object, *keys: str) -> Maybe[bool]:
    """Return a switch in an object; NOT_THERE: the object does not set it."""
    value = _at(item, keys)
    return value if isinstance(value, bool) else _not_set(keys)


def _at(item: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    return item


def _not_set(keys: tuple[str, ...]) -> Unknown:
    return Unknown(Reason.NOT_THERE, ".".join(keys), "not set")


def gpu_operator(policy: Object, drivers: Maybe[tuple[Object, ...]]) -> GpuOperator:
    """Read a ClusterPolicy; with useNvidiaDriverCRD its driver fields come from the NVIDIADriver object.

    Several NVIDIADriver objects share the nodes by label: then those fields are unknown.
    """
    uses_crd = flag_at(policy, "spec", "driver", "useNvidiaDriverCRD")
    driver: Maybe[Object] = {"spec": _at(policy, ("spec", "driver"))}
    if uses_crd is True:
        driver = _single(drivers)
    chart = text_at(policy, "metadata", "labels", _CHART)
    version = text_at(policy, "metadata", "labels", _VERSION)
    if isinstance(version, Unknown) and not isinstance(chart, Unknown):
        version = chart.removeprefix("gpu-operator-")
    return GpuOperator(
        name=_name(policy),
        state=text_at(policy, "status", "state"),
        version=version,
        driver_enabled=flag_at(policy, "spec", "driver", "enabled"),
        driver_version=map_known(driver, lambda item: text_at(item, "spec", "version")),
        rdma_enabled=_switch(driver, "rdma", "enabled"),
        use_host_mofed=_switch(driver, "rdma", "useHostMofed"),
        uses_driver_crd=false_if_absent(uses_crd),
    )


def _single(drivers: Maybe[tuple[Object, ...]]) -> Maybe[Object]:
    if isinstance(drivers, Unknown):
        return drivers
    if len(drivers) == 1:
        return drivers[0]
    count = f"{len(drivers)} NVIDIADriver objects" if drivers else "no NVIDIADriver object"
    reason = Reason.NOT_RECORDED if drivers else Reason.NOT_THERE
    return Unknown(reason, "nvidiadrivers.nvidia.com", count)


def _switch(driver: Maybe[Object], *keys: str) -> Maybe[bool]:
    """Return a switch of the driver, which is false by default."""
    return map_known(driver, lambda item: false_if_absent(flag_at(item, "spec", *keys)))


def network_operator(policy: Object) -> NetworkOperator:
    """Read a NicClusterPolicy."""
    return NetworkOperator(
        name=_name(policy),
        state=text_at(policy, "status", "state"),
        ofed_version=text_at(policy, "spec", "ofedDriver", "version"),
    )


def containers(pod: Object) -> tuple[ContainerState, ...]:
    """Read the containers of a pod, those that initialize it first, without their logs."""
    keys = ("initContainerStatuses", "containerStatuses")
    listed = [status for key in keys for status in _at(pod, ("status", key)) or ()]
    namespace = known(text_at(pod, "metadata", "namespace"), "")
    reasons = [("state", state, "reason") for state in _STATE]
    return tuple(
        ContainerState(
            pod=_name(pod),
            name=known(text_at(status, "name"), ""),
            ready=status.get("ready") is True,
            restarts=_count(status.get("restartCount")),
            reason=next(filter(None, (known(text_at(status, *path), "") for path in reasons)), ""),
            log=(),
            namespace=namespace,
        )
        for status in listed
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _name(item: Object) -> str:
    return known(text_at(item, "metadata", "name"), "")


# Traces of Kubernetes on a node: its pods, and the driver containers of the GPU and the Network Operator.
#
# The GPU driver's container mounts its file system at /run/nvidia/driver. The MOFED container creates
# /run/mellanox/drivers/.driver-ready when its modules are loaded.

DRIVER = "/run/nvidia/driver"
DRIVER_MODULES = f"{DRIVER}/lib/modules"
MOFED = "/run/mellanox/drivers"
MOFED_READY = f"{MOFED}/.driver-ready"
# Modules for storage over RDMA. They keep the IB core in use, so the MOFED container cannot replace it.
STORAGE = ("rpcrdma", "ib_isert", "ib_iser", "nvme_rdma", "nvmet_rdma", "ib_srp")
_MODULES_LIMIT_BYTES = 1 << 20
# The control group of all pods: with the systemd driver and cgroupfs, v2 and v1.
_PODS = tuple(
    f"/sys/fs/cgroup{controller}/{name}"
    for controller in ("", "/systemd", "/memory")
    for name in ("kubepods.slice", "kubepods")
)


@frozen
class DriverContainerFacts:
    """Traces of pods and driver containers."""

    driver: Maybe[bool]  # a driver container is running, or has run since boot
    releases: Maybe[tuple[str, ...]]  # kernels for which it has modules
    mofed: Maybe[bool]  # a MOFED container was started
    mofed_ready: Maybe[bool]
    storage_modules: Maybe[tuple[str, ...]]  # of STORAGE, loaded
    kubelet: bool = False  # a kubelet is running: pods have a control group


def probe_driver_containers(host: Host) -> DriverContainerFacts:
    """List the directories and read /proc/modules."""
    loaded = host.read("/proc/modules", _MODULES_LIMIT_BYTES)
    releases = host.names(DRIVER_MODULES)
    storage = map_known(loaded, lambda text: tuple(name for name in STORAGE if f"\n{name} " in f"\n{text}"))
    return DriverContainerFacts(
        driver=_filled(host.names(DRIVER)),
        releases=map_known(releases, lambda names: tuple(printable(name, 80) for name in names[:16])),
        mofed=is_there(host.names(MOFED)),
        mofed_ready=is_there(host.size(MOFED_READY)),
        storage_modules=storage,
        # Not listed, because the names in these directories are pod IDs.
        kubelet=any(not isinstance(host.access(path), Unknown) for path in _PODS),
    )


def _filled(names: Maybe[tuple[str, ...]]) -> Maybe[bool]:
    # The operator also creates the directory if the host has its own driver, but then it stays empty.
    return bool(names) if not isinstance(names, Unknown) else is_there(names)


# Questions to the API server with kubectl or oc, and why one has no answer.
#
# Only `get` and `logs` are run, with a limit of 3 s for each request and without a cache on disk. Once the
# API server does not answer, it is not asked again. Names are words of their own, so that recordings redact
# them. kubectl's messages: k8s.io/kubectl, pkg/cmd/util/helpers.go.

_OPTIONS = ("--request-timeout=3s", "--cache-dir=/dev/null")
_SECONDS = 5.0
_LOG_LINES = 20
_LOG_BYTES = 16384
_LINE_LENGTH = 400
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of objects and containers
_NOT_ASKED = Unknown(Reason.NOT_THERE, "kubectl", "neither kubectl nor oc is installed")


class Kubectl:
    """The first of the given programs that is installed."""

    def __init__(self, host: Host, programs: tuple[str, ...]) -> None:
        self._host = host
        self._programs = programs
        self.tool: Maybe[str] = _NOT_ASKED
        self.answers = False  # the API server has answered, if only by a refusal
        self._stopped: Unknown | None = None

    def get(self, kind: str, name: str) -> Maybe[Object]:
        """Return one object; NOT_THERE: the cluster has none of this name."""
        if _NAME.fullmatch(name) is None:
            return Unknown(Reason.MALFORMED, kind, f"“{printable(name, 80)}” is not a valid object name")
        absent = Unknown(Reason.NOT_THERE, kind, "no such object")
        return map_known(self._objects("get", kind, name), lambda found: found[0] if found else absent)

    def list(self, kind: str, *options: str) -> Maybe[tuple[Object, ...]]:
        """Return the objects of a kind; NOT_THERE: the cluster does not know the kind."""
        return self._objects("get", kind, *options)

    def log(self, container: ContainerState) -> tuple[str, ...]:
        """Return the last lines of a container's log; empty if it cannot be read."""
        names = (container.pod, container.namespace, container.name)
        if not all(_NAME.fullmatch(name) for name in names):
            return ()
        output = self._run(
            "logs",
            container.pod,
            *("--namespace", container.namespace, "--container", container.name),
            f"--tail={_LOG_LINES}",
            f"--limit-bytes={_LOG_BYTES}",
        )
        return () if isinstance(output, Unknown) else parse_log(output.stdout)

    def _objects(self, *words: str) -> Maybe[tuple[Object, ...]]:
        output = self._run(*words, "--output=json")
        return map_known(output, lambda answer: objects(answer.stdout))

    def _run(self, *words: str) -> Maybe[CommandOutput]:
        if self._stopped is not None:
            return self._stopped
        programs = self._programs if isinstance(self.tool, Unknown) else (self.tool,)
        for program in programs:
            output = self._host.run((program, *words, *_OPTIONS), _SECONDS)
            if isinstance(output, Unknown) and output.reason is Reason.NOT_THERE:
                continue
            if isinstance(output, Unknown):
                self._stopped = output
                return output
            self.tool = program
            return self._judged(output, words)
        self._stopped = _NOT_ASKED
        return _NOT_ASKED

    def _judged(self, output: CommandOutput, words: tuple[str, ...]) -> Maybe[CommandOutput]:
        if output.exit_status == 0:
            self.answers = True
            return output
        failure, is_final = parse_failure(output.stderr, words[1])
        if is_final:
            self._stopped = failure
        else:
            self.answers = True
        return failure


def without_variables(answer: Maybe[CommandOutput]) -> Maybe[CommandOutput]:
    """Return kubectl's objects with only the fields that are read: variables can have passwords."""
    if isinstance(answer, Unknown) or answer.argv[:1] not in (("kubectl",), ("oc",)):
        return answer
    if answer.argv[1:2] != ("get",):
        return answer
    return replace(answer, stdout=kept_fields(answer.stdout))


def parse_log(text: str) -> tuple[str, ...]:
    """Return the last lines of a log without blank ones, each cut to a length that can be shown."""
    lines = [printable(line, _LINE_LENGTH) for line in text.split("\n") if line.strip()]
    return tuple(lines[-_LOG_LINES:])


def parse_failure(stderr: str, what: str) -> tuple[Unknown, bool]:
    """Return why kubectl could not get `what`, a kind or a pod, and whether to stop asking the server."""
    text = stderr.lower()
    source = f"kubectl get {what}"

    def has(*phrases: str) -> bool:
        return any(phrase in text for phrase in phrases)

    if has("forbidden"):
        return Unknown(Reason.NEEDS_PERMISSION, source, f"to read {what} in the cluster"), False
    if has("you must be logged in", "unauthorized", "provide credentials"):
        return Unknown(Reason.NEEDS_PERMISSION, source, "this user is not logged in to the cluster"), True
    if has("doesn't have a resource type", "could not find the requested resource", "no matches for kind"):
        return Unknown(Reason.NOT_THERE, source, f"the cluster does not know {what}"), False
    if has("localhost:8080", "no configuration has been provided", "invalid configuration"):
        return Unknown(Reason.NOT_THERE, source, "this user has no kubeconfig for a cluster"), True
    if has("(notfound)"):
        return Unknown(Reason.NOT_THERE, source, f"no such {what}"), False
    if has("timeout", "timed out", "deadline exceeded"):
        return Unknown(Reason.TIMED_OUT, source, "the API server does not respond"), True
    if has("refused", "unable to connect", "no route to host", "no such host", "dial tcp", "x509", "tls:"):
        return Unknown(Reason.IO_ERROR, source, "cannot connect to the API server"), True
    first = next((line for line in stderr.split("\n") if line.strip()), "kubectl failed without a message")
    return Unknown(Reason.IO_ERROR, source, printable(first, 160)), True


@frozen
class KubernetesFacts:
    """What the node itself shows, then what the API server answers; Unknown: why it was not asked."""

    distribution: Maybe[str]  # "OpenShift", "k3s", "kubeadm", …
    tool: Maybe[str]  # "kubectl" or "oc", where the user has one that works
    node: Maybe[str]
    gpu_operator: Maybe[GpuOperator]
    network_operator: Maybe[NetworkOperator]
    containers: Maybe[tuple[ContainerState, ...]]
    is_cordoned: Maybe[bool] = _NOT_ASKED


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
    nic_policy = _first(kubectl.list("nicclusterpolicies.mellanox.com"))
    return KubernetesFacts(
        distribution=distribution,
        tool=kubectl.tool,
        node=map_known(node, lambda found: text_at(found, "metadata", "name")),
        gpu_operator=map_known(policy, lambda found: _gpu_operator(kubectl, found)),
        network_operator=map_known(nic_policy, network_operator),
        containers=map_known(node, lambda found: _containers(kubectl, found)),
        is_cordoned=map_known(node, lambda found: false_if_absent(flag_at(found, "spec", "unschedulable"))),
    )


def message_of(container: ContainerState) -> ContainerMessage | None:
    """Return what the newest known line of the container's log says."""
    for line in reversed(container.log):
        text = line.lower()
        found = next((message for words, message in _MESSAGES if words in text), None)
        if found is not None:
            return found
    return None


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
    waiting = [
        container
        for container in found
        if container.name in _LOGGED and not container.ready and container.reason != "Completed"
    ]
    logs = {id(container): kubectl.log(container) for container in waiting[:_MAX_LOGS]}
    return tuple(replace(container, log=logs.get(id(container), ())) for container in found)
