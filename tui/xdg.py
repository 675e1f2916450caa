"""Where a user's files belong (XDG Base Directory Specification)."""

from __future__ import annotations

import os

DATA = ("XDG_DATA_HOME", ".local/share")
STATE = ("XDG_STATE_HOME", ".local/state")


def own_directory(kind: tuple[str, str]) -> str:
    """The directory of gdrtop of a kind, DATA or STATE, whether it is there or not."""
    variable, otherwise = kind
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the specification: a relative one is to be ignored
        base = os.path.join(os.path.expanduser("~"), *otherwise.split("/"))
    return os.path.join(base, "gdrtop")
