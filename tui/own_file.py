"""A text of the user's, written into a new file in the current directory."""

from __future__ import annotations

import os

from tui.new_file import NewFile, told


class NotWritten(Exception):
    """The file is not there; the message says why."""


def write_new(name: str, text: str) -> str:
    """Writes a file that must not be there yet; its path as it may be shown."""
    try:
        path = os.path.join(os.getcwd(), name)
    except OSError:
        raise NotWritten("the current directory is gone: start gdrtop in another one") from None
    file = NewFile(path, NotWritten)
    try:
        file.write(text.encode("utf-8", "replace"))
        file.keep()
    finally:
        file.drop()
    return told(path)
