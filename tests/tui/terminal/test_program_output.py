"""What programs print cannot act on the terminal: colours stay, everything else goes."""

import codecs
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.terminal.program_output import LineSplitter, sanitized, without_colors

SGR = re.compile(r"\x1b\[[0-9;]*m")


def splitter(limit: int = 200) -> LineSplitter:
    return LineSplitter(codecs.getincrementaldecoder("utf-8")("replace"), limit)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b]0;another title\x07text", "text"),
        ("\x1b]52;c;cm0gLXJm\x1b\\text", "text"),
        ("\x1b[2J\x1b[Htext", "text"),
        ("10 %\r20 %\rdone\r", "done"),
        ("\x9b31mred", "\x1b[31mred"),
        ("\x1bP1$qm\x1b\\text", "text"),
        ("\x1b(0text\x1b7", "text"),
        ("\x1b[?1049htext", "text"),
        ("over\b\b\b\btype", "over����type"),
        ("a\u202eb", "a�b"),
    ],
)
def test_colors_are_the_only_control_sequences_left(printed: str, shown: str) -> None:
    assert sanitized(printed, 200) == shown


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b[]m;0123\r\n\x9b\x07\\")))
def test_no_line_can_control_the_terminal(text: str) -> None:
    for line in [*splitter().feed(text.encode("utf-8", "surrogatepass")), sanitized(text, 50)]:
        assert without_colors(line).isprintable()
        assert "\x1b" not in SGR.sub("", line)


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_lines_do_not_depend_on_how_the_bytes_were_split(content: bytes, cuts: list[int]) -> None:
    whole, pieces = splitter(), splitter()
    expected = [*whole.feed(content), *whole.rest()]
    places = [0, *sorted(cuts), len(content)]
    told: list[str] = []
    for start, end in itertools.pairwise(places):
        told.extend(pieces.feed(content[start:end]))
    assert [*told, *pieces.rest()] == expected


def test_an_endless_line_does_not_fill_the_memory() -> None:
    endless = splitter(limit=100)
    lines = [line for _ in range(1000) for line in endless.feed(b"x" * 100)]
    assert len(lines) > 100
    assert max(map(len, lines)) <= 100


def test_a_long_line_is_not_cut_inside_a_color_sequence() -> None:
    line = sanitized("x" * 95 + "\x1b[38;5;196mred", 100)
    assert len(line) <= 100
    assert SGR.sub("", line).startswith("x" * 95)
    assert "\x1b" not in SGR.sub("", line)
