"""A DaemonSet that keeps the labels and the condition of every GPU node up to date.

One container is Node Problem Detector (NPD) with gdrtop as its plugin, the other writes the feature file for
Node Feature Discovery. Kubernetes API: apps/v1, rbac.authorization.k8s.io/v1; its default ClusterRole
system:node-problem-detector. NPD's options: kubernetes/node-problem-detector, cmd/options/options.go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, judge, served_gpus
from probes.facts.gpudirect import GdrPath
from probes.setup.manifests.manifest_text import (
    Commented,
    DriverOwner,
    ManifestRequest,
    Refused,
    command_line,
    comment_lines,
    dump,
    head,
    join,
)
from probes.setup.situation import PathChoice
from probes.snapshot.verdict import State

# A condition of the Kubernetes node: Node Problem Detector (NPD) runs `gdrtop check --for npd`.
#
# Format and behavior: kubernetes/node-problem-detector @ 6632ca67, docs/custom_plugin_monitor.md,
# pkg/custompluginmonitor/types/config.go, plugin/plugin.go, Dockerfile and cmd/options/options.go.

CONDITION = "GPUDirectRDMADegraded"
FILE = "gdrtop.json"
GDRTOP = "/opt/gdrtop/bin/gdrtop"
HOST = ("--host", "host", "--over", "chroot /{host}")
"""Options with which gdrtop in a container reads the node whose / is at /host, with its commands."""
# A Python that cannot start ends with 1 and no text, which would be a problem of the node; 3 is unknown.
_GUARD = 't=$("$0" "$@"); s=$?; [ $s != 1 ] || [ "$t" ] || s=3; echo "$t"; exit $s'
_CHECK_SECONDS = 30  # as long as a device that does not answer may delay a check, and a CPU limit
_NPD_IMAGE = "registry.k8s.io/node-problem-detector/node-problem-detector:v1.36.0"
_DOCKERFILE = (
    f"FROM {_NPD_IMAGE}",
    "RUN clean-install python3 python3-venv",
    "COPY wheels /wheels",
    "RUN python3 -m venv /opt/gdrtop &&",
    "    /opt/gdrtop/bin/pip install --no-index --find-links /wheels gdrtop",
)


def npd(request: ManifestRequest) -> str | Refused:
    """Return a ConfigMap with the plugin's configuration, and what NPD's container needs to run it."""
    use = [
        "kubectl apply --dry-run=server --validate=strict --filename FILE    changes nothing",
        "kubectl apply --filename FILE",
        "kubectl --namespace kube-system edit daemonset node-problem-detector    (below)",
        f"kubectl get nodes -o jsonpath='{{..conditions[?(@.type==\"{CONDITION}\")]}}'",
    ]
    notes = [
        f"the condition {CONDITION} is True where gdrtop finds a problem. NPD never taints a node",
        "a cluster without NPD needs only: gdrtop manifest daemonset",
        *reading_notes(request),
    ]
    title = "Node Problem Detector: custom plugin for GPUDirect RDMA"
    lines = head(request, title, use, notes)
    lines += comment_lines("What the DaemonSet of NPD needs, in addition to what it has:")
    lines += [
        command_line(text)
        for text in (
            "image: the one below, because NPD's own has no Python and no gdrtop",
            f"args: --config.custom-plugin-monitor=/gdrtop/{FILE}",
            "volumeMounts: this ConfigMap at /gdrtop; / of the node at /host, with readOnly: true",
            "hostPID: true and hostNetwork: true, for processes, routes and RDMA devices of the node",
            "resources: limits of 10m CPU and 80Mi, as in NPD's own example, are too low for gdrtop;",
            "    use at least 500m and 256Mi",
            "securityContext.privileged: true, which NPD's own example has",
        )
    ]
    return join([*lines, *image_lines()], dump(config_map("kube-system")))


def image_lines() -> list[str]:
    """Return comments that say how to build the image; none is published."""
    lines = comment_lines(
        "Build the image yourself; none is published. Make wheels/ as in gdrtop help install (Without "
        "internet), with Python 3.11 for this base:"
    )
    return [*lines, *map(command_line, _DOCKERFILE)]


def reading_notes(request: ManifestRequest) -> list[str]:
    """Return what limits what gdrtop reads of a node from a container."""
    notes = ["gdrtop sends its reader to the node's own Python 3.6 or newer: chroot /host python3"]
    if request.driver is DriverOwner.OPERATOR:
        notes.append(
            "nvidia-smi is in the driver's container and not in / of the node: what it shows is unknown"
        )
    return notes


def config_map(namespace: str) -> dict[str, Any]:
    """Return the ConfigMap from which NPD reads the plugin's configuration."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gdrtop-npd", "namespace": namespace},
        "data": {FILE: json.dumps(_plugin(), indent=2) + "\n"},
    }


def _plugin() -> dict[str, Any]:
    """Return the plugin's configuration.

    The reasons are CamelCase words. NPD's exit statuses: 0 is no problem, 1 is one, others are unknown. A
    rule's time limit must not exceed the plugin's.
    """
    return {
        "plugin": "custom",
        "pluginConfig": {
            "invoke_interval": "60s",
            "timeout": f"{_CHECK_SECONDS}s",
            "max_output_length": 80,
            "concurrency": 1,
            "enable_message_change_based_condition_update": True,
            "skip_initial_status": True,
        },
        "source": "gdrtop",
        "metricsReporting": True,
        "conditions": [
            {
                "type": CONDITION,
                "reason": "GPUDirectRDMAWorks",
                "message": "gdrtop finds no problem with GPUDirect RDMA",
            }
        ],
        "rules": [
            {
                "type": "permanent",
                "condition": CONDITION,
                "reason": "GPUDirectRDMABroken",
                "path": "/bin/sh",
                "args": ["-c", _GUARD, GDRTOP, "check", "--for", "npd", *HOST],
                "timeout": f"{_CHECK_SECONDS}s",
            }
        ],
    }


# A feature file for Node Feature Discovery: this node's GPUDirect RDMA as labels of its Kubernetes node.
#
# Format: kubernetes-sigs/node-feature-discovery @ 76e6cc8, docs/usage/customization-guide.md (Local feature
# source) and source/local/local.go. Label values: Kubernetes, Labels and Selectors.

DIRECTORY = "/etc/kubernetes/node-feature-discovery/features.d"
VALID_SECONDS = 900
_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PATHS = {GdrPath.DMABUF: "dmabuf", GdrPath.PEERMEM: "peermem", GdrPath.EFA: "efa", GdrPath.CXI: "cxi"}


def node_labels(request: ManifestRequest) -> str | Refused:
    """Return the file; refused where nothing is known that a label could say."""
    examination = request.situation.examination
    labels = labels_of(request)
    if isinstance(labels, Refused):
        return labels
    expiry = _expiry(examination.taken_at)
    if expiry is None:
        return Refused("the node's clock shows no time from which the labels could expire")
    use = [
        "gdrtop manifest nfd    shows the labels and changes nothing",
        f"cd {DIRECTORY}",
        "gdrtop manifest nfd >.gdrtop && mv .gdrtop gdrtop    NFD ignores names that begin with a dot",
        "kubectl get nodes -L gdrtop.io/path,gdrtop.io/gpus-direct",
    ]
    notes = [
        f"NFD ignores the labels {VALID_SECONDS // 60} minutes after the check, at its next discovery. Write"
        " the file again before that; gdrtop manifest daemonset does",
        "nfd-master must not deny the namespace gdrtop.io (-deny-label-ns)",
    ]
    lines = head(request, "Node Feature Discovery: feature file with GPUDirect RDMA labels", use, notes)
    rows = [f"gdrtop.io/{name}={value}" for name, value in labels.items()]
    return "\n".join([*lines, f"# +expiry-time={expiry}", *rows]) + "\n"


def labels_of(request: ManifestRequest) -> dict[str, str] | Refused:
    """Return the labels by their names without "gdrtop.io/"; what is unknown has none."""
    examination = request.situation.examination
    judgment, topology = judge(examination), examination.topology
    verdict = judgment.verdict
    if verdict.state is State.UNKNOWN:
        return Refused(f"the verdict is UNKNOWN, and nothing unknown becomes a label ({verdict.reason})")
    labels = {
        "path": _path(judgment, request.choice),
        "gpus-direct": str(verdict.gpus_served),
        "nics-direct": str(verdict.nics),
    }
    served = served_gpus(examination.usability, judgment.findings)
    for gpu in topology.gpus if verdict.path is not None else ():
        serving = served.get(gpu.id, ())
        nic = next((name for name in topology.best_nics.get(gpu.id, ()) if name in serving), None)
        if nic is None:
            continue
        labels[f"{gpu.label.lower()}-nic"] = nic
        word = topology.path(gpu.id, nic).nccl
        if not isinstance(word, Unknown):
            labels[f"{gpu.label.lower()}-nic-path"] = word.value
    return {name: value for name, value in labels.items() if _VALUE.fullmatch(value)}


def _path(judgment: Judgment, choice: PathChoice) -> str:
    """Return the path that new jobs get: where both work, not the one that a running job uses."""
    found = judgment.verdict.path
    if found is None:  # the data goes through host memory
        return "host"
    usable = [stated.path for stated in judgment.paths if stated.usable is True]
    return _PATHS[choice.recommended if choice.recommended in usable else found]


def _expiry(taken_at: float) -> str | None:
    """Return when the labels expire, in RFC 3339; None: no calendar has that time."""
    try:
        at = datetime.fromtimestamp(int(taken_at) + VALID_SECONDS, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


NAME = "gdrtop"
_LABELS = {"app.kubernetes.io/name": NAME}
_IMAGE = "REGISTRY/gdrtop-npd:VERSION"
_SECONDS = VALID_SECONDS // 3  # between two feature files: two may fail before the labels expire
_LOOP = f"""\
while :; do
  {GDRTOP} manifest nfd {" ".join(HOST[:3])} '{HOST[3]}' >/features/.gdrtop &&
    mv /features/.gdrtop /features/gdrtop
  sleep {_SECONDS}
done
"""
_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "gdrtop-npd", "labels": _LABELS},
    "roleRef": Commented(
        {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-problem-detector",
        },
        "Of every cluster: patch the node's status, and write events.",
    ),
    "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAME}],
}


def daemonset(request: ManifestRequest) -> str | Refused:
    """Return all objects, from the namespace to the DaemonSet."""
    use = [
        f"replace {_IMAGE} by the image that you built (below)",
        "kubectl apply --dry-run=server --validate=strict --filename FILE    changes nothing; of a new",
        "    namespace, it checks only the namespace",
        "kubectl apply --filename FILE",
        f"kubectl --namespace {NAME} logs daemonset/{NAME} --all-containers",
    ]
    notes = [
        "nodes get the condition GPUDirectRDMADegraded and, if Node Feature Discovery runs, labels such as"
        " gdrtop.io/path. No node is tainted or drained",
        *reading_notes(request),
    ]
    lines = head(request, "Kubernetes: DaemonSet that labels and checks each GPU node", use, notes)
    space = {"name": NAME, "labels": {**_LABELS, "pod-security.kubernetes.io/enforce": "privileged"}}
    account = {"name": NAME, "namespace": NAME, "labels": _LABELS}
    return join(
        [*lines, *image_lines()],
        dump({"apiVersion": "v1", "kind": "Namespace", "metadata": space}),
        dump({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}),
        dump(_BINDING),
        dump(config_map(NAME)),
        dump(_daemonset()),
    )


def _daemonset() -> dict[str, Any]:
    config = {"name": "config", "mountPath": "/gdrtop", "readOnly": True}
    features = {"name": "features", "mountPath": "/features"}
    npd_command = [
        "/node-problem-detector",
        "--logtostderr",
        f"--config.custom-plugin-monitor=/gdrtop/{FILE}",
        Commented("--port=0", "Another NPD on the node may have these ports."),
        "--prometheus-port=0",
    ]
    node_name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    volumes = [
        {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
        {"name": "features", "hostPath": {"path": DIRECTORY, "type": "DirectoryOrCreate"}},
        {"name": "config", "configMap": {"name": "gdrtop-npd"}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
    ]
    pod = {
        "serviceAccountName": NAME,
        "nodeSelector": Commented(
            {"nvidia.com/gpu.present": "true"},
            "The GPU Operator sets this label. Without it, use a label of your own GPU nodes.",
        ),
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "hostPID": Commented(
            True, "Only these show whose processes use RDMA, the node's routes and RDMA devices."
        ),
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 5,
        "containers": [
            _container("npd", npd_command, config, Commented) | {"env": [node_name]},
            _container("labels", ["/bin/sh", "-c", _LOOP], features, lambda value, _: value),
        ],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAME, "labels": _LABELS},
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": pod},
        },
    }


def _container(
    name: str, command: list[Any], volume: dict[str, Any], comment: Callable[[Any, str], Any]
) -> dict[str, Any]:
    below = comment("IfPossible", "Also what is mounted below /. Remove this line before Kubernetes 1.31.")
    privileged = comment(
        True,
        "A container that is not privileged can open no device file of a GPU or a NIC, so whether the "
        "NICs can use DMA-BUF would be unknown. / of the node is read-only here.",
    )
    host = {"name": "host", "mountPath": "/host", "readOnly": True, "recursiveReadOnly": below}
    return {
        "name": name,
        "image": _IMAGE,
        "command": command,
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": comment("500m", "Running jobs come first."), "memory": "512Mi"},
        },
        "securityContext": {"privileged": privileged, "readOnlyRootFilesystem": True},
        "volumeMounts": [host, {"name": "tmp", "mountPath": "/tmp"}, volume],
    }
