"""Hand over a text: to a new file, or to the terminal's clipboard."""

from __future__ import annotations

import time

from textual.screen import Screen

from tui.files.new_file import NotWritten, write_new


def write(screen: Screen[None], name: str, text: str) -> None:
    """Write a text to a new file in the current directory, and say where, or why not."""
    try:
        path = write_new(name, text)
    except NotWritten as error:
        screen.notify(str(error), severity="error", markup=False)
    else:
        screen.notify(f"Written to {path}", markup=False)


def save(screen: Screen[None], name: str, text: str) -> None:
    """Write a text to a file named by the time: "NAME-20261121-140200.txt"."""
    write(screen, f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime())}.txt", text)


def copy(screen: Screen[None], text: str, what: str = "") -> None:
    """Send a text to the clipboard through the terminal, which does not say whether it took it.

    `what` says how the text is sent, as " as a shell script".
    """
    screen.app.copy_to_clipboard(text)
    told = f"Sent to the terminal's clipboard{what}. The terminal (and tmux) must allow OSC 52."
    screen.notify(told, markup=False)
