"""`gdrtop help [SUBJECT]`: the manual, rendered for a terminal, plain in a pipe."""

from __future__ import annotations

import argparse
import io
from typing import TextIO

from tui.commands.arguments import UsageError
from tui.manual import SUBJECTS, page, title
from tui.runtime.printing import ascii_text, has_color, is_plain, text_width


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "subject", metavar="SUBJECT", nargs="?", help="page to show; without it, list the pages"
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the page that the options name."""
    if options.subject not in (None, *SUBJECTS):
        raise UsageError(f"unknown subject {options.subject!r}; gdrtop help lists them")
    return command(options.subject, out, options.ascii)


def command(subject: str | None, out: TextIO, ascii_only: bool = False) -> int:
    """Print a subject of the manual, or the list of subjects; return the exit status."""
    if subject is None:
        out.write("Manual pages (gdrtop help SUBJECT):\n\n")
        for name in SUBJECTS:
            out.write(f"  {name:<12}{title(name)}\n")
        out.write("\nCommands and options: gdrtop --help, gdrtop COMMAND --help\n")
        return 0
    from rich.console import Console

    from widgets.base.markdown import print_markdown

    text = io.StringIO()
    is_ascii = is_plain(out, ascii_only)
    styled = has_color(out)
    console = Console(
        file=text,
        width=text_width(out),
        force_terminal=styled,
        color_system="standard" if styled else None,
        no_color=not styled,
    )
    print_markdown(page(subject), console)
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    printed = "\n".join(lines) + "\n"
    out.write(ascii_text(printed) if is_ascii else printed)
    return 0
