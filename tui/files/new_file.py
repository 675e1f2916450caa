"""Files that gdrtop writes for its user, and not to the node: recordings, scripts, results.

A new file is written beside its final name and then moved there whole.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator

from probes.base.text import printable
from tui.files import NotWritten
from tui.files.read_file import open_harmless

MAX_RECORDING_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 18
_NOT_AS_ROOT = "as root, gdrtop does not write there (set HOME=/root)"

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# Where a file system knows no hard links (vfat, some network and user-space ones).
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def file_word(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")[:64] or "unnamed"


def shown_path(path: str) -> str:
    """Return a path without control characters, at most 4096 characters long."""
    return printable(path, 4096)


class NewFile:
    """An unfinished file; deleted unless `keep` is called.

    `error` is raised, with a sentence, if it cannot be written, or if it exists and `replaces` is not set.
    `mode`: who may use the finished file, whatever the umask; `owner`: its uid and gid, if not this user's.
    """

    def __init__(
        self,
        path: str,
        error: type[Exception] = NotWritten,
        replaces: bool = False,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self.path = path
        self._mode, self._owner = mode, owner
        self._error = error
        self._replaces = replaces
        directory, name = os.path.split(path)
        if not name:
            raise self._error(f"{shown_path(path)!r} is not a file name")
        self._directory = directory or "."
        try:
            os.lstat(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise self._error(f"{shown_path(path)} cannot be written: {why(error)}") from None
        else:
            if not replaces:
                raise self._error(_exists(path))
        begins = os.fsdecode(os.fsencode(name)[:200])  # a name has 255 bytes at most
        self._part = os.path.join(self._directory, f".{begins}.{os.getpid()}.part")
        try:
            self._descriptor = os.open(self._part, _CREATE, 0o600)
        except FileExistsError:
            raise self._error(f"{shown_path(self._part)} was left by a killed gdrtop; remove it") from None
        except (OSError, ValueError) as error:
            raise self._error(f"{shown_path(path)} cannot be written: {why(error)}") from None
        self.bytes_written = 0

    def write(self, content: bytes) -> None:
        """Append a piece; call `trim` after an interrupt, which may leave half a piece."""
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise self._error(f"{shown_path(self.path)} cannot be written: {why(error)}") from None
        self.bytes_written += len(content)

    def save(self, content: bytes) -> None:
        """Write the whole file and move it to its final name; nothing is left of it if that fails."""
        try:
            self.write(content)
            self.keep()
        finally:
            self.drop()

    def trim(self) -> None:
        """Cut off what an interrupt left after the last whole piece."""
        os.ftruncate(self._descriptor, self.bytes_written)
        os.lseek(self._descriptor, self.bytes_written, os.SEEK_SET)

    def keep(self) -> None:
        """Move the file to its final name."""
        try:
            if self._owner is not None:
                os.fchown(self._descriptor, *self._owner)
            os.fchmod(self._descriptor, self._mode)
            os.fsync(self._descriptor)
            self._place()
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except FileExistsError:
            raise self._error(_exists(self.path)) from None
        except OSError as error:
            raise self._error(f"{shown_path(self.path)} cannot be written: {why(error)}") from None
        finally:
            self.drop()

    def _place(self) -> None:
        if self._replaces:
            os.replace(self._part, self.path)
            return
        try:
            os.link(self._part, self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Reserve the name first, so that only our own empty file is replaced.
            os.close(os.open(self.path, _CREATE, 0o600))
            os.replace(self._part, self.path)

    def drop(self) -> None:
        """Delete the unfinished file; do nothing after `keep`."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            os.unlink(self._part)
        except FileNotFoundError:
            return


def _exists(path: str) -> str:
    return f"{shown_path(path)} already exists; choose another name"


def make_directory(path: str, error_type: type[Exception] = NotWritten, mode: int = 0o700) -> None:
    """Create a directory for new files, by default only for this user; `error_type`: it cannot be created."""
    try:
        os.makedirs(path, mode, exist_ok=True)
    except (OSError, ValueError) as error:
        raise error_type(f"{shown_path(path)} cannot be created: {why(error)}") from None


def check_new(name: str) -> None:
    """Raise NotWritten if a new file of this name could not be written; leave nothing behind."""
    _new(name).drop()


def write_new(name: str, content: str | bytes) -> str:
    """Write a text or bytes to a file that must not exist yet; return its printable path."""
    file = _new(name)
    file.save(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    return shown_path(file.path)


def replace_public(name: str, content: bytes, error_type: type[Exception] = NotWritten) -> None:
    """Write a file that every user may read, in place of an older one; `error_type`: the older one stays."""
    path = _absolute(name)
    try:
        is_file = stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):  # NewFile says why it cannot be written, if it cannot
        is_file = True
    if not is_file:
        raise error_type(f"{shown_path(path)} is not a regular file; choose another name")
    NewFile(path, error_type, replaces=True, mode=0o644).save(content)


def _new(name: str) -> NewFile:
    return NewFile(_absolute(name), NotWritten)


def _absolute(name: str) -> str:
    try:
        return os.path.join(os.getcwd(), name)
    except OSError:
        raise NotWritten(
            "the current directory no longer exists; start gdrtop in another directory"
        ) from None


def why_not_as_root(directory: str) -> str:
    """Return why root must not write below a directory, or ""; other users could redirect the file."""
    if os.geteuid() != 0:
        return ""
    place = "/"
    for part in os.path.abspath(directory).split("/")[1:]:
        place = os.path.join(place, part)
        try:
            status = os.lstat(place)
        except OSError:  # what root creates belongs to root
            return ""
        if status.st_uid != 0:
            return f"{shown_path(place)} belongs to uid {status.st_uid}; {_NOT_AS_ROOT}"
        if stat.S_ISLNK(status.st_mode):
            target = why_not_as_root(os.path.realpath(place))
            if target:
                return target
        elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            return f"other users can write to {shown_path(place)}; {_NOT_AS_ROOT}"
    return ""


def why(error: OSError | ValueError) -> str:
    """Return the system's message for an error with a file."""
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "invalid file name"


def chunks_of(path: str) -> Iterator[bytes]:
    """Read a recording piece by piece; RecordingError if it cannot be read."""
    from probes.recording.format import RecordingError

    try:
        descriptor = open_harmless(path)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordingError("not a regular file")
            if status.st_size > MAX_RECORDING_BYTES:
                raise RecordingError(f"larger than {MAX_RECORDING_BYTES >> 20} MiB")
            left = MAX_RECORDING_BYTES  # it may grow while it is read
            while left > 0 and (chunk := os.read(descriptor, min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise RecordingError(why(error)) from None
