"""The NCCL variables of a job that differ from the recommended ones, and those that no test compares."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.nccl.variables.catalogue import is_known, similar_name
from probes.setup.env.advice import Advice
from probes.setup.env.assignments import Assignment, FileKind
from probes.setup.env.file_kind import parse_file

MOST = 64
_PREFIX = "NCCL_"
_READ = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")  # files that describe the node; they change the path
# What NCCL writes and prints, and what makes it wait for a process elsewhere.
_NO_EFFECT = re.compile(
    r"NCCL_(?:DEBUG\w*|\w*DUMP\w*|INSPECTOR_\w+|COMM_ID|CONF_FILE|RUN_(?:RAS_)?DIAGNOSTICS|RAS_\w+)"
)


@frozen
class Difference:
    """One variable; None: unset, so that /etc/nccl.conf or NCCL's default counts."""

    name: str
    job: str | None
    recommended: str | None
    reason: str = ""  # why it is recommended, one sentence without a full stop


@frozen
class NotCompared:
    """One variable of the job that no test compares, and why."""

    name: str
    reason: str


@frozen
class Differences:
    """Everything in which a job's file differs from the recommendation."""

    differing: tuple[Difference, ...]
    not_compared: tuple[NotCompared, ...] = ()


def differences(text: str, kind: FileKind, advice: Advice, fixed: tuple[str, ...] = ()) -> Differences:
    """Compare a job's file with the advice; `fixed` are the variables that the test itself sets."""
    job = _variables(text, kind)
    recommended = {setting.name: setting for setting in advice.settings if setting.name.startswith(_PREFIX)}
    notes = {note.variable: note.text for note in advice.notes}
    differing: list[Difference] = []
    left_out: list[NotCompared] = []
    for name in (*job, *(name for name in recommended if name not in job)):
        assignment, setting = job.get(name), recommended.get(name)
        value = assignment.value if assignment else None
        wanted = setting.value if setting else None
        reason = _why_not(assignment, name in fixed) if assignment or name in fixed else ""
        if reason:
            left_out.append(NotCompared(name, reason))
        elif value == wanted:
            continue
        elif max(len(differing), len(left_out)) >= MOST:
            left_out.append(NotCompared(name, f"only the first {MOST} variables are compared"))
        elif not is_known(name) and (near := similar_name(name)):
            left_out.append(NotCompared(name, f"gdrtop does not know it; did you mean {near}?"))
        else:  # a name that gdrtop does not know may be a plugin's
            why = setting.reason if setting else notes.get(name, "")
            differing.append(Difference(name, value, wanted, why))
    return Differences(tuple(differing), tuple(left_out))


def _variables(text: str, kind: FileKind) -> dict[str, Assignment]:
    """Return what the file sets for NCCL; of several environments, the last value counts."""
    found: dict[str, Assignment] = {}
    for group in parse_file(text.replace("\r\n", "\n"), kind).groups:
        found |= group.effective(first_wins=kind is FileKind.NCCL_CONF)
    return {name: assignment for name, assignment in found.items() if name.startswith(_PREFIX)}


def _why_not(assignment: Assignment | None, is_fixed: bool) -> str:
    """Return why no test compares a variable; "" if one can."""
    if is_fixed:
        return "the test sets it itself, to use the NICs (--inside-node compares it)"
    if assignment is None:
        return ""
    name, value = assignment.name, assignment.value
    if value is None:
        return "its value is known only when the job runs"
    if not value.isascii():
        return "its value is too long, or not plain text"
    if _NO_EFFECT.fullmatch(name):
        return "it has no effect on bandwidth, or needs the whole job"
    if "/" in value and name not in _READ:
        return "it names a file, which gdrtop does not load for a job"
    return ""
