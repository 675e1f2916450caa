"""How many nodes can be connected at once: each connection has open files."""

from __future__ import annotations

import resource

_OTHER_FILES = 128  # of gdrtop itself


def allow_nodes(wanted: int, files_a_node: int) -> int:
    """Raise this process's own limit of open files for so many nodes; return how many it allows, at least 1.

    The limit is 1024 by default, and can be raised up to the hard limit (getrlimit(2), RLIMIT_NOFILE).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * files_a_node + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, min(wanted, (max(soft, most) - _OTHER_FILES) // files_a_node))
