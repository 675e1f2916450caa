"""Read the logs that a user names: files, patterns, compressed files, standard input."""

from __future__ import annotations

import glob
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from tui.files.new_file import shown_path, why
from tui.files.read_file import open_harmless

STDIN = "-"
_CHUNK_BYTES = 1 << 20
_MOST_FILES = 4096
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2 -dc", b"\xfd7zXZ": "xz -dc", b"\x04\x22\x4d\x18": "lz4 -dc", b"PK": "unzip -p"}


class UnreadableLog(Exception):
    """A log cannot be read; the message says why."""


def log_files(names: Sequence[str]) -> list[str]:
    """Return the files that names and patterns mean, each once.

    Patterns are those of the shell, and NCCL_DEBUG_FILE's %h (host) and %p (pid). A name that exists is
    always itself.
    """
    found: dict[str, None] = {}
    for name in names:
        if name == STDIN or os.path.lexists(name):
            found[name] = None
            continue
        pattern = name.replace("%%", "\0").replace("%h", "*").replace("%p", "*").replace("\0", "%")
        matches = sorted(glob.glob(pattern)) if pattern != name or glob.has_magic(name) else [name]
        # Others may have put a pipe where they can write, and reading it would never end.
        matches = [match for match in matches if match == name or not _is_pipe(match)]
        if not matches:
            raise UnreadableLog(f"no file matches {shown_path(name)}")
        found.update(dict.fromkeys(matches))
    unique: dict[str, str] = {}
    for name in found:
        unique.setdefault(name if name == STDIN else os.path.realpath(name), name)
    if len(unique) > _MOST_FILES:
        raise UnreadableLog(f"too many files: {len(unique)}; at most {_MOST_FILES}")
    return list(unique.values())


def short_names(files: Sequence[str]) -> dict[str, str]:
    """Return what to show for each file: its last part where no other file has the same."""
    last = Counter(map(os.path.basename, files))
    return {name: base if last[base := os.path.basename(name)] == 1 else name for name in files}


def _is_pipe(name: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


def chunks_of_log(name: str, advance: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Read a log piece by piece, decompressed; `advance` is called with the bytes read from the file."""
    try:
        yield from _decompressed(_raw(name, advance))
    except zlib.error:
        raise UnreadableLog("the gzip data is damaged or cut off") from None
    except (OSError, ValueError) as error:
        raise UnreadableLog(why(error)) from None


def size_of(name: str) -> int:
    """Return the size of a file in bytes; 0 if it has none, as a pipe."""
    try:
        return 0 if name == STDIN else os.stat(name).st_size
    except (OSError, ValueError):
        return 0


def _raw(name: str, advance: Callable[[int], None]) -> Iterator[bytes]:
    if name == STDIN:
        if sys.stdin is None:
            raise UnreadableLog("standard input is closed")
        descriptor = os.dup(sys.stdin.fileno())
    else:
        descriptor = open_harmless(name, or_pipe=True)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise UnreadableLog("a directory; use DIR/*")
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            advance(len(chunk))
            yield chunk
    finally:
        os.close(descriptor)


def _decompressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = b""
    for chunk in chunks:
        first += chunk
        if len(first) >= 8:  # a pipe may give the first bytes one by one
            break
    if first.startswith(_GZIP):
        yield from _members(first, chunks, lambda: zlib.decompressobj(wbits=31), _gunzip)
    elif first.startswith(_ZSTD):
        yield from _members(first, chunks, _zstd(), _unzstd)
    else:
        for magic, program in _OTHERS.items():
            if first.startswith(magic):
                raise UnreadableLog(f"compressed; use {program} FILE | gdrtop nccl-log -")
        yield first
        yield from chunks


def _zstd() -> Callable[[], Any]:
    try:
        module: Any = import_module("compression.zstd")
    except ImportError:
        raise UnreadableLog(
            "zstd needs Python 3.14 or newer; use zstd -dc FILE | gdrtop nccl-log -"
        ) from None
    create: Callable[[], Any] = module.ZstdDecompressor
    return create


def _members(
    first: bytes,
    chunks: Iterator[bytes],
    create: Callable[[], Any],
    expand: Callable[[Any, bytes], Iterator[bytes]],
) -> Iterator[bytes]:
    """Decompress concatenated streams; what an unfinished one has is read too."""
    stream: Any = create()
    pending: bytes | None = first
    while pending is not None:
        while pending:
            if stream.eof:
                stream = create()
            yield from expand(stream, pending)
            pending = stream.unused_data if stream.eof else b""
        pending = next(chunks, None)


def _gunzip(stream: Any, data: bytes) -> Iterator[bytes]:
    while data:
        yield stream.decompress(data, _CHUNK_BYTES)
        data = b"" if stream.eof else stream.unconsumed_tail  # at the end, zlib may keep an old one


def _unzstd(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data, _CHUNK_BYTES)
    while not stream.eof and not stream.needs_input:
        yield stream.decompress(b"", _CHUNK_BYTES)
