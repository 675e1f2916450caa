"""Whether this version of Textual is one whose internals gdrtop may build on."""

from __future__ import annotations

from pathlib import Path

import textual

TESTED_VERSIONS = ("8.2.8",)


def is_tested() -> bool:
    """Return whether this version was tested with what replaces parts of Textual; else those stay unused."""
    # importlib.metadata would add 10 ms to the first paint.
    folder = Path(textual.__file__).parent.parent
    return any((folder / f"textual-{version}.dist-info").is_dir() for version in TESTED_VERSIONS)
