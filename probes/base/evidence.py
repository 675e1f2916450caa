"""What shows a problem, and what the problem costs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import SHOWN

LIKE_THESE = "more like these"  # counted by `first_distinct`


class Severity(Enum):
    """What a finding costs, the most severe first."""

    CRITICAL = "critical"  # GPUDirect RDMA does not work, for the node or for some of its GPUs
    WARNING = "warning"  # it works, but slower than it could, or not after the next reboot
    NOTE = "note"  # worth knowing


@frozen
class Evidence:
    """A source and what it showed."""

    source: str  # a path, or a command as typed
    value: str


def first_distinct(evidence: Iterable[Evidence], more: str = "more") -> tuple[Evidence, ...]:
    """Return the first distinct evidence; the rest is counted under the source of the first one left out."""
    each = tuple(dict.fromkeys(evidence))
    left = each[SHOWN:]
    return (*each[:SHOWN], Evidence(left[0].source, f"and {len(left)} {more}")) if left else each


def first_n(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the first evidence with its repetitions; the rest is counted under the first source."""
    every = tuple(evidence)
    left = every[SHOWN:]
    return (*every[:SHOWN], Evidence(every[0].source, f"and {len(left)} more")) if left else every
