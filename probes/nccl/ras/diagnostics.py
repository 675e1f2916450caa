"""The answer to DIAGNOSTICS, which NCCL 2.31 and later give.

A line is `host:pid NCCL DIAG [OK] check: text`; [INFO] marks what may need attention (NVIDIA's NCCL user
guide, "Diagnostics" and "RAS").
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable

MAX_LINES = 500
_LINE = re.compile(
    r"(?:(?P<host>[^\s:]{1,255}):(?P<pid>[0-9]{1,10}) )?NCCL DIAG "
    r"(?:\[(?P<tag>[A-Z]{1,10})\] +)?(?P<text>.{0,1000})"
)


@frozen
class DiagnosticLine:
    """What one check of one process says."""

    is_ok: bool
    text: str  # "IOMMU: …"
    process: str = ""  # "h100-01:41003"; "": not named


@frozen
class Diagnostics:
    """All results, in the order of the answer."""

    lines: tuple[DiagnosticLine, ...] = ()
    other: tuple[str, ...] = ()  # headings, and what was not understood
    left_out: int = 0  # lines beyond the limit

    @property
    def to_review(self) -> tuple[DiagnosticLine, ...]:
        """The results that are not OK."""
        return tuple(one for one in self.lines if not one.is_ok)


def parse_diagnostics(text: str) -> Diagnostics:
    """Return the results; a line without a tag is kept as it is."""
    lines: list[DiagnosticLine] = []
    other: list[str] = []
    given = [line.strip() for line in text.split("\n") if line.strip()]
    for line in given[:MAX_LINES]:
        match = _LINE.match(line)
        if match is None or not match["tag"]:
            other.append(printable(line if match is None else match["text"], 400))
            continue
        process = f"{match['host']}:{match['pid']}" if match["host"] else ""
        lines.append(
            DiagnosticLine(
                match["tag"] == "OK", printable(match["text"].strip(), 400), printable(process, 280)
            )
        )
    return Diagnostics(tuple(lines), tuple(other), max(0, len(given) - MAX_LINES))
