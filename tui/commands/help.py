"""`gdrtop help [WORD…]`: a page of the manual, or where pages, checks and messages have some words."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from typing import TextIO

from probes.base.text import did_you_mean
from tui.command_line.arguments import UsageError
from tui.manual import COMMAND_PAGES, GROUPS, SUBJECTS, page
from tui.runtime.printing import ascii_text, has_color, is_plain, print_lines, text_width
from widgets.base.lines import Line, Run, Tone, line, wrapped

_MOST_LINES = 3  # of a page
_MOST_PAGES, _MOST_CHECKS = 8, 12


def add_options(parser: argparse.ArgumentParser) -> None:
    text = "a page, a command, or what to look for in pages, checks and messages; default: list the pages"
    parser.add_argument("words", metavar="WORD", nargs="*", help=text)


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the page that the options name, or what was found."""
    words = " ".join(options.words)
    subject = subject_of(words)
    if not words or subject:
        return command(subject, out, options.ascii)
    found = search(words, text_width(out))
    if not found:
        hint = did_you_mean(words.lower(), (*SUBJECTS, *COMMAND_PAGES)) or "; gdrtop help lists the pages"
        raise UsageError(f"no page, check or message has {words!r}{hint}")
    print_lines(found, out, options.ascii)
    return 0


def subject_of(words: str) -> str:
    """Return the page that is named by its own name or by a command's: "check", "fleet live"; "" for none."""
    name = words.lower().removeprefix("gdrtop ")
    return name if name in SUBJECTS else COMMAND_PAGES.get(name, "")


def command(subject: str, out: TextIO, ascii_only: bool = False) -> int:
    """Print a subject of the manual, or with "" the list of subjects; return the exit status."""
    if not subject:
        print_lines([line(text) for text in _index()], out, ascii_only)
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


def _index() -> Iterator[str]:
    yield "gdrtop help PAGE, gdrtop help COMMAND, or gdrtop help WORD to search everything"
    cells = max(map(len, SUBJECTS))
    for group, questions in GROUPS.items():
        yield ""
        yield group
        for subject, question in questions.items():
            yield f"  {subject:<{cells}}  {question}"
    yield ""
    yield "Commands and options: gdrtop --help, gdrtop COMMAND --help"


def search(words: str, width: int) -> list[Line]:
    """Return the pages with these words, the checks about them, and what they mean as a message."""
    wanted = words.lower().split()
    return [*_messages(words, width), *_pages(wanted, width), *_checks(wanted, width)]


def _messages(words: str, width: int) -> list[Line]:
    """Return what a program means by these words, if gdrtop knows the message."""
    from probes.messages.catalogue import catalogue, explain

    found = catalogue().find(words)
    lines: list[Line] = []
    if found is not None:
        meaning = explain(found)
        lines += [_heading(f"Message of {meaning.program}: {meaning.title}")]
        lines += wrapped(f"{meaning.cause} {meaning.fix}".strip(), width, indent="  ")
    return [*lines, ()] if lines else []


def _pages(wanted: Sequence[str], width: int) -> list[Line]:
    """Return the lines with all words, of the pages with most of them first."""
    found: dict[str, list[str]] = {}
    for subject in SUBJECTS:
        lines = [text.strip("#> |") for text in page(subject).splitlines()]
        if matching := [text for text in lines if _has(text, wanted)]:
            found[subject] = matching
    named = sorted(found, key=lambda name: (name != "words", not _has(name, wanted), -len(found[name])))
    shown: list[Line] = []
    for subject in named[:_MOST_PAGES]:
        shown.append(_heading(f"gdrtop help {subject}"))
        for text in found[subject][:_MOST_LINES]:
            shown += wrapped(text, width, indent="  ", hanging="  ")
        if (more := len(found[subject]) - _MOST_LINES) > 0:
            shown.append(line(Run(f"  {more} more lines", Tone.DIM)))
    if others := named[_MOST_PAGES:]:
        shown.append(line(Run(f"also in {', '.join(others)}", Tone.DIM)))
    return [*shown, ()] if shown else []


def _checks(wanted: Sequence[str], width: int) -> list[Line]:
    """Return the checks whose id or title has all words."""
    from probes.checks.registry import CHECKS

    found = [check for check in CHECKS if _has(f"{check.id} {check.texts().title}", wanted)]
    shown: list[Line] = [_heading("Checks (gdrtop check ID)")] if found else []
    for check in found[:_MOST_CHECKS]:
        shown += wrapped(f"{check.id}: {check.texts().title}", width, indent="  ", hanging="  ")
    if (more := len(found) - _MOST_CHECKS) > 0:
        shown.append(line(Run(f"  {more} more", Tone.DIM)))
    return shown


def _has(text: str, wanted: Sequence[str]) -> bool:
    folded = text.lower()
    return all(word in folded for word in wanted)


def _heading(text: str) -> Line:
    return line(Run(text, Tone.TITLE))
