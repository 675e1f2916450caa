"""Origin of a host's answers."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Source(Enum):
    """Kinds of nodes."""

    LIVE = "live"
    TREE = "tree"
    SIMULATED = "simulated"
    RECORDED = "recorded"


class Origin(NamedTuple):
    """A node: `label` is a root directory, the name of a simulated node or the file of a recording."""

    source: Source
    label: str = ""


def origin_word(origin: Origin) -> str:
    """Return "live" or the kind and label, by which saved results are kept apart."""
    return "live" if origin.source is Source.LIVE else f"{origin.source.value} {origin.label}"
