"""Write a text to a new file, or copy it to the terminal's clipboard."""

from __future__ import annotations

import time
from collections.abc import Mapping

from textual.screen import Screen

from tui.files import NotWritten
from tui.files.new_file import write_new
from tui.terminal.clipboard import clipboard_hint


def write(screen: Screen[None], texts: Mapping[str, str]) -> None:
    """Write texts, by name, to new files in the current directory, and notify where, or why that failed."""
    try:
        paths = [write_new(name, text) for name, text in texts.items()]
    except NotWritten as error:
        screen.notify(str(error), severity="error", markup=False)
    else:
        screen.notify(f"Written to {' and '.join(paths)}", markup=False)


def save(screen: Screen[None], name: str, **texts: str) -> None:
    """Write texts to files with the time in their names, by extension: "NAME-20261121-140200.txt"."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime())}"
    write(screen, {f"{stem}.{extension}": text for extension, text in texts.items()})


def copy(screen: Screen[None], text: str, what: str = "") -> None:
    """Send a text to the terminal's clipboard; terminals do not report whether they accept it.

    `what` is a part of the notification, such as " as a shell script".
    """
    screen.app.copy_to_clipboard(text)
    screen.notify(f"Sent to the terminal's clipboard{what}. {clipboard_hint()}", markup=False)
