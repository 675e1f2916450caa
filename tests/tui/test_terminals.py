"""The dashboard on real terminals: what each of them shows, by a terminal emulator."""

import re
import signal

import pytest

from tests.support.terminals import LINES, LONGEST_WAIT_SECONDS, Terminal, dashboard
from tests.support.tiers import usual

TERMS = {
    "xterm-256color": {"TERM": "xterm-256color"},
    "linux": {"TERM": "linux"},
    "truecolor": {"TERM": "xterm-256color", "COLORTERM": "truecolor"},
    "screen": {"TERM": "screen"},
    "tmux": {"TERM": "tmux-256color"},
}


def has_invisible_text(terminal: Terminal) -> bool:
    """Whether a character is drawn in the color of its background."""
    return any(
        cell.data.strip() and cell.fg == cell.bg and (cell.fg, cell.bg) != ("default", "default")
        for cell in terminal.cells
    )


DRAWN = [f"{term} {color}" for term in TERMS for color in ("color", "no-color")]


@pytest.mark.slow
@pytest.mark.parametrize("drawn", usual(DRAWN, {"linux color", "xterm-256color no-color"}))
def test_no_character_has_the_color_of_its_background(drawn: str) -> None:
    term, _, color = drawn.partition(" ")
    no_color = color == "no-color"
    environment = {**TERMS[term], **({"NO_COLOR": "1"} if no_color else {})}
    with dashboard("--demo", "hgx-h100+no-gdr-path", **environment) as terminal:
        for key, words in (("", "BROKEN"), ("d", "Evidence"), ("?", "EVERYWHERE"), ("x", "Selected")):
            terminal.press(key)
            terminal.until(lambda words=words: words in terminal.text)  # type: ignore[misc]
            assert not has_invisible_text(terminal)
            if no_color:
                assert {(cell.fg, cell.bg) for cell in terminal.cells} == {("default", "default")}
                assert any(cell.bold or cell.reverse for cell in terminal.cells)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "locale"), [(("--ascii",), ""), ((), "C")], ids=["option", "locale"])
def test_with_ascii_only_ascii_is_drawn(arguments: tuple[str, ...], locale: str) -> None:
    environment = {"TERM": "xterm-256color", "LC_ALL": locale}
    with dashboard(*arguments, "--demo", "hgx-h100+no-gdr-path", **environment) as terminal:
        for key, words in (("", "BROKEN"), ("d", "Evidence"), ("b", "Settings"), ("?", "EVERYWHERE")):
            terminal.press(key)
            terminal.until(lambda words=words: words in terminal.text)  # type: ignore[misc]
            assert terminal.text.isascii()
            assert "+-" in terminal.text


def left_behind(written: str) -> list[str]:
    """Return what a program has changed on its terminal and not changed back."""
    modes: dict[str, str] = {}
    for numbers, state in re.findall(r"\x1b\[\?([\d;]+)([hl])", written):
        modes |= dict.fromkeys(numbers.split(";"), state)
    usual = {"7": "h", "25": "h"}  # lines wrap, and the cursor is shown
    left = [f"mode {mode}" for mode, state in modes.items() if state != usual.get(mode, "l")]
    pairs = {"keyboard": (r"\x1b\[>\d+u", r"\x1b\[<u"), "title": (r"\x1b\[22;0t", r"\x1b\[23;0t")}
    return left + [
        name
        for name, (begin, end) in pairs.items()
        if len(re.findall(begin, written)) != len(re.findall(end, written))
    ]


@pytest.mark.parametrize("end", usual(["q", "SIGTERM", "SIGHUP", "SIGTSTP"], {"q"}))
def test_the_terminal_is_left_as_it_was(end: str) -> None:
    with dashboard("--demo", "hgx-h100+no-gdr-path", GDRTOP_TERMINAL_TITLE="yes") as terminal:
        terminal.until(lambda: "hgx-h100 BROKEN (gdrtop SIMULATED)" in terminal.screen.title)
        assert left_behind(terminal.written.decode(errors="replace"))
        if end == "q":
            terminal.press("q")
        else:
            terminal.process.send_signal(signal.Signals[end])
        terminal.until(lambda: not left_behind(terminal.written.decode(errors="replace")))
        if end != "SIGTSTP":
            assert terminal.process.wait(LONGEST_WAIT_SECONDS) == 0
        assert b"\x1b[?1049l" in terminal.written


@pytest.mark.slow
def test_no_title_is_set_unless_it_is_configured() -> None:
    with dashboard("--demo", "hgx-h100+no-gdr-path") as terminal:
        terminal.until(lambda: "BROKEN" in terminal.text)
        assert b"\x1b]0;" not in terminal.written


@pytest.mark.slow
def test_a_click_acts_and_a_move_of_the_mouse_is_not_asked_for() -> None:
    with dashboard("--demo", "hgx-h100+no-gdr-path") as terminal:
        terminal.until(lambda: "? Help" in terminal.screen.display[-1])
        column = terminal.screen.display[-1].index("Help") + 1
        modes = dict(re.findall(rb"\x1b\[\?(100[0236])([hl])", terminal.written))
        assert modes == {b"1000": b"h", b"1002": b"h", b"1003": b"l", b"1006": b"h"}
        terminal.press(f"\x1b[<0;{column};{LINES}M\x1b[<0;{column};{LINES}m")
        terminal.until(lambda: "EVERYWHERE" in terminal.text)
