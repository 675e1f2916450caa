"""The file that holds what a job's begin saved for its end, one for each job ID."""

from __future__ import annotations

import os
import re

from tui.files.new_file import NewFile, make_directory, shown_path, why, why_not_as_root
from tui.files.read_file import read_small
from tui.files.xdg import NO_HOME, STATE, own_directory

ROOTS_DIRECTORY = "/run/gdrtop"  # is empty again after a reboot, like the counters
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class JobFileError(Exception):
    """The file cannot be written or read; the message is a sentence that names it."""


def is_job_id(job: str) -> bool:
    """Return whether a word can be a job's ID: a letter or digit, then also "._+-", at most 64 characters."""
    return _JOB.fullmatch(job) is not None


class JobFile:
    """What one job's begin saved."""

    def __init__(self, job: str, directory: str | None = None) -> None:
        """`directory`: by default root's below /run, a user's in the XDG state directory."""
        assert is_job_id(job)
        if directory is None:
            directory = ROOTS_DIRECTORY if os.geteuid() == 0 else own_directory(STATE)
        if not os.path.isabs(directory):
            raise JobFileError(NO_HOME)
        self._directory = directory
        self.path = os.path.join(directory, f"job-{job}.json")

    def save(self, text: str) -> None:
        """Write the file, instead of one that the same job has left."""
        if others := why_not_as_root(self._directory):
            raise JobFileError(f"{shown_path(self.path)} cannot be written: {others}")
        make_directory(self._directory, JobFileError)
        file = NewFile(self.path, JobFileError, replaces=True)
        try:
            file.write(text.encode())
            file.keep()
        finally:
            file.drop()

    def read(self, most_bytes: int) -> bytes:
        """Return the content."""
        try:
            return read_small(self.path, most_bytes, "the saved counters of a job")
        except FileNotFoundError:
            begin = "run gdrtop live --begin with this job ID first, as the same user"
            raise JobFileError(f"{shown_path(self.path)} does not exist; {begin}") from None
        except (OSError, ValueError) as error:
            raise JobFileError(f"{shown_path(self.path)} cannot be read: {why(error)}") from None

    def delete(self) -> None:
        """Delete the file."""
        try:
            os.unlink(self.path)
        except OSError as error:
            raise JobFileError(f"{shown_path(self.path)} cannot be deleted: {why(error)}") from None
