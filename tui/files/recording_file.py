"""The bytes of a recording on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from probes.recording.format import RecordingError
from tui.files.new_file import why

MAX_FILE_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 18


def chunks_of(path: str) -> Iterator[bytes]:
    """The bytes of a recording, piece by piece; RecordingError where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise RecordingError("it is no regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise RecordingError(f"it has more than {MAX_FILE_BYTES >> 20} MiB")
            left = MAX_FILE_BYTES  # it may grow while it is read
            while left > 0 and (chunk := os.read(descriptor, min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise RecordingError(why(error)) from None
