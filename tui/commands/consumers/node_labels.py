"""Labels of a Kubernetes node for `gdrtop check --for nfd`: a feature file for Node Feature Discovery (NFD).

Format: kubernetes-sigs/node-feature-discovery @ 76e6cc8, docs/usage/customization-guide.md (Local feature
source) and source/local/local.go. Label values: Kubernetes, Labels and Selectors.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime, timezone
from typing import TextIO

from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment, served_gpus
from probes.facts.gpudirect import GdrPath
from probes.facts.node import derivation
from probes.setup.situation import choose_path
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State

_VALID_SECONDS = 900  # the Helm chart writes them every 300 s: two attempts may fail
_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PATHS = {GdrPath.DMABUF: "dmabuf", GdrPath.PEERMEM: "peermem", GdrPath.EFA: "efa", GdrPath.CXI: "cxi"}
_NO_LABELS = 3


def write_labels(examination: Examination, judgment: Judgment, out: TextIO) -> int:
    """Print the file; return 0, or 3 where nothing is known that a label could say, which stderr says."""
    verdict = judgment.verdict
    try:
        expiry = datetime.fromtimestamp(int(examination.taken_at) + _VALID_SECONDS, timezone.utc)
    except (ValueError, OverflowError, OSError):
        print(
            "gdrtop: no labels: the node's clock shows no time from which they could expire", file=sys.stderr
        )
        return _NO_LABELS
    if verdict.state in (State.UNKNOWN, State.NOT_APPLICABLE):
        print(f"gdrtop: no labels: the verdict is {verdict.word} ({verdict.reason})", file=sys.stderr)
        return _NO_LABELS
    rows = [f"gdrtop.io/{name}={value}" for name, value in labels_of(examination, judgment).items()]
    out.write(f"# {derivation(examination.node)}\n# +expiry-time={expiry:%Y-%m-%dT%H:%M:%SZ}\n")
    out.writelines(f"{row}\n" for row in rows)
    return 0


def labels_of(examination: Examination, judgment: Judgment) -> dict[str, str]:
    """Return the labels by their names without "gdrtop.io/"; what is unknown has none."""
    verdict, topology = judgment.verdict, examination.topology
    labels = {
        "path": _path(examination, judgment),
        "gpus-direct": str(verdict.gpus_served),
        "nics-direct": str(verdict.nics),
    }
    served = served_gpus(examination.usability, judgment.findings)
    for gpu in topology.gpus if verdict.path is not None else ():
        near = (name for name in topology.best_nics.get(gpu.id, ()) if name in served.get(gpu.id, ()))
        if nic := next(near, ""):
            labels[f"{gpu.label.lower()}-nic"] = nic
            word = topology.path(gpu.id, nic).nccl
            labels[f"{gpu.label.lower()}-nic-path"] = "" if isinstance(word, Unknown) else word.value
    return {name: value for name, value in labels.items() if _VALUE.fullmatch(value)}


def _path(examination: Examination, judgment: Judgment) -> str:
    """Return the path that new jobs get: where both work, not the one that a running job uses."""
    found = judgment.verdict.path
    if found is None:  # the data goes through host memory
        return "host"
    usable = [stated.path for stated in judgment.paths if stated.usable is True]
    recommended = choose_path(examination).recommended
    return _PATHS[recommended if recommended in usable else found]
