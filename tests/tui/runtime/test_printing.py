"""The color of text commands: on a terminal, on request, never in a pipe, and never more than a color."""

import io
import re
from collections.abc import Iterator

import pytest

from tui.bandwidth.ticket import ticket_text
from tui.cli import main
from tui.runtime.printing import ascii_text, choose_color, is_plain, print_lines
from widgets.base.lines import Line, Run, Tone, line

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
CLOCK = re.compile(r"\d\d:\d\d:\d\d")  # of the head: two runs may be in two seconds
LINES: tuple[Line, ...] = (
    line("state ", Run("✗ BROKEN", Tone.BAD), " ≥ ", Run("GPU0  ", Tone.GPU)),
    line(Run("a\x1b[31mb\n\tc\u202ed", Tone.WARNING), Run("é" * 5000, Tone.DIM)),
    (),
)


class Pipe(io.StringIO):
    encoding = "utf-8"


class Terminal(Pipe):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def automatic() -> Iterator[None]:
    yield
    choose_color("auto")


def printed(out: io.StringIO, ascii_only: bool = False) -> str:
    print_lines(LINES, out, ascii_only)
    return out.getvalue()


def test_a_terminal_gets_the_color_of_each_tone() -> None:
    first, *_ = printed(Terminal()).splitlines()
    assert first == "state \x1b[1;31m✗ BROKEN\x1b[m ≥ \x1b[1;32mGPU0\x1b[m"


@pytest.mark.parametrize("ascii_only", [False, True])
def test_without_its_colors_the_text_is_that_of_a_pipe(ascii_only: bool) -> None:
    text = printed(Terminal(), ascii_only)
    assert ESCAPE.sub("", text) == printed(Pipe(), ascii_only)
    assert text.count("\x1b") == len(ESCAPE.findall(text)) > 0
    assert text.isascii() == ascii_only


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": None}])
def test_variables_of_the_terminal_turn_colors_off(
    variable: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variable.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert "\x1b" not in printed(Terminal())
    choose_color("never")
    assert "\x1b" not in printed(Terminal())


def test_an_empty_no_color_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b" in printed(Terminal())


def test_the_option_decides_for_stdout_before_and_after_a_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*arguments: str) -> str:
        assert main(arguments) == 0
        return CLOCK.sub("", capsys.readouterr().out)

    monkeypatch.setenv("NO_COLOR", "1")
    after = shown("modules", "--demo", "pcie-l40s", "--color", "always")
    assert after == shown("--color", "always", "modules", "--demo", "pcie-l40s")
    assert "\x1b[" in after
    plain = shown("modules", "--demo", "pcie-l40s")
    assert plain == ESCAPE.sub("", after) == shown("modules", "--demo", "pcie-l40s", "--color", "never")
    assert "\x1b[1m" in shown("help", "json", "--color", "always")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in shown("help", "json")


def test_what_is_written_to_a_file_has_no_color() -> None:
    choose_color("always")
    assert "\x1b" not in ticket_text(())
    assert "\x1b" not in printed(Pipe())


@pytest.mark.parametrize(
    ("variables", "is_ascii"),
    [
        ({}, False),  # as in a container
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "de_DE@euro"}, True),
        ({"LANG": "C", "LC_CTYPE": "de_DE.utf8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "POSIX"}, True),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "PYTHONUTF8": "1"}, False),
    ],
)
def test_a_locale_without_utf8_gets_ascii_only(
    variables: dict[str, str], is_ascii: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_plain(Pipe(), False) is is_ascii


def test_in_ascii_a_tick_is_no_corner_and_no_cross() -> None:
    assert ascii_text("✓") not in ascii_text("╭╮╰╯┼✗×")
