"""What the head of all screens shows, as the readings and other parts of gdrtop report it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from rich.cells import cell_len, set_cell_size
from textual.app import App
from textual.screen import Screen

from probes.base.origin import Origin, Source
from tui.runtime.schedules import USUAL_PACE
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, cut, fit, width_of
from widgets.base.lines_view import LinesView

HEAD_ROWS = 2
# Of a long name, before the verdict gives up its counts of GPUs and NICs, and that of its findings.
_LEAST_HOST_CELLS, _SHORT_HOST_CELLS = 28, 12
_ROOM_FOR_DATE = 100
_FORMS_WITH_DEVICES = 3  # the first forms of a verdict (widgets/node/verdict.py)
_FEWEST_HOST_CELLS = 5


@dataclass(frozen=True)
class HeadState:
    """The parts of the head as they are now."""

    origin: Origin
    hostname: str = ""  # "" while it is unknown
    sentence: Line = (Run("Reading the node…", Tone.DIM),)
    hint: str = ""
    verdicts: tuple[Line, ...] = ()
    pace: str = ""  # "every 1 s", or that readings have stopped
    recording: str = ""  # how far a recording is
    action: str = ""  # how far an action is
    test: str = ""  # how far a bandwidth test is
    silence: float = 0.0  # whole seconds without an answer; 0: the node answers
    is_slow: bool = False  # the node answers slowly, it is not silent
    failure: str = ""  # why reading failed
    taken_at: float = 0.0  # of the newest reading, seconds since 1970; 0: none yet

    @property
    def host(self) -> str:
        """The host's name, and which recording, tree or simulated node it is."""
        label = "" if self.origin.source is Source.LIVE else self.origin.label
        if self.is_recorded:
            label = label.partition(", ")[0]  # its time is that of the clock
        return label if label and self.hostname in label else f"{self.hostname} {label}".strip()

    @property
    def is_recorded(self) -> bool:
        """Whether the facts are from a recording."""
        return self.origin.source is Source.RECORDED

    @property
    def status(self) -> Line:
        """What is running, a silence of the node, and a pause, a position or an unusual interval."""
        silence = ""
        if self.silence:
            seconds = f"{self.silence:.0f} s"
            silence = f"slow: {seconds} so far" if self.is_slow else f"no answer for {seconds}"
        words = (
            (silence, Tone.WARNING if self.is_slow else Tone.BAD),
            (self.action, Tone.WARNING),
            (self.test, Tone.WARNING),
            (self.recording, Tone.BAD),
            ("" if self.pace == USUAL_PACE else self.pace, Tone.DIM),
        )
        return tuple(Run(f"  {word}", tone) for word, tone in words if word)


def draw(head: HeadState, screen: str, width: int) -> list[Line]:
    """Draw two rows: the sentence with its hint where that fits, then where and when it is true.

    None of the parts is dropped, but the verdict becomes shorter, and then the host's name.
    """
    failed = Run(f"✗ Reading failed: {head.failure}", Tone.BAD)
    first: Line = (Run(" "), *((failed,) if head.failure else head.sentence))
    key = "" if head.failure else head.hint
    for text in (key, " ".join(key.split()[:2])):  # "press s for guided setup", "press s"
        hint = Run(f" · {text}", Tone.DIM)
        if text and width_of((*first, hint)) <= width:
            first = (*first, hint)
            break
    title = Run(f"{screen}  ", Tone.TITLE)
    clock = local_time(head.taken_at) if head.taken_at else ""
    if clock and head.is_recorded and width >= _ROOM_FOR_DATE:
        clock = f"{local_time(head.taken_at, '%Y-%m-%d')} {clock}"
    right: Line = (*head.status, Run(f"  {clock} " if clock else "", Tone.DIM))
    source = "" if head.origin.source is Source.LIVE else head.origin.source.name
    room = width - width_of((title,)) - width_of(right) - 3
    room -= len(source) + 1 if source else 0
    verdict: Line = ()
    for number, verdict in enumerate(() if head.failure else head.verdicts):
        least = _LEAST_HOST_CELLS if number < _FORMS_WITH_DEVICES else _SHORT_HOST_CELLS
        if room - width_of(verdict) >= min(cell_len(head.host), least):
            break
    host = shortened(head.host, max(_FEWEST_HOST_CELLS, room - width_of(verdict)))
    place = f"{source} {host}".strip()
    second: Line = (Run(f" {place}  " if place else " "), title, *verdict)
    return [cut(first, width), (*fit(second, max(0, width - width_of(right))), *right)]


def shortened(name: str, cells: int) -> str:
    """Return a name of at most so many cells, cut in the middle: its end tells hosts apart."""
    if cell_len(name) <= cells:
        return name
    begin = set_cell_size(name, cells // 2).rstrip()
    end = name
    while cell_len(end) > cells - cell_len(begin) - 1:
        end = end[1:]
    return f"{begin}…{end}"


@runtime_checkable
class HasHead(Protocol):
    """An app whose screens have a head."""

    head: HeadState


class HeadView(LinesView):
    """The rows of the head on one screen."""

    def __init__(self, screen: str, has_hint: bool = False) -> None:
        """`screen`: its name, beside the host; `has_hint`: the key that matters now works on this screen."""
        super().__init__(id="head")
        self.can_focus = False
        self._screen_name, self._has_hint = screen, has_hint

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Draw the head of the app."""
        app: object = self.app
        width = self.room or self.app.size.width  # the first frame is painted before it has its place
        if isinstance(app, HasHead) and width:
            head = app.head if self._has_hint else replace(app.head, hint="")
            self.show(draw(head, self._screen_name, width))


def change_head(app: App[Any], **fields: Any) -> None:
    """Show what is new in the head of an app; a question leaves the screen below it visible."""
    assert isinstance(app, HasHead)
    head = replace(app.head, **fields)
    if head == app.head:
        return
    app.head = head
    for screen in reversed(app.screen_stack if app.is_running else ()):
        draw_head(screen)
        if not screen.is_modal:
            return


def draw_head(screen: Screen[Any]) -> None:
    """Draw the head of a screen, if it is composed."""
    for view in screen.query(HeadView) if screen.is_mounted else ():
        view.draw()
