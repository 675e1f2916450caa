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
