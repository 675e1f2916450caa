"""Let a command see the /sys of a simulated node: in a mount namespace, which needs root."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL

from tests.perf.command import Command
from tests.perf.table import NODE

_BIND = 'mount --rbind "$0/sys" /sys && exec "$@"'


@contextmanager
def mounted_node() -> Iterator[tuple[list[str], Path]]:
    """Yield what to put before a command line, and a directory for files; see `is_permitted`."""
    from probes.simulation.host import SimulatedHost
    from tests.support.simulated_tree import write_tree

    with tempfile.TemporaryDirectory() as directory:
        write_tree(SimulatedHost(NODE), Path(directory))
        yield ["unshare", "--mount", "sh", "-c", _BIND, directory], Path(directory)


def is_permitted(before: Sequence[str]) -> bool:
    """Return whether this user may make the mount namespace; `before`: what `mounted_node` yields first."""
    return not Command([*before, "true"], (0,), "").start(stderr=DEVNULL).wait()
