"""Output of real machines, in a folder beside the repository; without it, tests are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[3] / "shared" / "machines"


def machine_file(name: str) -> Path:
    """Return a file of the collection, or skip the test."""
    path = DIRECTORY / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path


def machine_files(folder: str, pattern: str) -> list[Path]:
    """Return all matching files of a folder; none if there is no collection."""
    return sorted((DIRECTORY / folder).glob(pattern))
