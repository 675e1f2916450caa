"""The installed version."""

from __future__ import annotations


def version() -> str:
    """Return "0.1.0", or "(not installed)" if the program runs from its source."""
    from importlib import metadata  # 20 ms, so only when asked

    try:
        return metadata.version("gdrtop")
    except metadata.PackageNotFoundError:
        return "(not installed)"
