"""Where a host's answers come from."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Source(Enum):
    """The kind of node that is read."""

    LIVE = "live"
    TREE = "tree"
    SIMULATED = "simulated"
    RECORDED = "recorded"


class Origin(NamedTuple):
    """What is being read: `label` is a root directory, a simulated node's name or a recording's file."""

    source: Source
    label: str = ""


def origin_word(origin: Origin) -> str:
    """As results are kept apart by: "live", or the simulated node's name."""
    return "live" if origin.source is Source.LIVE else f"{origin.source.value} {origin.label}"
