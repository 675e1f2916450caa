"""A recording as one file: a .tar.gz of JSON lines and blobs, in chronological order.

    manifest.json            format version, gdrtop's version, host, start time, whether redacted
    blobs/SHA256             long or binary answers, each before the moment that first names it
    moments/000000.jsonl     a line about the moment, then a line for each answer that changed
    moments/000001.jsonl     …
    end.json                 number of moments, and the kinds of identifiers in the file

Each moment is a separate gzip member with its own checksum, so that everything before the damage in a
truncated or damaged file can be read. tar and gzip read such a file like any other.

This module opens no files; it takes and returns bytes. A recording is untrusted input: every size is bounded,
nothing is unpacked to disk, and no error other than RecordingError is raised.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, TypeVar

from probes.base.codec import Bounds, Codec, CodecError
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe
from probes.recording import format as line_format
from probes.recording.format import FORMAT_VERSION, MAX_BLOB_BYTES, MAX_LINE_BYTES, Question, RecordingError
from probes.recording.recording_host import Moment

T = TypeVar("T")
MAX_MOMENTS = 3601  # an hour
MAX_TOTAL_BYTES = 96 << 20  # unpacked
MAX_MEMORY_BYTES = 144 << 20  # of a recording while it is read
_MAX_MEMBERS = 16384
_MAX_LINES = 1 << 18  # questions with their answers
_QUESTION_BYTES, _ANSWER_BYTES = 400, 160  # of memory, beside the text
_BLOCK = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20
_TIMES = Bounds(least=0, most=253402300799)  # up to the year 9999
_BOUNDS = {
    "": Bounds(text=253),
    "gdrtop": Bounds(text=40),
    **dict.fromkeys(("began_at", "open_at", "at", "clock"), _TIMES),
}
_HEAD_CODEC = Codec(clean=printable, bounds=_BOUNDS)
_GZIP = 16 + zlib.MAX_WBITS
_MEMBER = re.compile(r"(?:\./)?(manifest\.json|end\.json|blobs/[0-9a-f]{64}|moments/[0-9]{6}\.jsonl)")
_DIRECTORY = re.compile(r"\./?|(?:\./)?(?:blobs|moments)/?")  # in an archive that a user has repacked


@frozen
class Manifest:
    """What a recording says about itself."""

    format: int
    gdrtop: str
    host: str
    began_at: float  # seconds since 1970, the host's clock
    source: str  # probes.base.origin.Source: "live", "tree", "simulated"
    label: str
    redacted: bool
    open_at: float | None = None  # seconds since 1970: the event for which gdrtop watch saved it


@frozen
class MomentHead:
    """A moment without its answers."""

    at: float  # seconds since 1970
    probed: bool
    clock: tuple[float, ...] = ()


@dataclass
class Recording:
    """A recording that was read. Each question has its answers, with the moment from which they apply."""

    manifest: Manifest
    moments: list[MomentHead] = field(default_factory=list)
    # Some are a PackedAnswer.
    answers: dict[Question, list[tuple[int, Maybe[Any]]]] = field(default_factory=dict)
    damage: str = ""  # a sentence if the end is lost

    @property
    def opening(self) -> int:
        """Return the moment to show first: that of the event, or 0."""
        at = self.manifest.open_at
        return 0 if at is None else self.moment_at(at)

    def moment_at(self, at: float) -> int:
        """Return the first moment at or after a time in seconds since 1970; else the last one."""
        numbers = range(len(self.moments))
        return next((number for number in numbers if self.moments[number].at >= at), numbers[-1])

    def clock_at(self, moment: int) -> float:
        """Return the time of a moment by Host.monotonic(), in seconds."""
        head = self.moments[moment]
        return head.clock[-1] if head.clock else head.at


class ArchiveWriter:
    """Turns moments into the bytes of the archive and passes them to `write`."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._blobs: set[str] = set()
        self._members = 2
        self._total = 0
        self._lines = 0
        self._memory = 0
        self._questions: set[Question] = set()
        self.moments = 0

    def begin(self, manifest: Manifest) -> None:
        """Write the manifest."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(manifest.began_at))
        self._pack([("manifest.json", _pretty({**asdict(manifest), "began": began}), manifest.began_at)])

    def add(self, moment: Moment) -> bool:
        """Write a moment; return False, and write nothing, if the recording would become too long."""
        head = {"moment": self.moments, "at": moment.at, "probed": moment.probed, "clock": moment.clock}
        lines = [json.dumps(head)]
        members: list[tuple[str, bytes, float]] = []
        new: set[str] = set()
        memory = self._memory
        for question, answer in moment.answers.items():
            encoded = line_format.encode(question, answer)
            if len(encoded.text) >= MAX_LINE_BYTES:
                continue  # no question of gdrtop has a path or command of that length
            lines.append(encoded.text)
            memory += _memory_of(question, question not in self._questions, len(encoded.text))
            if encoded.blob_name and encoded.blob_name not in self._blobs | new:
                new.add(encoded.blob_name)
                memory += len(encoded.blob)
                members.append((f"blobs/{encoded.blob_name}", encoded.blob, moment.at))
        members.append((f"moments/{self.moments:06}.jsonl", "\n".join([*lines, ""]).encode(), moment.at))
        size = sum(len(content) + 2 * _BLOCK for _, content, _ in members)
        if (
            self.moments >= MAX_MOMENTS
            or self._members + len(members) > _MAX_MEMBERS
            or self._lines + len(lines) > _MAX_LINES
            or self._total + size > MAX_TOTAL_BYTES - _PIECE_BYTES
            or memory + size > MAX_MEMORY_BYTES - 2 * _PIECE_BYTES
        ):
            return False
        self._pack(members)
        # Only now, so that an interrupt while writing changes nothing.
        self._blobs |= new
        self._memory = memory
        self._questions.update(moment.answers)
        self._members += len(members)
        self._lines += len(lines)
        self._total += size
        self.moments += 1
        return True

    def end(self, at: float, identifiers: dict[str, int]) -> None:
        """Write what is known only at the end."""
        content = {"moments": self.moments, "identifiers": identifiers}
        self._pack([("end.json", _pretty(content), at)], b"\0" * (2 * _BLOCK))

    def _pack(self, members: list[tuple[str, bytes, float]], rest: bytes = b"") -> None:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        packed = []
        for name, content, at in members:
            header = tarfile.TarInfo(name)
            header.size, header.mtime, header.mode = len(content), max(0, int(at)), 0o600
            packed.append(packer.compress(header.tobuf(tarfile.USTAR_FORMAT)))
            packed.append(packer.compress(content + b"\0" * (-len(content) % _BLOCK)))
        self._write(b"".join((*packed, packer.compress(rest), packer.flush())))


def _memory_of(question: Question, is_new: bool, size: int) -> int:
    """Return the bytes of memory of an answer of this size and, if it is new, of its question."""
    own = _QUESTION_BYTES + sum(map(sys.getsizeof, question.subject)) if is_new else 0
    return own + _ANSWER_BYTES + size


def _pretty(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield one line at a time, because all together would take the memory of the content again."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        yield content[begin:end]
        begin = end + 1


class _Damage(Exception):
    """The rest cannot be read; the message says why."""


@dataclass
class _Waiting:
    """Bytes that were unpacked and not read yet."""

    size: int = 0


def _inflated(chunks: Iterable[bytes], waiting: _Waiting) -> Iterator[bytes]:
    """Yield the content of each gzip member piece by piece, after checking its checksum.

    Of a truncated file that another tool packed as one member, yield what is left. Otherwise the rest is
    dropped: a flipped bit can hide the end of a member, and then the rest is not what was recorded.
    """
    total = 0
    is_first = True
    source = iter(chunks)
    rest = next(source, b"")
    if rest[:2] != b"\x1f\x8b":
        raise RecordingError("not a recording (not a .tar.gz file)")
    while rest:
        unpacker = zlib.decompressobj(_GZIP)
        content: list[bytes] = []
        while not unpacker.eof:
            if not rest and not (rest := next(source, b"")):
                if is_first:
                    yield from _drained(content, waiting)
                raise _Damage("the file is truncated")
            try:
                piece = unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error:
                raise _Damage("a checksum does not match") from None
            rest = unpacker.unconsumed_tail
            total += len(piece)
            if total > MAX_TOTAL_BYTES:
                raise RecordingError(f"the file unpacks to more than {MAX_TOTAL_BYTES >> 20} MiB")
            content.append(piece)
        yield from _drained(content, waiting)
        is_first = False
        rest = unpacker.unused_data or next(source, b"")


def _drained(pieces: list[bytes], waiting: _Waiting) -> Iterator[bytes]:
    """Yield the pieces, and free each as soon as it is used: together they are as large as the recording."""
    pieces.reverse()
    waiting.size = sum(map(len, pieces))
    while pieces:
        piece = pieces.pop()
        waiting.size -= len(piece)
        yield piece


def _members(pieces: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    rest = memoryview(b"")

    def read(size: int) -> bytes:
        nonlocal rest
        parts: list[memoryview] = []
        while size > len(rest):
            parts.append(rest)
            size -= len(rest)
            piece = next(pieces, None)
            if piece is None:
                raise _Damage("the file is truncated")
            rest = memoryview(piece)
        parts.append(rest[:size])
        rest = rest[size:]
        return b"".join(parts)

    count = 0
    while True:
        block = read(_BLOCK)
        if not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError, ValueError):
            raise RecordingError("not a tar file written by gdrtop") from None
        count += 1
        if count > _MAX_MEMBERS:
            raise RecordingError(f"the archive has more than {_MAX_MEMBERS} members")
        name = printable(header.name, 100)
        if header.type == tarfile.DIRTYPE and _DIRECTORY.fullmatch(header.name):
            continue
        matched = _MEMBER.fullmatch(header.name)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or matched is None:
            what = "a link " if header.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            raise RecordingError(f"unexpected member in the archive: {what}{name!r}")
        if not 0 <= header.size <= MAX_BLOB_BYTES:
            raise RecordingError(f"archive member {name!r} is too long")
        content = read(header.size)
        read(-header.size % _BLOCK)
        yield matched.group(1), content


def read_archive(chunks: Iterable[bytes]) -> Recording:
    """Return the recording, with `damage` set if its end is lost; RecordingError if it is not a recording."""
    recording: Recording | None = None
    loader: _Loader | None = None
    waiting = _Waiting()
    try:
        for name, content in _members(_inflated(chunks, waiting)):
            if name == "manifest.json":
                if recording is not None:
                    raise RecordingError("the archive has two manifests")
                recording = Recording(_manifest(content))
                loader = _Loader(recording, waiting)
            elif loader is None:
                raise RecordingError("the first archive member is not manifest.json")
            elif name == "end.json":
                break
            elif name.startswith("blobs/"):
                loader.add_blob(name.removeprefix("blobs/"), content)
            else:
                loader.add_moment(int(name[8:14]), content)
        else:
            raise _Damage("the end of the file is missing")
    except _Damage as damage:
        if recording is None or not recording.moments:
            raise RecordingError(
                f"{damage}, and no moment is complete; gdrtop was killed while writing the file,"
                " or the file is an incomplete copy"
            ) from None
        count = len(recording.moments)
        readable = f"the first {count} moments" if count > 1 else "the first moment"
        recording.damage = f"damaged: only {readable} can be read ({damage})"
    if recording is None or not recording.moments:
        raise RecordingError("the recording has no moments")
    return recording


def _manifest(content: bytes) -> Manifest:
    fields = line_format.parse_json(content)
    if not isinstance(fields, dict) or type(fields.get("format")) is not int:
        raise RecordingError("manifest.json has no format version")
    if fields["format"] != FORMAT_VERSION:
        by = fields.get("gdrtop")
        writer = printable(by, 40) if isinstance(by, str) else "?"
        raise RecordingError(
            f"format version {str(fields['format'])[:20]}, written by gdrtop {writer}, is not supported; this"
            f" gdrtop reads version {FORMAT_VERSION}. Use the gdrtop that recorded it, or a newer one"
        )
    return _decoded(Manifest, fields, "manifest.json")


class _Loader:
    def __init__(self, recording: Recording, waiting: _Waiting) -> None:
        self._recording, self._waiting = recording, waiting
        self._memory = 0
        self._blobs: dict[str, bytes] = {}
        self._decoded: dict[tuple[str, str], Maybe[Any]] = {}
        self._lines = 0

    def add_blob(self, name: str, content: bytes) -> None:
        if sha256(content).hexdigest() != name:
            raise RecordingError(f"checksum of blob {name[:12]}… does not match its name")
        self._blobs[name] = content
        self._reserve(len(content))

    def _reserve(self, size: int) -> None:
        self._memory += size
        if self._memory + self._waiting.size > MAX_MEMORY_BYTES:
            raise RecordingError(f"the recording takes more than {MAX_MEMORY_BYTES >> 20} MiB of memory")

    def add_moment(self, number: int, content: bytes) -> None:
        recording = self._recording
        where = f"moment {number}"
        if number != len(recording.moments):
            raise RecordingError(f"{where} does not follow moment {len(recording.moments) - 1}")
        if number >= MAX_MOMENTS:
            raise RecordingError(f"the recording has more than {MAX_MOMENTS} moments")
        head: MomentHead | None = None
        self._reserve(len(content))
        for line_number, line in enumerate(_lines(content), 1):
            self._lines += 1
            if self._lines > _MAX_LINES + MAX_MOMENTS:
                raise RecordingError(f"the recording has more than {_MAX_LINES} lines")
            if not line and line_number > 1:
                continue
            if len(line) > MAX_LINE_BYTES:
                raise RecordingError(f"{where}, line {line_number}: longer than {MAX_LINE_BYTES >> 20} MiB")
            try:
                fields = line_format.parse_json(line)
                if not isinstance(fields, dict):
                    raise RecordingError("not a JSON object")
                if head is None:
                    head = _decoded(MomentHead, fields, "not the first line of a moment")
                    continue
                question, answer = self._answer(fields)
                self._reserve(_memory_of(question, question not in recording.answers, len(line)))
                recording.answers.setdefault(question, []).append((number, answer))
            except RecordingError as error:
                raise RecordingError(f"{where}, line {line_number}: {error}") from None
        if head is None:
            raise RecordingError(f"{where} is empty")
        self._reserve(-len(content))
        recording.moments.append(head)

    def _answer(self, fields: dict[str, Any]) -> tuple[Question, Maybe[Any]]:
        line = line_format.decode(fields)

        def content() -> bytes:
            return json.dumps(fields["answer"], separators=(",", ":")).encode()

        if not line.blob:
            return line.question, line_format.packed(line.question, line.answer, content)
        key = line.question.kind, line.blob
        if key not in self._decoded:
            blob = self._blobs.get(line.blob)
            if blob is None:
                raise RecordingError(f"blob {line.blob[:12]!r} is missing")
            answer = line_format.decode_blob(line.question, blob)
            self._decoded[key] = line_format.packed(line.question, answer, lambda: blob)
        return line.question, self._decoded[key]


def _decoded(kind: type[T], fields: dict[str, Any], what: str) -> T:
    try:
        decoded: T = _HEAD_CODEC.decode(kind, fields)
    except CodecError as error:
        raise RecordingError(f"{what}: {error}") from None
    return decoded
