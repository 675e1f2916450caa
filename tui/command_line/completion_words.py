"""`gdrtop __complete KIND PREFIX`: words that the completion of a shell cannot know; it runs at each Tab."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from probes.simulation.node.model.names import SIMULATED_NAMES
from tui.files.read_file import read_small

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")  # no pattern of ssh_config, and no hashed name


def words(kind: str, prefix: str = "") -> tuple[str, ...]:
    """Return the words that begin like this: "demos" or "hosts"; none of another kind."""
    kinds = {"demos": _demos, "hosts": _hosts}
    found = kinds[kind](prefix) if kind in kinds else ()
    return tuple(sorted({word for word in found if word.startswith(prefix)}))


def _demos(prefix: str) -> Iterable[str]:
    """Return simulated nodes; behind a "+" or a "," their faults."""
    match = re.fullmatch(r"(.*[+,])[^+,]*", prefix)
    if match is None:
        return ("list", *SIMULATED_NAMES)
    from probes.simulation.faults.catalogue import FAULTS

    return (match[1] + name for name in FAULTS)


def _hosts(prefix: str) -> Iterator[str]:
    """Yield the nodes that the user's own ssh knows by name; nothing is asked over the network."""
    for line in _lines("~/.ssh/config"):
        keyword, _, names = line.strip().replace("=", " ").partition(" ")
        if keyword.lower() == "host":
            yield from filter(_NAME.fullmatch, names.split())
    for line in _lines("~/.ssh/known_hosts"):
        names, _, _ = line.partition(" ")
        yield from filter(_NAME.fullmatch, names.split(","))


def _lines(path: str) -> list[str]:
    try:
        content = read_small(os.path.expanduser(path), _MOST_BYTES, "a file of ssh")
    except OSError:
        return []
    return content.decode("utf-8", "replace").splitlines()
