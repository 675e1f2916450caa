"""Base classes for the state of screens with lists: the selection and the filter. They do not use Textual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from widgets.base.figures import local_time
from widgets.base.lines import Line, Tone, wrapped

if TYPE_CHECKING:
    from probes.snapshot.examination import Examination


class ListState(ABC):
    """A list with a selected entry."""

    def __init__(self) -> None:
        self.selected = ""
        self._is_chosen = False  # by a person, and not only the default
        self._failure = ""  # why there is no list

    def fail(self, message: str) -> None:
        """Note why there is no list."""
        self._failure = message

    def _draw_absent(self, waiting: str, width: int) -> list[Line]:
        """Draw why there is no list, or what gdrtop waits for."""
        text = f"✗ {self._failure}" if self._failure else waiting
        return wrapped(text, width, Tone.BAD if self._failure else Tone.DIM)

    @abstractmethod
    def _order(self) -> list[str]:
        """Return the ids of the entries, from the top."""

    def select(self, step: int) -> None:
        """Move the selection by `step` entries."""
        order = self._order()
        if order:
            at = order.index(self.selected) + step if self.selected in order else 0
            self.choose(order[max(0, min(len(order) - 1, at))])

    def choose(self, entry: str) -> None:
        """Select the entry that a person has chosen."""
        self.selected, self._is_chosen = entry, True

    def _keep_selection(self) -> None:
        """Select the first entry if the selected one is no longer in the list."""
        if self.selected not in self._order():
            self.selected, self._is_chosen = self._first(), False

    def _first(self) -> str:
        """Return the default selection."""
        return next(iter(self._order()), "")

    @abstractmethod
    def list_lines(self, width: int) -> Sequence[Line]:
        """Draw the list."""

    @abstractmethod
    def detail_lines(self, width: int) -> list[Line]:
        """Draw the selected entry, if there is one."""


class FilteredListState(ListState):
    """A list with a summary above it and a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.word = ""

    def filter(self, word: str) -> None:
        """List only what contains the word."""
        self.word = word.strip().lower()
        self._keep_selection()

    @abstractmethod
    def summary(self, width: int) -> list[Line]:
        """Draw what the list contains and how old it is, or why there is none."""


class ExaminedListState(FilteredListState):
    """A list from an examination of the node, with a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.examination: Examination | None = None
        self._reading = False
        self._minutes = 0  # since the examination

    def begin(self) -> None:
        """Note that an examination was requested."""
        self._reading = True

    def fail(self, message: str) -> None:
        """Note why there is no list."""
        super().fail(message)
        self._reading = False

    def _examined(self, examination: Examination) -> None:
        self.examination, self._reading, self._failure, self._minutes = examination, False, "", 0

    def _set_time(self, at: float) -> bool:
        """Note the time of the newest reading; return whether the examination has become a minute older."""
        before = self._minutes
        if self.examination is not None:
            self._minutes = max(0, int((at - self.examination.taken_at) // 60))
        return self._minutes != before

    def summary(self, width: int) -> list[Line]:
        """Draw what the list contains and how old it is, or why there is none."""
        if self.examination is None:
            return self._draw_absent("Checking the node …", width)
        age = f", {self._minutes} min ago" if self._minutes else ""
        checked = f"checked {local_time(self.examination.taken_at)}{age}"
        as_of = self._failure or ("checking …" if self._reading else checked)
        return self._draw_summary(self.examination, as_of, width)

    @abstractmethod
    def _draw_summary(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """Draw the summary of an examination; `as_of` says how old it is."""
