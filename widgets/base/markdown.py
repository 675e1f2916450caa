"""Markdown of the manual, rendered by rich: for a terminal, and as lines of a screen."""

from __future__ import annotations

import io

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.style import Style
from rich.theme import Theme

from widgets.base.lines import Line, Run, Tone

# The terminal's own colors, no background: right on light and dark terminals.
_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)


class _LeftHeading(Heading):
    """A heading at the left margin, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class ManualMarkdown(Markdown):
    """A page of the manual."""

    elements = {**Markdown.elements, "heading_open": _LeftHeading}  # noqa: RUF012 - rich's own type

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme="ansi_light")


def print_markdown(text: str, console: Console) -> None:
    """Print Markdown with the manual's styles."""
    with console.use_theme(_THEME):
        console.print(ManualMarkdown(text))


def markdown_lines(text: str, width: int) -> list[Line]:
    """Render Markdown as lines of at most `width` cells."""
    console = Console(file=io.StringIO(), width=max(20, width), color_system=None, theme=_THEME)
    rows = console.render_lines(ManualMarkdown(text), pad=False)
    return [tuple(Run(part.text, _tone(part.style)) for part in row if part.text) for row in rows]


def _tone(style: Style | None) -> Tone:
    if style is None:
        return Tone.PLAIN
    if style.bold:
        return Tone.TITLE
    if style.dim:
        return Tone.DIM
    return Tone.NIC if style.color is not None and style.color.name == "cyan" else Tone.PLAIN
