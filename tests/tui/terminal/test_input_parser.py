"""What a terminal sends: keys arrive, what is no key presses none, and none are swallowed for ever."""

from collections.abc import Iterable

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.message import Message

from tui.terminal.input_parser import InputParser

REPLIES = {
    "mode": "\x1b[?2004;1$y",
    "device attributes": "\x1b[?62;22;52c\x1b[>41;370;0c",
    "color": "\x1b]11;rgb:1e1e/1e1e/1e1e\x1b\\\x1b]10;rgb:ffff/ffff/ffff\x07",
    "theme": "\x1b[?997;1n",
    "version": "\x1bP>|xterm(370)\x1b\\",
    "keyboard": "\x1b[?1u",
    "unfinished string": f"\x1b]52;c;{'q' * 300_000}\x1b\\",
    "unfinished strings": "\x1bPq\x1b^q\x1b_q\x1bXq\x1b\\",
    "digits": f"\x1b[{'1' * 100_000}c",
    "no key, but raises in Textual's parser": "\x1b[97:65u\x1b[97;1:3u\x1b[99999999u",
    "an end without a paste": "\x1b[201~",
}


def heard(*pieces: str, pause: float = 0.0) -> list[Message]:
    """What is reported of pieces of the input, with a pause between them."""
    parser = InputParser()
    found: list[Message] = []
    now = 1000.0
    for piece in pieces:
        found += parser.feed(piece, now)
        now += pause
        found += parser.tick(now)
    return [*found, *parser.tick(now + 1.0)]


def pressed(*pieces: str, pause: float = 0.0) -> list[str]:
    return [event.key for event in heard(*pieces, pause=pause) if isinstance(event, events.Key)]


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
def test_a_reply_presses_no_key_whole_or_in_pieces(reply: str) -> None:
    for piece in (len(reply), 4096, 7, 1) if len(reply) < 1000 else (len(reply), 4096):
        pieces = [reply[start : start + piece] for start in range(0, len(reply), piece)]
        assert pressed("j", *pieces, "k") == ["j", "k"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("\x1b[A\x1bOB\x1bOP\x1b[[A\x1b[3~\x1b[1;5C", ["up", "down", "f1", "f1", "delete", "ctrl+right"]),
        ("\x1b[113;5uq\x1b[97;;97u", ["ctrl+q", "q", "a"]),
        ("\x1bx\x1b\x1b[A\x1b", ["alt+x", "escape", "up", "escape"]),
        ("\x1b]", ["right_square_bracket"]),
        ("\x1b[23$", ["f23"]),
        ("\x1b[12;\x03", ["ctrl+c"]),
        ("\x1b]52;c;\x03", ["ctrl+c"]),
    ],
)
def test_keys_arrive_whole_or_in_pieces(typed: str, expected: list[str]) -> None:
    assert pressed(typed) == expected
    assert pressed(*typed) == expected


def test_the_mouse_and_the_focus_arrive() -> None:
    found = heard("\x1b[<0;3;4M\x1b[<0;3;4m\x1b[M !!\x1b[I\x1b[O")
    assert [type(event) for event in found] == [
        events.MouseDown,
        events.MouseUp,
        events.AppFocus,
        events.AppBlur,
    ]


@pytest.mark.parametrize("rest", ["q" * 9 + "\x03", "\x1b[99;5u"], ids=["control", "kitty"])
def test_ctrl_c_works_in_a_paste_whose_end_is_lost(rest: str) -> None:
    assert pressed("\x1b[200~text", rest, "q") == ["ctrl+c", "q"]


def test_a_paste_is_no_key_and_one_whose_end_is_lost_ends_after_a_pause() -> None:
    found = heard("\x1b[200~a path\x1b[31m qqq", "\x1b[20", "1~j")
    assert [event.text for event in found if isinstance(event, events.Paste)] == ["a path\x1b[31m qqq"]
    assert pressed("\x1b[200~qqq", "\x1b[201~j") == ["j"]
    assert pressed("\x1b[200~qqq", "j", pause=60.0) == ["j"]
    assert pressed("\x1b]52;c;qqq", "j", pause=60.0) == ["j"]
    (paste, key) = heard(f"\x1b[200~{'x' * 100_000}", *["x" * 7] * 100, "\x1b[201~j")
    assert isinstance(paste, events.Paste)
    assert len(paste.text) == 4096
    assert isinstance(key, events.Key)


def test_textual_sees_each_character_once_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    feed = XTermParser.feed

    def counted(parser: XTermParser, text: str) -> Iterable[Message]:
        seen.append(text)
        return feed(parser, text)

    monkeypatch.setattr(XTermParser, "feed", counted)
    text = "".join(REPLIES.values()) * 3 + "j" * 1000
    heard(text)
    assert len("".join(seen)) < 2000
    seen.clear()
    heard(*text)
    assert len("".join(seen)) < 2000
