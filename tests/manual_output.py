"""What commands print of simulated nodes, in the pages of the manual (make man writes it there again).

Figures move, so a page is true while it differs from what is printed only in digits, graphs and spaces.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path
from unittest import mock

from tui.cli import main as gdrtop
from tui.manual import SUBJECTS, page

FOLDER = Path(__file__).parents[1] / "tui" / "manual"
_SHOWN = re.compile(r"^On a simulated node, `(gdrtop [^`]+)` prints:\n\n((?:    .*\n|\n(?=    ))+)", re.M)
_MOST_LINES = 10
_COLUMNS = 80
_WHEN = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+")


def shown(subject: str) -> dict[str, str]:
    """Return the commands whose output a page shows, with that output."""
    return {match[1]: match[2] for match in _SHOWN.finditer(page(subject))}


def printed(command: str) -> str:
    """Return the first lines that a command prints, as a page shows them."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        own = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"), folder)
        variables = {**own, "COLUMNS": str(_COLUMNS), "PYTHONUTF8": "1", "TZ": "UTC"}
        quiet = contextlib.redirect_stderr(io.StringIO())
        with mock.patch.dict(os.environ, variables), contextlib.redirect_stdout(out), quiet:
            gdrtop(shlex.split(command)[1:])
    out.seek(0)
    lines = _WHEN.sub("2026-11-29 14:03:11 UTC", out.read()).splitlines()
    kept = [line.rstrip() for line in lines[:_MOST_LINES]]
    while kept and not kept[-1]:
        kept.pop()
    return "".join(
        f"    {line}".rstrip() + "\n" for line in [*kept, *(["…"] if len(lines) > len(kept) else [])]
    )


def lasting(text: str) -> str:
    """Return a text without its digits, graphs and number of spaces."""
    return re.sub(r"\s+", " ", re.sub(r"[\d.,]+", "#", re.sub(r"[▁-█·]", "", text))).strip()


def main() -> None:
    """Write into every page what its commands print now."""
    for subject in SUBJECTS:
        path = FOLDER / f"{subject}.md"
        text = path.read_text(encoding="utf-8")
        written = _SHOWN.sub(
            lambda match: f"On a simulated node, `{match[1]}` prints:\n\n{printed(match[1])}", text
        )
        if written != text:
            path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
