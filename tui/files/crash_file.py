"""The file that describes a crash of gdrtop: a traceback without the values of variables."""

from __future__ import annotations

import os
import platform
import re
import time
import traceback

from probes.base.text import printable, printable_lines
from tui.files import NotWritten
from tui.files.new_file import NewFile, shown_path, why, why_not_as_root
from tui.files.version import version
from tui.files.xdg import NO_HOME, STATE, own_directory

_MOST_FILES = 5
_MOST_FRAMES = 60  # of each exception, the innermost
_MOST_CHARACTERS = 64 << 10
_NAME = re.compile(r"crash-\d{8}T\d{6}Z-\d+\.txt")


def describe_crash(error: BaseException) -> str:
    """Save the traceback of an error, and return the one line that the terminal shows."""
    try:
        details = f"details: {_save(error)}"
    except NotWritten as refusal:
        details = f"the details could not be saved: {refusal}"
    words = printable(f"{type(error).__name__}: {_message(error)}", 300)
    advice = "To report it, attach a recording: gdrtop record --redact FILE"
    return f"gdrtop stopped because of an error: {words}; {details}. {advice}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an error without a message"


def _save(error: BaseException) -> str:
    """Write the file, readable by its owner alone; return its printable path."""
    own = own_directory(STATE)
    if not own:
        raise NotWritten(NO_HOME)
    directory = os.path.join(own, "crashes")
    refusal = why_not_as_root(directory)
    if refusal:
        raise NotWritten(refusal)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        names = sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
        for name in names[: max(0, len(names) - _MOST_FILES + 1)]:  # room for one more file
            os.unlink(os.path.join(directory, name))
    except OSError as problem:
        raise NotWritten(f"{shown_path(directory)}: {why(problem)}") from None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = NewFile(os.path.join(directory, f"crash-{stamp}-{os.getpid()}.txt"))
    file.save(_text(error).encode("utf-8", "replace"))
    return shown_path(file.path)


def _text(error: BaseException) -> str:
    head = f"gdrtop {version()}, Python {platform.python_version()}, {platform.system()} {platform.release()}"
    lines = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, compact=True).format()
    text = printable_lines("".join(lines))
    return f"{head}\n\n{text[-_MOST_CHARACTERS:]}\n"
