"""A part of a growing file."""

from __future__ import annotations

from probes.base.frozen import frozen


@frozen
class FileRange:
    """Bytes of a regular file from an offset on, and the state of the file when they were read."""

    content: bytes
    size_bytes: int
    file: str  # identity: the same for all paths to the file, another one after a rotation
