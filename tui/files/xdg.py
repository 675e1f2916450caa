"""Where a user's files are stored (XDG Base Directory Specification)."""

from __future__ import annotations

import os

DATA = ("XDG_DATA_HOME", ".local/share")
STATE = ("XDG_STATE_HOME", ".local/state")
NO_HOME = "there is no home directory: set HOME, or XDG_DATA_HOME and XDG_STATE_HOME"


def own_directory(kind: tuple[str, str]) -> str:
    """Return gdrtop's DATA or STATE directory, which need not exist; "" without a home directory."""
    variable, otherwise = kind
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the specification says to ignore a relative one
        home = os.path.expanduser("~")  # stays "~" without HOME and without an entry in /etc/passwd
        if not os.path.isabs(home):
            return ""
        base = os.path.join(home, *otherwise.split("/"))
    return os.path.join(base, "gdrtop")


def results_path(directory: str | None = None) -> str:
    """Return the file of saved bandwidth results in a directory, by default gdrtop's DATA directory."""
    return os.path.join(own_directory(DATA) if directory is None else directory, "results.jsonl")
