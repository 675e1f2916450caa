"""Where a user's files are stored (XDG Base Directory Specification)."""

from __future__ import annotations

import os

DATA = ("XDG_DATA_HOME", ".local/share")
STATE = ("XDG_STATE_HOME", ".local/state")
CONFIG = ("XDG_CONFIG_HOME", ".config")
CACHE = ("XDG_CACHE_HOME", ".cache")
NO_HOME = "there is no home directory: set HOME, or XDG_DATA_HOME and XDG_STATE_HOME"


def own_directory(kind: tuple[str, str]) -> str:
    """Return gdrtop's directory of a kind, which need not exist; "" without a home directory."""
    base = _base(kind)
    return os.path.join(base, "gdrtop") if base else ""


def simulated_directory(name: str) -> str:
    """Return where what is made up about a simulated node is kept; "" without a home directory."""
    cache = own_directory(CACHE)
    return os.path.join(cache, "simulated", name) if cache else ""


def _base(kind: tuple[str, str]) -> str:
    variable, otherwise = kind
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the specification says to ignore a relative one
        home = os.path.expanduser("~")  # stays "~" without HOME and without an entry in /etc/passwd
        if not os.path.isabs(home):
            return ""
        base = os.path.join(home, *otherwise.split("/"))
    return base


def group_files() -> tuple[str, ...]:
    """Return the files in which a site and a user define groups of nodes for ClusterShell.

    The last one counts. Not among them: the examples that come with ClusterShell itself.
    """
    own = _base(CONFIG)
    directories = ("/etc/clustershell", *([os.path.join(own, "clustershell")] if own else []))
    return tuple(os.path.join(directory, "groups.conf") for directory in directories)


def results_path(directory: str | None = None) -> str:
    """Return the file of saved bandwidth results in a directory, by default gdrtop's DATA directory."""
    return os.path.join(own_directory(DATA) if directory is None else directory, "results.jsonl")
