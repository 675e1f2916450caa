"""Origin of a host's answers."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Source(Enum):
    """Kinds of nodes."""

    LIVE = "live"
    REMOTE = "remote"  # live, over a connection
    TREE = "tree"
    SIMULATED = "simulated"
    RECORDED = "recorded"


class Origin(NamedTuple):
    """A node: `label` is its name, a root directory, a simulated node or the file of a recording."""

    source: Source
    label: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it is a real machine as it is now: this one, or one over a connection."""
        return self.source in (Source.LIVE, Source.REMOTE)


def origin_word(origin: Origin) -> str:
    """Return "live" or the kind and label, by which saved results are kept apart."""
    return "live" if origin.source is Source.LIVE else f"{origin.source.value} {origin.label}"
