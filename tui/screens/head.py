"""What the head of all screens shows, as the readings and other parts of gdrtop report it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from textual.app import App
from textual.screen import Screen

from probes.base.origin import Origin, Source
from tui.runtime.schedules import USUAL_PACE
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone
from widgets.base.lines_view import LinesView
from widgets.node import head as head_drawing
from widgets.node.head import Head


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

    def head(self) -> Head:
        """Return the parts of the head."""
        failed: Line = (Run(f"✗ Reading failed: {self.failure}", Tone.BAD),)
        return Head(
            failed if self.failure else self.sentence,
            self._host,
            "" if self.origin.source is Source.LIVE else self.origin.source.name,
            () if self.failure else self.verdicts,
            self._status,
            local_time(self.taken_at) if self.taken_at else "",
            local_time(self.taken_at, "%Y-%m-%d") if self.taken_at and self._is_recorded else "",
            "" if self.failure else self.hint,
        )

    @property
    def _host(self) -> str:
        """The host's name, and which recording, tree or simulated node it is."""
        label = "" if self.origin.source is Source.LIVE else self.origin.label
        if self._is_recorded:
            label = label.partition(", ")[0]  # its time is that of the clock
        return label if label and self.hostname in label else f"{self.hostname} {label}".strip()

    @property
    def _is_recorded(self) -> bool:
        return self.origin.source is Source.RECORDED

    @property
    def _status(self) -> Line:
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
            self.show(head_drawing.draw(head.head(), self._screen_name, width))


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
