"""A failed snapshot shows its first differing lines in the terminal, and the command that accepts them."""

import io

from rich.console import Console
from rich.text import Text

from tests.tui.snapshot_difference import difference, failure, screen_lines


def picture(*lines: str | Text) -> str:
    console = Console(record=True, width=40, file=io.StringIO(), legacy_windows=False)
    for line in lines:
        console.print(line)
    return console.export_svg(title="gdrtop", unique_id="terminal-1")


def test_a_screen_is_read_as_text_in_columns() -> None:
    line = Text.assemble(("mlx5_0", "bold red"), "    ", ("<&>", "green"), "  é …")
    assert screen_lines(picture("one", "", line)) == ["one", "", "mlx5_0    <&>  é …"]


def test_lines_that_differ_are_shown_old_and_new() -> None:
    old, new = picture("head", "port 1 up", "foot"), picture("head", "port 1 down", "foot", "more")
    assert difference(old, new) == "line 2\n- port 1 up\n+ port 1 down\nline 4\n- \n+ more"


def test_many_lines_are_counted() -> None:
    old, new = picture(*(f"old {n}" for n in range(20))), picture(*(f"new {n}" for n in range(20)))
    assert difference(old, new).endswith("+ new 5\nand 14 more lines")


def test_a_difference_in_style_only_is_called_so() -> None:
    old = picture("head", Text("● ACTIVE", "green"))
    text = difference(old, picture("head", Text("● ACTIVE", "bold red")))
    assert text.startswith(
        "The text is the same; only colors or styles differ, in line 2.\n- column 1, '● ACTIVE'"
    )
    assert "font-weight: bold" in text.splitlines()[-1]
    behind = difference(old, picture("head", Text("● ACTIVE", "green on blue")))
    assert "differ, in line 2." in behind
    assert difference(old, old.replace("Fira Code", "Other")).endswith("only what is around it differs.")


def test_the_failure_names_file_and_command() -> None:
    text = failure("a/test_help[80x24].svg", "a/test.py::test_help[80x24]", picture("x"), picture("y"))
    assert text.startswith("The screen differs from a/test_help[80x24].svg:\n\nline 1\n- x\n+ y\n")
    assert text.endswith("\n.venv/bin/python -m pytest -m '' --snapshot-update 'a/test.py::test_help[80x24]'")
    assert failure("a.svg", "a.py::test", None, picture("y")).startswith("There is no a.svg.\n")
