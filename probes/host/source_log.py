"""Which sources of a node were read, for `gdrtop -v`: what each asked, how long it took, and its answer.

Nothing is logged until `begin`: the answers of a whole fleet would take much memory.
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.origin import Origin

_MOST = 1000  # sources; a node has about forty


@frozen
class ReadSource:
    """One reading of a source."""

    origin: Origin
    name: str  # that of its probe: "PCIe errors"
    seconds: float
    answer: object
    questions: tuple[str, ...] = ()  # paths and commands that were asked of this machine, in order


_LOG: dict[tuple[Origin, str], ReadSource] = {}
_IS_ON = False


def begin() -> None:
    """Log sources from now on."""
    global _IS_ON
    _IS_ON = True


def is_on() -> bool:
    """Return whether sources are logged."""
    return _IS_ON


def log(source: ReadSource) -> None:
    """Log a source instead of its reading before."""
    if _IS_ON and (len(_LOG) < _MOST or (source.origin, source.name) in _LOG):
        _LOG[source.origin, source.name] = source


def end() -> tuple[ReadSource, ...]:
    """Stop, and return the newest reading of each source."""
    global _IS_ON
    _IS_ON = False
    sources = tuple(_LOG.values())
    _LOG.clear()
    return sources
