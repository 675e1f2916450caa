"""Kubernetes' Node Problem Detector: 80 bytes, and 0, 1 or anything else.

Its custom plugins (pkg/custompluginmonitor): exit status 0 is OK, 1 is NonOK, which sets the condition, and
any other is Unknown; standard output is trimmed, and cut after max_output_length bytes (80 by default).
"""

from __future__ import annotations

from probes.checks.judgment import exit_status
from probes.checks.new_jobs import rows_against_jobs
from probes.snapshot.verdict import State
from tui.commands.consumers.checked_node import Answer, CheckedNode, in_short, safe
from tui.runtime.printing import source_word

MOST_BYTES = 80
_OK, _PROBLEM, _UNKNOWN = 0, 1, 3
_STATUSES = (_OK, _OK, _PROBLEM, _UNKNOWN)  # by the exit status of check


def node_problem_detector(node: CheckedNode) -> Answer:
    """Return what fits in 80 bytes; DEGRADED, and whatever keeps new jobs away, are the problem.

    A warning that costs a job nothing is in the text only: a condition says that the node has a problem.
    """
    verdict = node.judgment.verdict
    status = _STATUSES[exit_status(verdict)]
    if verdict.state is State.DEGRADED or rows_against_jobs(node.judgment, {}):
        status = _PROBLEM
    # The label of a recording alone has 80 bytes.
    text = f"{source_word(node.origin)} {in_short(node.judgment)}".strip()
    return Answer(safe(text, MOST_BYTES), status)
