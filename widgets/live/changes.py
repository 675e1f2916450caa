"""What changed: the events, newest first, and what each of them means."""

from __future__ import annotations

from collections.abc import Sequence

from probes.live.model.sample import LiveEvent
from probes.queries.finding import Severity
from widgets.base.figures import local_time
from widgets.base.lines import LazyLines, Line, Run, Tone, cut, width_of, wrapped

_MARKS = {
    Severity.CRITICAL: Run("✗", Tone.BAD),
    Severity.WARNING: Run("▲", Tone.WARNING),
    Severity.NOTE: Run("·", Tone.DIM),
}


def key_of(event: LiveEvent) -> str:
    """Return what identifies an event on the screen."""
    return f"{event.at:.3f} {event.kind.value} {event.subject}"


def draw(
    events: Sequence[LiveEvent],
    width: int,
    selected: str = "",
    word: str = "",
    since: float = 0.0,
    shown_at: float = 0.0,
) -> Sequence[Line]:
    """Draw events in the given order, one line each; those after the moment that is shown are dimmed.

    `word`: the filter; `since`: the time of the first sample; `shown_at`: that of the shown one, 0 for now.
    """
    if not events:
        if word:
            return wrapped(f"No event contains {word!r}.", width, Tone.DIM)
        begin = f" since {local_time(since)}" if since else " yet"
        return wrapped(f"Nothing has changed{begin}.", width, Tone.DIM)

    def drawn(number: int) -> Line:
        event = events[number]
        return _row(event, width, key_of(event) == selected, bool(shown_at) and event.at > shown_at + 1.0)

    return LazyLines(len(events), drawn)


def _row(event: LiveEvent, width: int, is_selected: bool, is_later: bool) -> Line:
    tone = Tone.CURSOR if is_selected else Tone.DIM if is_later else Tone.PLAIN
    mark = _MARKS[event.severity]
    row: Line = (
        Run(local_time(event.at, "%H:%M:%S"), Tone.CURSOR if is_selected else Tone.DIM, key_of(event)),
        Run(" "),
        mark._replace(tone=Tone.DIM) if is_later else mark,
        Run(" "),
        Run(event.text, tone),
    )
    rest = width - width_of(row)
    if event.explanation and rest >= 30:
        row = (*row, Run(f"  {event.explanation}", Tone.DIM))
    return cut(row, width)


def heading(event: LiveEvent, width: int) -> Line:
    """Return the mark and text of an event."""
    row: Line = (_MARKS[event.severity], Run(" "), Run(event.text, Tone.TITLE))
    return cut(row, width)


def matches(event: LiveEvent, word: str) -> bool:
    """Return whether an event contains a word: in its text, subject, kind or explanation."""
    texts = (event.text, event.subject, event.kind.value, event.severity.value, event.explanation)
    return word in " ".join(texts).lower()
