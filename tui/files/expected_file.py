"""A site's table of what its machines reach: the file that is configured, or that of --expected."""

from __future__ import annotations

from probes.bandwidth.model.expected import MAX_TABLE_BYTES, ExpectedTable, TableError, parse_table
from tui.files.new_file import shown_path, why
from tui.files.read_file import read_small


def read_table(path: str) -> ExpectedTable:
    """Return the table in a file; raise TableError, with a sentence, if it cannot be read or is not valid."""
    try:
        text = read_small(path, MAX_TABLE_BYTES, "a table of expected figures").decode()
    except (OSError, ValueError) as error:
        reason = why(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TableError(f"{shown_path(path)} cannot be read: {reason}") from None
    try:
        return parse_table(text)
    except TableError as error:
        raise TableError(f"{shown_path(path)} is not valid: {error}") from None


def site_table(path: str, is_required: bool = False) -> tuple[ExpectedTable | None, str]:
    """Return the site's table, None without one; and why it is not used, "" if it is or does not exist.

    `is_required`: it should exist.
    """
    try:
        return read_table(path), ""
    except TableError as error:
        is_absent = not is_required and isinstance(error.__context__, (FileNotFoundError, NotADirectoryError))
        return None, "" if is_absent else f"{error}. gdrtop uses its own figures"
