"""Probes as a table: each field of a dataclass declares its own probe, and `Probing` runs them all.

A new probe is one field of `probes.facts.node.Node` or `probes.snapshot.examination.Examination`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, Generic, TypeVar

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.probe_thread import RunningProbe, start_probe
from probes.host.protocol import Host

# Threads that read many small files at once compete for the interpreter's lock (a third slower on 517 PCI
# functions), so the next probe starts in parallel only if the one before is slow.
PATIENCE_SECONDS = 0.1
_FILLED_WHILE_RUNNING = ("/dev", "/proc", "/run", "/sys")  # empty in an image

T = TypeVar("T")
P = TypeVar("P", bound="Probing")


@frozen
class Probe(Generic[P]):
    """How the answer for one field is read."""

    name: str  # in error messages: "PCIe errors"
    ask: Callable[[P], object]
    needs: tuple[str, ...] = ()  # fields whose answers it uses: it starts when they are there
    directories: tuple[str, ...] = ()  # a dumped tree without one of them says nothing about this field
    in_background: bool = False  # works in a library: the next probe starts at once


class ProbedFields(Generic[P]):
    """Declares the fields of a dataclass whose answers come from probes."""

    def __call__(
        self,
        name: str,
        ask: Callable[[P], Maybe[T]],
        needs: tuple[str, ...] = (),
        directories: tuple[str, ...] = (),
    ) -> Maybe[T]:
        """Declare a field; for the type checker, its value has the type of the answer."""
        probe = Probe(name, ask, needs, directories)
        declared: Any = field(metadata={"probe": probe})
        answer: Maybe[T] = declared
        return answer


def probes_of(record: type) -> dict[str, Probe[Any]]:
    """Return the table of a dataclass: its probes by field."""
    return {row.name: row.metadata["probe"] for row in fields(record) if "probe" in row.metadata}


class Probing:
    """One round of probes of a host, each in its own thread; a probe that fails affects only its own field.

    A probe is given up after a single question has had no answer for `seconds`.
    """

    def __init__(self, host: Host, seconds: float) -> None:
        self.host = host
        self.seconds = seconds
        self._running: dict[str, RunningProbe[Any]] = {}

    def answer(self, name: str, kind: type[T]) -> Maybe[T]:
        """Return the answer of a probe that has started, which must be of this type."""
        answer = self._running[name].answer(self.seconds)
        if not isinstance(answer, (kind, Unknown)):
            raise TypeError(f"{name} is no {kind.__name__}")
        return answer

    def run(self, probes: Mapping[str, Probe[Any]]) -> dict[str, Any]:
        """Return the answers by field. Probes start after those whose answers they need."""

        def depth(name: str) -> int:
            return max((1 + depth(needed) for needed in probes[name].needs), default=0)

        for name, probe in sorted(probes.items(), key=lambda item: depth(item[0])):
            for needed in probe.needs:
                self._running[needed].answer(self.seconds)
            running = start_probe(self.host, probe.name, partial(self._ask, probe))
            self._running[name] = running
            if not probe.in_background:
                running.wait(min(PATIENCE_SECONDS, self.seconds))
        return {name: running.answer(self.seconds) for name, running in self._running.items()}

    def _ask(self, probe: Probe[Any]) -> Any:
        if self.host.origin.source is Source.TREE:
            for directory in probe.directories:
                names = self.host.names(directory)
                if isinstance(names, Unknown) or (directory in _FILLED_WHILE_RUNNING and not names):
                    return Unknown(Reason.NOT_RECORDED, directory, f"this tree has no {directory}")
        return probe.ask(self)
