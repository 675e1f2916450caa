"""Which sources of a node were read, how long each took, and which failed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import groupby

from probes.base.text import plural
from probes.base.unknown import Reason, Unknown
from probes.host.probe_thread import ReadSource
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone, line

_MOST_VALUES = 1_000_000  # of an answer that are looked at
_MOST_PLACES = 2
_NUMBER = re.compile(r"/[0-9]+(?=/|$)")  # of a process
_PLACE_PARTS = 4  # of a path: "/sys/bus/pci"


def draw_sources(sources: Iterable[ReadSource]) -> list[Line]:
    """Draw a table for each node, the slowest source first."""
    lines: list[Line] = []
    for origin, rows in groupby(
        sorted(sources, key=lambda source: source.origin.label), lambda row: row.origin
    ):
        shown = sorted(rows, key=lambda source: -source.seconds)
        name = origin.label or "this node"
        lines.append(line(Run(f"Sources read on {name}, the slowest first", Tone.TITLE)))
        columns = [
            Column("SOURCE", cells_of(shown, lambda row: Run(row.name)), 1),
            Column("SECONDS", cells_of(shown, lambda row: Run(f"{row.seconds:.3f}")), 1, True),
            Column("READS", cells_of(shown, lambda row: Run(str(len(row.questions) or "-"))), 1, True),
            Column("FROM", cells_of(shown, lambda row: Run(_places(row))), 1),
            Column("OUTCOME", cells_of(shown, lambda row: _outcome(row.answer)), 1),
        ]
        lines += draw_columns(columns, [""] * len(shown), sys.maxsize)
    return lines


def _places(row: ReadSource) -> str:
    """Return the most frequent places that were asked: "/sys/bus/pci, /proc/modules, 2 more"."""
    asked = [question.removeprefix(f"{row.origin.label}: ") for question in row.questions]
    places = Counter(
        _NUMBER.sub("/*", "/".join(question.split("/")[:_PLACE_PARTS])) if question[:1] == "/" else question
        for question in asked
    )
    shown = [place for place, _ in places.most_common(_MOST_PLACES)]
    more = [f"{len(places) - _MOST_PLACES} more"] if len(places) > _MOST_PLACES else []
    return ", ".join((*shown, *more)) or "-"


def _outcome(answer: object) -> Run:
    """Return "✓ ok", why the source could not be read, or how many of its values could not."""
    if isinstance(answer, Unknown):
        tone = Tone.DIM if answer.reason is Reason.NOT_THERE else Tone.BAD
        source = f" ({answer.source})" if answer.source else ""
        return Run(f"{'–' if tone is Tone.DIM else '✗'} {answer}{source}", tone)
    counts = Counter(
        unknown.reason for unknown in _unknowns(answer) if unknown.reason is not Reason.NOT_THERE
    )
    if not counts:
        return Run("✓ ok", Tone.GOOD)
    if len(counts) == 1:
        (reasons,) = (reason.value for reason in counts)
    else:
        reasons = ", ".join(f"{reason.value}: {count}" for reason, count in counts.most_common())
    return Run(f"▲ {plural(counts.total(), 'value')} unknown ({reasons})", Tone.WARNING)


def _unknowns(answer: object) -> Iterable[Unknown]:
    """Yield the unknown values in an answer."""
    pending = [answer]
    for _ in range(_MOST_VALUES):
        if not pending:
            return
        value = pending.pop()
        if isinstance(value, Unknown):
            yield value
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (tuple, list, set, frozenset)):
            pending.extend(value)
        elif is_dataclass(value):
            pending.extend(getattr(value, field.name) for field in fields(value))
