"""A new file: made beside its name, then put in place whole; over another file only where that is asked for.

What gdrtop writes for its user and not to the node: recordings, scripts.
"""

from __future__ import annotations

import errno
import os
import stat

from probes.base.text import printable

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# Where a file system knows no hard links (vfat, some network and user-space ones).
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def told(path: str) -> str:
    """A path as it may be shown."""
    return printable(path, 4096)


class NewFile:
    """A file in the making, readable by its owner alone; gone unless `keep` is called.

    `error` is raised, with a sentence, where it cannot be written, or is there already and `replaces` is not
    said.
    """

    def __init__(self, path: str, error: type[Exception], replaces: bool = False) -> None:
        self.path = path
        self._error = error
        self._replaces = replaces
        directory, name = os.path.split(path)
        if not name:
            raise self._error(f"{told(path)!r} names no file")
        self._directory = directory or "."
        try:
            os.lstat(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise self._error(f"{told(path)} cannot be written: {why(error)}") from None
        else:
            if not replaces:
                raise self._error(_exists(path))
        begins = os.fsdecode(os.fsencode(name)[:200])  # a name has 255 bytes at most
        self._part = os.path.join(self._directory, f".{begins}.{os.getpid()}.part")
        try:
            self._descriptor = os.open(self._part, _CREATE, 0o600)
        except FileExistsError:
            raise self._error(f"{told(self._part)} is left of a killed gdrtop: remove it") from None
        except (OSError, ValueError) as error:
            raise self._error(f"{told(path)} cannot be written: {why(error)}") from None
        self.bytes_written = 0

    def write(self, content: bytes) -> None:
        """Adds a piece; a piece that is interrupted is not in the file."""
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            raise self._error(f"{told(self.path)} cannot be written: {why(error)}") from None
        self.bytes_written += len(content)

    def trim(self) -> None:
        """Cuts off what an interrupt left behind the last whole piece."""
        os.ftruncate(self._descriptor, self.bytes_written)
        os.lseek(self._descriptor, self.bytes_written, os.SEEK_SET)

    def keep(self) -> None:
        """Puts the file in its place."""
        try:
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
            raise self._error(f"{told(self.path)} cannot be written: {why(error)}") from None
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
            # The name is taken first, so that what is replaced is our own empty file.
            os.close(os.open(self.path, _CREATE, 0o600))
            os.replace(self._part, self.path)

    def drop(self) -> None:
        """Removes what was made so far; nothing happens after `keep`."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            os.unlink(self._part)
        except FileNotFoundError:
            return


def _exists(path: str) -> str:
    return f"{told(path)} is there already and is not overwritten: choose another name"


def why_not_as_root(directory: str) -> str:
    """Why root must not write below a directory: another user could redirect the file; "" where none can."""
    if os.geteuid() != 0:
        return ""
    place = "/"
    for part in os.path.abspath(directory).split("/")[1:]:
        place = os.path.join(place, part)
        try:
            status = os.lstat(place)
        except OSError:  # what root makes is root's
            return ""
        if status.st_uid != 0:
            return f"{told(place)} belongs to uid {status.st_uid}; root does not write there (set HOME=/root)"
        if stat.S_ISLNK(status.st_mode):
            target = why_not_as_root(os.path.realpath(place))
            if target:
                return target
        elif status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            return f"other users may write to {told(place)}; root does not write there (set HOME=/root)"
    return ""


def why(error: OSError | ValueError) -> str:
    """The system's words for what went wrong with a file."""
    return (error.strerror or "unknown error") if isinstance(error, OSError) else "not a valid file name"
