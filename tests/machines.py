"""Real output of real machines, where it lies beside the repository; tests skip where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / "shared" / "machines"


def machine_file(name: str) -> Path:
    """A file of the collection, or the test is skipped."""
    path = DIRECTORY / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path


def machine_files(folder: str, pattern: str) -> list[Path]:
    """All files of a folder that match; none where the collection is absent."""
    return sorted((DIRECTORY / folder).glob(pattern))
