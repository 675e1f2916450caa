"""A text of the user's, written into a new file in the current directory."""

from __future__ import annotations

import os

from tui.files.new_file import NewFile, told


class NotWritten(Exception):
    """The file is not there; the message says why."""


def check_new(name: str) -> None:
    """Raise NotWritten where a new file of this name could not be written; nothing is left behind."""
    _new(name).drop()


def write_new(name: str, text: str) -> str:
    """Write a file that must not exist yet; its path as it may be shown."""
    file = _new(name)
    try:
        file.write(text.encode("utf-8", "replace"))
        file.keep()
    finally:
        file.drop()
    return told(file.path)


def _new(name: str) -> NewFile:
    try:
        path = os.path.join(os.getcwd(), name)
    except OSError:
        raise NotWritten("the current directory no longer exists; start gdrtop in another one") from None
    return NewFile(path, NotWritten)
