"""Findings that an admin has silenced until a date; all judgments of a run have the same silences."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from probes.base.frozen import frozen


@frozen
class Silence:
    """One entry of the configuration."""

    id: str  # of the check
    reason: str
    until: date  # the last day on which it is in force, in local time
    device: str = ""  # an RDMA device or PCI address; "": all that the finding names
    nodes: frozenset[str] = frozenset()  # names of hosts, also without their domain; none: every node
    origin: str = ""  # "/etc/gdrtop/config.toml:7"

    def covers_node(self, names: Iterable[str]) -> bool:
        """Return whether it is about the node with these names; one without a name is in no set."""
        short = {name.partition(".")[0] for name in names}
        return not self.nodes or bool(self.nodes & {*names, *short})

    def is_expired(self, at: float) -> bool:
        """Return whether it has ended at a time in seconds since 1970."""
        try:
            return date.fromtimestamp(at) > self.until
        except (OSError, OverflowError, ValueError):  # a recording may have any clock
            return True


_in_force: list[Silence] = []


def set_silences(silences: Iterable[Silence]) -> None:
    """Put these in force, and no others: gdrtop does it once, when it has read its configuration."""
    _in_force[:] = silences


def silences() -> tuple[Silence, ...]:
    """Return those in force, expired ones too."""
    return tuple(_in_force)
