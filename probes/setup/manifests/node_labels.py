"""A feature file for Node Feature Discovery: this node's GPUDirect RDMA as labels of its Kubernetes node.

Format: kubernetes-sigs/node-feature-discovery @ 76e6cc8, docs/usage/customization-guide.md (Local feature
source) and source/local/local.go. Label values: Kubernetes, Labels and Selectors.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, judge, served_gpus
from probes.facts.gpudirect import GdrPath
from probes.setup.manifests.manifest_text import head
from probes.setup.manifests.request import ManifestRequest, Refused
from probes.setup.situation import PathChoice
from probes.snapshot.verdict import State

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
