"""What the screens with a list share: its selection, and where it is made of an examination, its filter.

Knows nothing of Textual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from widgets.base.figures import local_time
from widgets.base.lines import Line, Tone, wrapped

if TYPE_CHECKING:
    from probes.snapshot.examination import Examination


class ListState(ABC):
    """A list with one of its entries selected."""

    def __init__(self) -> None:
        self.selected = ""

    @abstractmethod
    def _order(self) -> list[str]:
        """The ids of what is listed, from the top."""

    def select(self, step: int) -> None:
        """Select what is `step` further in the list."""
        order = self._order()
        if order:
            at = order.index(self.selected) + step if self.selected in order else 0
            self.selected = order[max(0, min(len(order) - 1, at))]

    def _keep_selection(self) -> None:
        """Select the first where the selected one is not listed any more."""
        if self.selected not in self._order():
            self.selected = self._first()

    def _first(self) -> str:
        """What is selected where nothing else is."""
        return next(iter(self._order()), "")

    @abstractmethod
    def list_lines(self, width: int) -> list[Line]:
        """The list."""

    @abstractmethod
    def detail_lines(self, width: int) -> list[Line]:
        """The selected one; nothing where none is."""


class ExaminedListState(ListState):
    """A list made of an examination of the node; a word narrows it."""

    def __init__(self) -> None:
        super().__init__()
        self.examination: Examination | None = None
        self.word = ""
        self._reading = False
        self._failure = ""

    def begin(self) -> None:
        """The list has been asked for."""
        self._reading = True

    def fail(self, what: str) -> None:
        """It could not be had."""
        self._reading, self._failure = False, what

    def _examined(self, examination: Examination) -> None:
        """It is of this examination from now on."""
        self.examination, self._reading, self._failure = examination, False, ""

    def filter(self, word: str) -> None:
        """List only what contains the word."""
        self.word = word.strip().lower()
        self._keep_selection()

    def summary(self, width: int) -> list[Line]:
        """What there is and as of when, or why there is nothing yet."""
        if self.examination is None:
            told = f"✗ {self._failure}" if self._failure else "Checking the node …"
            return wrapped(told, width, Tone.BAD if self._failure else Tone.DIM)
        at = local_time(self.examination.node.taken_at)
        as_of = self._failure or ("checking …" if self._reading else f"checked {at}")
        return self._summed_up(self.examination, as_of, width)

    @abstractmethod
    def _summed_up(self, examination: Examination, as_of: str, width: int) -> list[Line]:
        """The summary of an examination; `as_of` says how new it is."""
