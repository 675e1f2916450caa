"""The version that is installed."""

from __future__ import annotations


def version() -> str:
    """As "0.1.0"; "(not installed)" where the program runs from its source."""
    from importlib import metadata  # 20 ms, for a question asked once in a life

    try:
        return metadata.version("gdrtop")
    except metadata.PackageNotFoundError:
        return "(not installed)"
