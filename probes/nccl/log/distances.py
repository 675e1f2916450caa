"""NCCL's words for distances by version: the numbers were renumbered again and again.

src/graph/topo.cc topoPathTypeStr and src/include/graph.h of the tags named below.
"""

from __future__ import annotations

import re

_ORDERS: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((2, 6, 0), "LOC NVL PIX PXB PHB SYS NET"),
    ((2, 8, 0), "LOC NVL NVB PIX PXB PHB SYS NET"),
    ((2, 12, 0), "LOC NVL NVB PIX PXB PXN PHB SYS NET DIS"),
    ((2, 26, 0), "LOC NVL NVB C2C PIX PXB PXN PHB SYS NET DIS"),
    ((2, 27, 0), "LOC NVL NVB C2C PIX PXB PXN P2C PHB SYS NET DIS"),
    ((2, 27, 5), "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS"),
)
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


def version_numbers(text: str) -> tuple[int, int, int] | None:
    """Return "2.26.2+cuda12.2" as numbers."""
    match = _VERSION.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def distance_word(version: tuple[int, int, int], distance: int) -> str | None:
    """Return the word for a number in a line of this version; None if it has none."""
    words: list[str] = []
    for since, order in _ORDERS:
        if version >= since:
            words = order.split()
    return words[distance] if 0 <= distance < len(words) else None
