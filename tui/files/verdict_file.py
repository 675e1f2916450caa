"""The verdict of the last check that was saved: a line for logins, and the JSON of `gdrtop check`."""

from __future__ import annotations

import os

from tui.files.new_file import NotWritten, make_directory, replace_public, why_not_as_root

ROOTS_DIRECTORY = "/run/gdrtop"
VERDICT_LINE, CHECK_JSON = "verdict", "check.json"


def save_verdict(directory: str, line: str, document: str) -> None:
    """Replace both files in a directory, for every user to read; NotWritten: they are not both saved."""
    if others := why_not_as_root(directory):
        raise NotWritten(others)
    make_directory(directory, mode=0o755)
    replace_public(os.path.join(directory, CHECK_JSON), document.encode())
    replace_public(os.path.join(directory, VERDICT_LINE), f"{line}\n".encode("utf-8", "replace"))
