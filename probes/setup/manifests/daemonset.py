"""A DaemonSet that keeps the labels and the condition of every GPU node up to date.

One container is Node Problem Detector (NPD) with gdrtop as its plugin, the other writes the feature file for
Node Feature Discovery. Kubernetes API: apps/v1, rbac.authorization.k8s.io/v1; its default ClusterRole
system:node-problem-detector. NPD's options: kubernetes/node-problem-detector, cmd/options/options.go.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from probes.base.data_files import read_text
from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, judge, served_gpus
from probes.facts.gpudirect import GdrPath
from probes.setup.manifests.manifest_text import (
    DriverOwner,
    ManifestRequest,
    Refused,
    command_line,
    comment,
    head,
    join,
    note,
    refused,
)
from probes.setup.situation import PathChoice
from probes.snapshot.verdict import State

# A condition of the Kubernetes node: Node Problem Detector (NPD) runs `gdrtop check --for npd`.
#
# Format and behavior: kubernetes/node-problem-detector @ 6632ca67, docs/custom_plugin_monitor.md,
# pkg/custompluginmonitor/types/config.go, plugin/plugin.go, Dockerfile and cmd/options/options.go. Exit
# statuses: 0 is no problem, 1 is one, others are unknown. A Python that cannot start ends with 1 and no text,
# which would be a problem of the node: the command in npd.yaml makes it 3. A check may take 30 s there: as
# long as a device that does not answer may delay it, and a CPU limit. daemonset.yaml writes the labels every
# 300 s, so that two attempts may fail before they expire.


def npd(request: ManifestRequest) -> str | Refused:
    """Return a ConfigMap with the plugin's configuration, and what NPD's container needs to run it."""
    lines = [*head(request, "npd", reading_notes(request)), *comment("npd-needs")]
    lines += [
        command_line(text)
        for text in (
            "image: the one below, because NPD's own has no Python and no gdrtop",
            "args: --config.custom-plugin-monitor=/gdrtop/gdrtop.json",
            "volumeMounts: this ConfigMap at /gdrtop; / of the node at /host, with readOnly: true",
            "hostPID: true and hostNetwork: true, for processes, routes and RDMA devices of the node",
            "resources: limits of 10m CPU and 80Mi, as in NPD's own example, are too low for gdrtop;",
            "    use at least 500m and 256Mi",
            "securityContext.privileged: true, which NPD's own example has",
        )
    ]
    return join([*lines, *image_lines()], read_text(__package__, "npd.yaml"))


def image_lines() -> list[str]:
    """Return comments that say how to build the image; none is published."""
    return [*comment("image"), *map(command_line, read_text(__package__, "npd.dockerfile").splitlines())]


def reading_notes(request: ManifestRequest) -> list[str]:
    """Return what limits what gdrtop reads of a node from a container."""
    is_inside = request.driver is DriverOwner.OPERATOR
    return [note("reader"), *([note("driver-in-container")] if is_inside else ())]


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
        return refused("no-time")
    lines = head(request, "nfd", directory=DIRECTORY, minutes=VALID_SECONDS // 60)
    rows = [f"gdrtop.io/{name}={value}" for name, value in labels.items()]
    return "\n".join([*lines, f"# +expiry-time={expiry}", *rows]) + "\n"


def labels_of(request: ManifestRequest) -> dict[str, str] | Refused:
    """Return the labels by their names without "gdrtop.io/"; what is unknown has none."""
    examination = request.situation.examination
    judgment, topology = judge(examination), examination.topology
    verdict = judgment.verdict
    if verdict.state is State.UNKNOWN:
        return refused("verdict-unknown", why=verdict.reason)
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


def daemonset(request: ManifestRequest) -> str | Refused:
    """Return all objects, from the namespace to the DaemonSet."""
    lines = head(request, "daemonset", reading_notes(request))
    start, _, pods = read_text(__package__, "daemonset.yaml").rpartition("---\n")
    config_map = read_text(__package__, "npd.yaml").replace("namespace: kube-system", "namespace: gdrtop")
    return join([*lines, *image_lines()], start, config_map, pods)
