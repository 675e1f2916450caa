"""A terminal emulator: pyte's, which also keeps dim text and hyperlinks."""

import re

import pyte

_LINK = re.compile("\x1b]8;[^;]*;([^\x1b]*)\x1b\\\\")
Cell = tuple[object, ...]


class _Screen(pyte.Screen):
    def __init__(self, columns: int, rows: int) -> None:
        self.is_dim = False
        self.link = ""
        self.more: dict[tuple[int, int], tuple[bool, str]] = {}
        super().__init__(columns, rows)

    def select_graphic_rendition(self, *attributes: int, **modifiers: bool) -> None:
        super().select_graphic_rendition(*attributes, **modifiers)
        numbers = list(attributes) or [0]
        while numbers:
            number = numbers.pop(0)
            if number in (38, 48):
                del numbers[: 2 if numbers[0] == 5 else 4]
            elif number in (0, 2, 22):
                self.is_dim = number == 2

    def draw(self, data: str) -> None:
        for character in data:
            width = pyte.screens.wcwidth(character)
            # Behind the last column, the last cells are overwritten.
            start = self.cursor.x if self.cursor.x < self.columns else self.columns - width
            super().draw(character)
            for column in range(start, start + width):
                self.more[self.cursor.y, column] = self.is_dim, self.link


class Emulator:
    """The screen of a terminal that does not wrap lines, as Textual sets it."""

    def __init__(self, columns: int, rows: int) -> None:
        self._screen = _Screen(columns, rows)
        self._screen.reset_mode(7, private=True)
        self._stream = pyte.Stream(self._screen)

    def feed(self, written: str) -> None:
        """Show what a program wrote."""
        end = 0
        for link in _LINK.finditer(written):
            self._stream.feed(written[end : link.start()])
            self._screen.link, end = link[1], link.end()
        self._stream.feed(written[end:])

    @property
    def text(self) -> str:
        """What is shown, as lines."""
        return "\n".join(self._screen.display)

    def cell(self, row: int, column: int) -> Cell:
        """Return what a cell shows: its text, colors and attributes, whether it is dim, its link."""
        return (*self._screen.buffer[row][column], *self._screen.more.get((row, column), (False, "")))

    def cells(self, row: int) -> list[Cell]:
        """Return the cells of a row."""
        return [self.cell(row, column) for column in range(self._screen.columns)]

    def take_written_rows(self) -> set[int]:
        """Return the rows that were written to since the last call."""
        rows = set(self._screen.dirty)
        self._screen.dirty.clear()
        return rows


def differences(ours: Emulator, theirs: Emulator) -> list[str]:
    """Describe the cells that differ in rows that were written to since the last call."""
    return [
        f"row {row} column {column}: {mine} instead of {other}"
        for row in sorted(ours.take_written_rows() | theirs.take_written_rows())
        for column, (mine, other) in enumerate(zip(ours.cells(row), theirs.cells(row), strict=True))
        if mine != other
    ]
