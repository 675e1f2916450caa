"""A condition of the Kubernetes node: Node Problem Detector (NPD) runs `gdrtop check --for npd`.

Format and behavior: kubernetes/node-problem-detector @ 6632ca67, docs/custom_plugin_monitor.md,
pkg/custompluginmonitor/types/config.go, plugin/plugin.go, Dockerfile and cmd/options/options.go.
"""

from __future__ import annotations

import json
from typing import Any

from probes.setup.manifests.manifest_text import command_line, comment_lines, dump, head, join
from probes.setup.manifests.request import DriverOwner, ManifestRequest, Refused

CONDITION = "GPUDirectRDMADegraded"
FILE = "gdrtop.json"
GDRTOP = "/opt/gdrtop/bin/gdrtop"
HOST = ("--host", "host", "--over", "chroot /{host}")
"""Options with which gdrtop in a container reads the node whose / is at /host, with its commands."""
# A Python that cannot start ends with 1 and no text, which would be a problem of the node; 3 is unknown.
_GUARD = 't=$("$0" "$@"); s=$?; [ $s != 1 ] || [ "$t" ] || s=3; echo "$t"; exit $s'
_SECONDS = 30  # as long as a device that does not answer may delay a check, and a CPU limit
_IMAGE = "registry.k8s.io/node-problem-detector/node-problem-detector:v0.8.19"
_DOCKERFILE = (
    f"FROM {_IMAGE}",
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
    return join([*lines, *image_lines()], dump(config_map("kube-system"), {}))


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
            "timeout": f"{_SECONDS}s",
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
                "timeout": f"{_SECONDS}s",
            }
        ],
    }
