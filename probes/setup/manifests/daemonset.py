"""A DaemonSet that keeps the labels and the condition of every GPU node up to date.

One container is Node Problem Detector (NPD) with gdrtop as its plugin, the other writes the feature file for
Node Feature Discovery. Kubernetes API: apps/v1, rbac.authorization.k8s.io/v1; its default ClusterRole
system:node-problem-detector. NPD's options: kubernetes/node-problem-detector, cmd/options/options.go.
"""

from __future__ import annotations

from typing import Any

from probes.setup.manifests.manifest_text import Key, dump, head, join
from probes.setup.manifests.node_labels import DIRECTORY, VALID_SECONDS
from probes.setup.manifests.node_problem_detector import (
    FILE,
    GDRTOP,
    HOST,
    config_map,
    image_lines,
    reading_notes,
)
from probes.setup.manifests.request import ManifestRequest, Refused

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
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:node-problem-detector",
    },
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
        dump({"apiVersion": "v1", "kind": "Namespace", "metadata": space}, {}),
        dump({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, {}),
        dump(_BINDING, {("roleRef",): "Of every cluster: patch the node's status, and write events."}),
        dump(config_map(NAME), {}),
        dump(_daemonset(), _comments()),
    )


def _daemonset() -> dict[str, Any]:
    config = {"name": "config", "mountPath": "/gdrtop", "readOnly": True}
    features = {"name": "features", "mountPath": "/features"}
    npd_command = [
        "/node-problem-detector",
        "--logtostderr",
        f"--config.custom-plugin-monitor=/gdrtop/{FILE}",
        "--port=0",
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
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "hostPID": True,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 5,
        "containers": [
            _container("npd", npd_command, config) | {"env": [node_name]},
            _container("labels", ["/bin/sh", "-c", _LOOP], features),
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


def _container(name: str, command: list[str], volume: dict[str, Any]) -> dict[str, Any]:
    host = {"name": "host", "mountPath": "/host", "readOnly": True, "recursiveReadOnly": "IfPossible"}
    return {
        "name": name,
        "image": _IMAGE,
        "command": command,
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "500m", "memory": "512Mi"},
        },
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": [host, {"name": "tmp", "mountPath": "/tmp"}, volume],
    }


def _comments() -> dict[Key, str]:
    pod: Key = ("spec", "template", "spec")
    container: Key = (*pod, "containers", 0)
    return {
        (*pod, "nodeSelector"): (
            "The GPU Operator sets this label. Without it, use a label of your own GPU nodes."
        ),
        (*pod, "hostPID"): "Only these show whose processes use RDMA, the node's routes and RDMA devices.",
        (*container, "command", 3): "Another NPD on the node may have these ports.",
        (*container, "resources", "limits", "cpu"): "Running jobs come first.",
        (*container, "securityContext", "privileged"): (
            "A container that is not privileged can open no device file of a GPU or a NIC, so whether the "
            "NICs can use DMA-BUF would be unknown. / of the node is read-only here."
        ),
        (
            *container,
            "volumeMounts",
            0,
            "recursiveReadOnly",
        ): "Also what is mounted below /. Remove this line before Kubernetes 1.31.",
    }
