"""What changed: the events, newest first, one row for one cause, and what each of them means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.live.model.sample import LiveEvent
from widgets.base.figures import local_time
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import Line, Run, Tone, behind, cut, width_of, wrapped
from widgets.live.ranks import short_names

_TOGETHER_SECONDS = 2.0  # devices of one cause do not fail in one sample
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_MARKS = {**SEVERITY_MARKS, Severity.NOTE: Run("·", Tone.DIM)}


def key_of(event: LiveEvent) -> str:
    """Return what identifies an event on the screen."""
    return f"{event.at:.3f} {event.kind.value} {event.subject}"


@frozen
class Change:
    """Events of one moment that differ only in their subjects and figures; there is no change without one."""

    events: tuple[LiveEvent, ...]

    @property
    def first(self) -> LiveEvent:
        """The event that stands for all."""
        return self.events[0]

    @property
    def text(self) -> str:
        """Return "mlx5_0 went down", "mlx5_0 went down; also mlx5_1-7"."""
        others = [event.subject for event in self.events[1:]]
        return f"{self.first.text}; also {short_names(others)}" if others else self.first.text


def changes_of(events: Iterable[LiveEvent]) -> list[Change]:
    """Return events as changes, in the order of each change's first event; a subject is in a change once."""
    groups: list[list[LiveEvent]] = []
    newest: dict[tuple[object, ...], tuple[list[LiveEvent], set[str]]] = {}
    for event in events:
        key = event.kind, event.severity, event.explanation, _FIGURE.sub("0", event.text)
        group, subjects = newest.get(key, ([], set()))
        is_other = not group or abs(group[-1].at - event.at) > _TOGETHER_SECONDS
        if is_other or event.subject in subjects:
            group, subjects = newest[key] = [], set()
            groups.append(group)
        group.append(event)
        subjects.add(event.subject)
    in_order = (sorted(group, key=lambda event: (len(event.subject), event.subject)) for group in groups)
    return [Change(tuple(group)) for group in in_order]


def draw(
    changes: Sequence[Change],
    width: int,
    selected: str = "",
    word: str = "",
    since: float = 0.0,
    shown_at: float = 0.0,
) -> Sequence[Line]:
    """Draw changes in the given order, each as long as it is; those after the shown moment are dimmed.

    `word`: the filter; `since`: the time of the first sample; `shown_at`: that of the shown one, 0 for now.
    """
    if not changes:
        if word:
            return wrapped(f"No event contains {word!r}.", width, Tone.DIM)
        begin = f" since {local_time(since)}" if since else " yet"
        return wrapped(f"Nothing has changed{begin}.", width, Tone.DIM)
    lines: list[Line] = []
    for change in changes:
        is_later = bool(shown_at) and change.first.at > shown_at + 1.0
        lines.extend(_rows(change, width, key_of(change.first) == selected, is_later))
    return lines


def _rows(change: Change, width: int, is_selected: bool, is_later: bool) -> list[Line]:
    event = change.first
    tone = Tone.CURSOR if is_selected else Tone.DIM if is_later else Tone.PLAIN
    mark = _MARKS[event.severity]
    head: Line = (
        Run(local_time(event.at, "%H:%M:%S"), Tone.CURSOR if is_selected else Tone.DIM, key_of(event)),
        Run(" "),
        mark._replace(tone=Tone.DIM) if is_later else mark,
        Run(" "),
    )
    indent = width_of(head)
    pieces = _pieces(change.text, max(8, width - indent))
    lines: list[Line] = [(*head, Run(pieces[0], tone))]
    lines += [(Run(" " * indent, id=key_of(event)), Run(piece, tone)) for piece in pieces[1:]]
    rest = width - width_of(lines[0])
    if event.explanation and rest >= 30 and len(lines) == 1:
        lines[0] = cut((*lines[0], Run(f"  {event.explanation}", Tone.DIM)), width)
    return lines


@lru_cache(maxsize=2048)
def _pieces(text: str, width: int) -> tuple[str, ...]:
    """Return a text in lines; most fit into one."""
    return tuple("".join(run.text for run in piece) for piece in wrapped(text, width))


def heading(event: LiveEvent, width: int) -> list[Line]:
    """Return the mark and text of an event."""
    return behind((_MARKS[event.severity], Run(" ")), wrapped(event.text, max(8, width - 2), Tone.TITLE))


def matches(event: LiveEvent, word: str) -> bool:
    """Return whether an event contains a word: in its text, subject, kind or explanation."""
    texts = (event.text, event.subject, event.kind.value, event.severity.value, event.explanation)
    return word in " ".join(texts).lower()
