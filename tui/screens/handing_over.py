"""What a screen hands over: a text into a new file, or to the terminal's clipboard."""

from __future__ import annotations

import time

from textual.screen import Screen

from tui.own_file import NotWritten, write_new


def write(screen: Screen[None], name: str, text: str) -> None:
    """Writes a text into a new file in the current directory, and says where, or why not."""
    try:
        path = write_new(name, text)
    except NotWritten as error:
        screen.notify(str(error), severity="error", markup=False)
    else:
        screen.notify(f"Written to {path}", markup=False)


def save(screen: Screen[None], name: str, text: str) -> None:
    """Writes a text into a file of its own time: "NAME-20261121-140200.txt"."""
    write(screen, f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.txt", text)


def copy(screen: Screen[None], text: str, what: str = "") -> None:
    """Sends a text to the clipboard, by way of the terminal; whether it came there nobody says.

    `what`: how the text goes, as " as a shell script".
    """
    screen.app.copy_to_clipboard(text)
    told = f"Sent to the terminal's clipboard{what}. The terminal (and tmux) must allow OSC 52."
    screen.notify(told, markup=False)
