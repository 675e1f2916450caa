"""What one cell of a terminal shows: its text and its pen, and the shortest way from one pen to another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len

# Characters whose width all terminals agree on: Latin to Armenian without combining marks, punctuation,
# arrows, box drawing, blocks, symbols and Braille; CJK and Hangul syllables. Emoji are not among them: old
# terminals draw them narrow, and sequences of them as several characters.
_NARROW = (
    *((0x20, 0x7E), (0xA0, 0xAC), (0xAE, 0x2FF), (0x370, 0x482), (0x48A, 0x58F), (0x1E00, 0x1FFF)),
    *((0x2010, 0x2027), (0x2030, 0x205E), (0x2070, 0x20CF), (0x2100, 0x2BFF)),
)
_WIDE = (
    *((0x3001, 0x3029), (0x3041, 0x3096), (0x30A1, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xFF01, 0xFF60)),
)
_JOINER = "\u200d"
# Controls, with which a text would act on the terminal, and marks that reorder what stands around them. Texts
# are cleaned where they are read (probes.base.text); this is the last door before the terminal.
_NEVER_WRITTEN = dict.fromkeys(
    (*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
)

# The code that turns an attribute off; 22 ends bold and dim.
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "5": "25", "6": "25", "7": "27", "8": "28", "9": "29"}
_OFF |= {"21": "24", "53": "55"}
# Characters of one cell that were seen already, of the few thousand in _NARROW: each once, for Python makes a
# new object for every "─" of a text.
_one_cell = {chr(code): chr(code) for code in range(*_NARROW[0])}


@lru_cache(4096)
def agreed_width(text: str) -> int:
    """Return the width of a character in cells, or 0 for one (or several) where terminals may differ."""
    if len(text) != 1:
        return 0
    code, width = ord(text), cell_len(text)
    ranges = {1: _NARROW, 2: _WIDE}.get(width, ())
    return width if any(first <= code <= last for first, last in ranges) else 0


@lru_cache(1024)
def cells_of(text: str) -> tuple[tuple[str, ...], bool]:
    """Split a text into cells; return also whether terminals may disagree about the width of some.

    A cell has a character, or a run of characters of which only the whole has a width. Cells that it covers
    besides its first one are empty. Controls are left out, and marks without a character before them.
    """
    try:  # as fast as it can be: each figure that has changed comes here
        return tuple(map(_one_cell.__getitem__, text)), False
    except KeyError:
        pass
    cells: list[str] = []
    place, is_disputed = 0, False
    while place < len(text):
        start, width = place, agreed_width(text[place])
        place += 1
        if not width or (place < len(text) and not cell_len(text[place])):
            while place < len(text) and (not agreed_width(text[place]) or text[place - 1] == _JOINER):
                place += 1
            width, is_disputed = cell_len(text[start:place]), True
        if width:
            cells += [text[start:place].translate(_NEVER_WRITTEN), *[""] * (width - 1)]
    width = cell_len(text)
    if len(cells) == width:
        if not is_disputed and len(text) == width:
            _one_cell.update(zip(text, text, strict=True))
        return tuple(cells), is_disputed
    return (text.translate(_NEVER_WRITTEN), *[""] * (width - 1))[:width], True


@dataclass(frozen=True, eq=False)
class Pen:
    """How characters are drawn: attributes and colors as SGR codes, and a hyperlink with its id.

    Equal pens are the same object (Pens).
    """

    attributes: frozenset[str] = frozenset()
    foreground: str = ""
    background: str = ""
    link: str = ""
    link_id: str = ""

    @property
    def codes(self) -> list[str]:
        """The SGR codes after a reset."""
        return [*sorted(self.attributes), *filter(None, (self.foreground, self.background))]


PLAIN = Pen()


def parse_pen(codes: str, link: str = "", link_id: str = "") -> Pen:
    """Return the pen of SGR codes that follow a reset, as Rich and Textual write them."""
    attributes, foreground, background = set(), "", ""
    numbers = codes.split(";") if codes else []
    while numbers:
        taken = {"5": 3, "2": 5}.get(numbers[1], 1) if numbers[0] in ("38", "48") and len(numbers) > 1 else 1
        code, first = ";".join(numbers[:taken]), int(numbers[0])
        del numbers[:taken]
        if first == 39:
            foreground = ""
        elif first == 49:
            background = ""
        elif 30 <= first <= 38 or 90 <= first <= 97:
            foreground = code
        elif 40 <= first <= 48 or 100 <= first <= 107:
            background = code
        else:
            attributes.add(code)
    return Pen(frozenset(attributes), foreground, background, link, link_id)


def change_pen(old: Pen, new: Pen) -> str:
    """Return the shortest control sequences that change the pen."""
    sequences = ""
    if old.link != new.link:
        sequences = f"\x1b]8;id={new.link_id};{new.link}\x1b\\" if new.link else "\x1b]8;;\x1b\\"
    if (old.attributes, old.foreground, old.background) == (new.attributes, new.foreground, new.background):
        return sequences
    absolute = f"\x1b[{';'.join(['0', *new.codes])}m" if new.codes else "\x1b[m"
    removed = old.attributes - new.attributes
    if not removed <= _OFF.keys():
        return sequences + absolute
    off = {_OFF[code] for code in removed}
    # A code that ends one of two attributes ends both.
    on = {code for code in new.attributes if code not in old.attributes or _OFF.get(code) in off}
    codes = [*sorted(off), *sorted(on)]
    if old.foreground != new.foreground:
        codes.append(new.foreground or "39")
    if old.background != new.background:
        codes.append(new.background or "49")
    return sequences + min(f"\x1b[{';'.join(codes)}m", absolute, key=len)
