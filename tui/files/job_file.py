"""The files of a job: what its begin saved for its end, what changed between them, and what was not done."""

from __future__ import annotations

import contextlib
import os
import re

from probes.base.text import printable
from tui.files.new_file import NewFile, make_directory, replace_public, shown_path, why, why_not_as_root
from tui.files.read_file import read_small
from tui.files.xdg import NO_HOME, STATE, own_directory

ROOTS_DIRECTORY = "/run/gdrtop"  # is empty again after a reboot, like the counters
MOST_DIFFERENCES = 1000  # files in a directory; older ones are deleted
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_FILE = re.compile(rf"job-{_JOB.pattern}\.json")


class JobFileError(Exception):
    """The file cannot be written or read; the message is a sentence that names it."""


class UndoneDrain:
    """A note that a prolog failed and could not drain the node, so slurmd drains it with its own reason.

    It outlasts a reboot, as the drained node does.
    """

    def __init__(self, directory: str | None = None) -> None:
        """`directory`: by default that above the differences."""
        self.path = os.path.join(directory or os.path.dirname(differences_directory()), "not-drained")

    def save(self) -> None:
        """Write the note; JobFileError: it is not written."""
        directory = os.path.dirname(self.path)
        if others := why_not_as_root(directory):
            raise JobFileError(f"{shown_path(self.path)} cannot be written: {others}")
        make_directory(directory, JobFileError, mode=0o755)
        replace_public(self.path, b"", JobFileError)

    def exists(self) -> bool:
        """Return whether there is one of this user."""
        try:
            return os.lstat(self.path).st_uid == os.geteuid()
        except (OSError, ValueError):
            return False

    def delete(self) -> None:
        """Delete the note."""
        with contextlib.suppress(OSError, ValueError):
            os.unlink(self.path)


def is_job_id(job: str) -> bool:
    """Return whether a word can be a job's ID: a letter or digit, then also "._+-", at most 64 characters."""
    return _JOB.fullmatch(job) is not None


class JobFile:
    """What the Prolog of a job saved."""

    def __init__(self, job: str, directory: str | None = None) -> None:
        """`directory`: by default root's below /run, a user's in the XDG state directory."""
        if not is_job_id(job):
            raise JobFileError(f"{printable(job, 80)!r} is not a job ID")
        if directory is None:
            directory = ROOTS_DIRECTORY if os.geteuid() == 0 else own_directory(STATE)
        if not os.path.isabs(directory):
            raise JobFileError(NO_HOME)
        self._directory = directory
        self.path = os.path.join(directory, _name(job))

    def save(self, text: str) -> None:
        """Write the file, instead of one that the same job has left."""
        if others := why_not_as_root(self._directory):
            raise JobFileError(f"{shown_path(self.path)} cannot be written: {others}")
        # Root's is also that of the locks, where every user may look for their holder.
        make_directory(self._directory, JobFileError, 0o755 if os.geteuid() == 0 else 0o700)
        NewFile(self.path, JobFileError, replaces=True).save(text.encode())

    def read(self, most_bytes: int) -> bytes:
        """Return the content."""
        try:
            return read_small(self.path, most_bytes, "the saved counters of a job")
        except FileNotFoundError:
            raise JobFileError(f"{shown_path(self.path)} does not exist: the Prolog saves it") from None
        except (OSError, ValueError) as error:
            raise JobFileError(f"{shown_path(self.path)} cannot be read: {why(error)}") from None

    def delete(self) -> None:
        """Delete the file."""
        try:
            os.unlink(self.path)
        except OSError as error:
            raise JobFileError(f"{shown_path(self.path)} cannot be deleted: {why(error)}") from None


def differences_directory() -> str:
    """Return where the differences are saved by default; "" without a home directory."""
    if os.geteuid() == 0:
        return "/var/lib/gdrtop/jobs"
    own = own_directory(STATE)
    return os.path.join(own, "jobs") if own else ""


def save_difference(directory: str, job: str, content: bytes) -> None:
    """Save what changed during a job in a file that every user may read; JobFileError: it is not saved."""
    assert is_job_id(job)
    if not os.path.isabs(directory):
        raise JobFileError(f"{shown_path(directory)!r} is not an absolute path" if directory else NO_HOME)
    if others := why_not_as_root(directory):
        raise JobFileError(f"the counters of job {job} cannot be saved: {others}")
    make_directory(directory, JobFileError, mode=0o755)
    replace_public(os.path.join(directory, _name(job)), content, JobFileError)
    _delete_oldest(directory)


def _name(job: str) -> str:
    return f"job-{job}.json"


def _delete_oldest(directory: str) -> None:
    """Keep the newest differences; other files of the directory stay."""
    try:
        with os.scandir(directory) as entries:
            files = [
                (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                for entry in entries
                if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for _, path in sorted(files, reverse=True)[MOST_DIFFERENCES:]:
            with contextlib.suppress(FileNotFoundError):  # the end of another job has deleted it
                os.unlink(path)
    except OSError as error:
        raise JobFileError(
            f"older files in {shown_path(directory)} cannot be deleted: {why(error)}"
        ) from None
