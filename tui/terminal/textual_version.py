"""The versions of Textual whose internals gdrtop may replace, as UPSTREAM.md lists them.

With any other version, all of that stays unused: Textual draws, writes and reads keys itself, in more bytes.
"""

from __future__ import annotations

from pathlib import Path

import textual

# tests/tui/terminal/test_textual_versions.py runs gdrtop with others that pyproject.toml allows.
TESTED_VERSIONS = ("8.2.8",)


def is_tested() -> bool:
    """Return whether this version was tested with what replaces parts of Textual; else those stay unused."""
    # importlib.metadata would add 10 ms to the first paint.
    folder = Path(textual.__file__).parent.parent
    return any((folder / f"textual-{version}.dist-info").is_dir() for version in TESTED_VERSIONS)


def description() -> str:
    """Return the version of Textual, and which output draws the dashboard and why."""
    from importlib import metadata

    try:
        version = metadata.version("textual")
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    if is_tested():
        return f"Textual {version}, with gdrtop's byte-saving output"
    tested = " or ".join(TESTED_VERSIONS)
    return f"Textual {version}, with its own output: gdrtop's byte-saving output is tested only with {tested}"
