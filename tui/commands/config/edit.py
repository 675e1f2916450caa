"""`gdrtop config --edit`: an editor on a copy, which replaces the file once it is valid (visudo's way)."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TextIO

from probes.host.trusted_path import is_root, trusted_environment
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.commands.config.validation import more_errors
from tui.files.new_file import NotWritten, make_directory, shown_path, why, write_new
from tui.files.read_file import read_small
from tui.files.xdg import NO_HOME
from tui.settings import load
from tui.settings.load import WHAT
from tui.settings.merge import merge
from tui.settings.save import MODE, SITE_MODE, NotSaved, read_file, replace_file
from tui.settings.table import template


def edit(out: TextIO) -> int:
    """Edit the file of this user, as root that of the site; return the exit status."""
    try:
        return _edit(out)
    except (NotSaved, NotWritten) as error:
        print(f"gdrtop: {error}", file=sys.stderr)
        return EXIT_WRONG_USAGE


def _edit(out: TextIO) -> int:
    is_site = is_root()
    path = os.path.join(load.SITE_DIRECTORY, load.FILE) if is_site else load.user_file()
    if not path:
        raise NotSaved(NO_HOME)
    path = path if is_site else os.path.realpath(path)  # a link of dotfiles stays one
    before, status = read_file(path)
    make_directory(os.path.dirname(path), NotSaved, 0o755 if is_site else 0o700)
    base = template().encode() if before is None else before
    copy = os.path.join(os.path.dirname(path), f"config.{os.getpid()}.edit.toml")
    write_new(copy, base.decode("utf-8", "replace"))
    while True:
        _run_editor(copy)
        edited = read_small(copy, load.MOST_BYTES, WHAT)
        if edited == base:
            os.unlink(copy)
            out.write(f"{shown_path(path)} is unchanged\n")
            return 0
        errors = _errors(edited, path, is_site)
        if not errors:
            break
        print("\n".join(f"gdrtop: {error}" for error in errors), file=sys.stderr)
        if not _asks_again():
            print(f"gdrtop: nothing was saved; your copy is {shown_path(copy)}", file=sys.stderr)
            return EXIT_WRONG_USAGE
    if read_file(path)[0] != before:
        raise NotSaved(f"{shown_path(path)} changed meanwhile; your copy is {shown_path(copy)}")
    replace_file(path, edited, status, SITE_MODE if is_site else MODE)
    os.unlink(copy)
    out.write(f"saved {shown_path(path)}\n")
    return 0


def _errors(content: bytes, path: str, is_site: bool) -> list[str]:
    found = merge([(shown_path(path), is_site, content)], {}, is_root=is_root())
    return [*found.errors, *more_errors(found)]


def _run_editor(copy: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(editor)
        status = (
            subprocess.run([*words, copy], env=trusted_environment(), check=False).returncode if words else 1
        )
    except (OSError, ValueError) as error:
        os.unlink(copy)
        raise NotSaved(f"the editor {editor!r} cannot be started: {why(error)}; set EDITOR") from None
    if status:
        raise NotSaved(f"the editor ended with exit status {status}; your copy is {shown_path(copy)}")


def _asks_again() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    try:
        return input("Edit again? [Y/n] ").strip().lower() in ("", "y", "yes")
    except EOFError:
        return False
