"""A recording as one file: a .tar.gz of JSON lines and blobs, in the order of time.

    manifest.json            format version, gdrtop's version, host, when it began, whether redacted
    blobs/SHA256             long or binary answers, each before the moment that first names it
    moments/000000.jsonl     a line on the moment, then a line for each answer that differs from before
    moments/000001.jsonl     …
    end.json                 how many moments there are, and what kinds of identifiers the file holds

Each moment is a gzip member of its own, with its own checksum: of a file that was cut short or damaged
everything before the damage is read. tar and gzip read such a file as any other.

Nothing here opens a file: the bytes are given and taken. What is read is hostile: it is bounded in every
direction, never unpacked to a disk, and raises nothing but RecordingError.
"""

from __future__ import annotations

import json
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from probes.base.text import printable
from probes.base.unknown import Maybe
from probes.recording.format import (
    FORMAT_VERSION,
    MAX_BLOB_BYTES,
    MAX_LINE_BYTES,
    Question,
    RecordingError,
    decode,
    decode_blob,
    encode,
    parse_json,
)
from probes.recording.recording_host import Moment

MAX_MOMENTS = 3601  # an hour
MAX_TOTAL_BYTES = 96 << 20  # unpacked; what is in memory while it is read is about three times as much
_MAX_MEMBERS = 16384
_MAX_LINES = 1 << 18  # questions with their answers: half a kilobyte of memory each
_BLOCK = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_MEMBER = re.compile(r"(?:\./)?(manifest\.json|end\.json|blobs/[0-9a-f]{64}|moments/[0-9]{6}\.jsonl)")
_DIRECTORY = re.compile(r"\./?|(?:\./)?(?:blobs|moments)/?")  # an archive that a person has packed again


@dataclass(frozen=True)
class Manifest:
    """What a recording says of itself."""

    format: int
    gdrtop: str
    host: str
    began_at: float  # seconds since 1970, the host's clock
    source: str  # probes.base.origin.Source: "live", "tree", "simulated"
    label: str
    redacted: bool


@dataclass(frozen=True)
class MomentHead:
    """When a moment was, without its answers."""

    at: float  # seconds since 1970
    probed: bool
    clock: tuple[float, ...]


@dataclass
class Recording:
    """A recording that has been read: each question's answers by the moment from which they hold."""

    manifest: Manifest
    moments: list[MomentHead] = field(default_factory=list)
    answers: dict[Question, list[tuple[int, Maybe[Any]]]] = field(default_factory=dict)
    damage: str = ""  # a sentence where the tail is lost


class ArchiveWriter:
    """Turns moments into the archive's bytes and hands them to `write`, moment by moment."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._blobs: set[str] = set()
        self._members = 2
        self._total = 0
        self._lines = 0
        self.moments = 0

    def begin(self, manifest: Manifest) -> None:
        """Writes the manifest."""
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(manifest.began_at))
        self._pack([("manifest.json", _pretty({**asdict(manifest), "began": began}), manifest.began_at)])

    def add(self, moment: Moment) -> bool:
        """Writes a moment; False, and nothing written, where the recording would become too long."""
        head = {"moment": self.moments, "at": moment.at, "probed": moment.probed, "clock": moment.clock}
        lines = [json.dumps(head)]
        members: list[tuple[str, bytes, float]] = []
        new: set[str] = set()
        for question, answer in moment.answers.items():
            encoded = encode(question, answer)
            if len(encoded.text) >= MAX_LINE_BYTES:
                continue  # a path or command of that length is no question of ours
            lines.append(encoded.text)
            if encoded.blob_name and encoded.blob_name not in self._blobs | new:
                new.add(encoded.blob_name)
                members.append((f"blobs/{encoded.blob_name}", encoded.blob, moment.at))
        members.append((f"moments/{self.moments:06}.jsonl", "\n".join([*lines, ""]).encode(), moment.at))
        size = sum(len(content) + 2 * _BLOCK for _, content, _ in members)
        if (
            self.moments >= MAX_MOMENTS
            or self._members + len(members) > _MAX_MEMBERS
            or self._lines + len(lines) > _MAX_LINES
            or self._total + size > MAX_TOTAL_BYTES - _PIECE_BYTES
        ):
            return False
        self._pack(members)
        # Only now: an interrupt in the midst of writing leaves it as it was.
        self._blobs |= new
        self._members += len(members)
        self._lines += len(lines)
        self._total += size
        self.moments += 1
        return True

    def end(self, at: float, identifiers: dict[str, int]) -> None:
        """Writes what is known only at the end."""
        told = {"moments": self.moments, "identifiers": identifiers}
        self._pack([("end.json", _pretty(told), at)], b"\0" * (2 * _BLOCK))

    def _pack(self, members: list[tuple[str, bytes, float]], rest: bytes = b"") -> None:
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        packed = []
        for name, content, at in members:
            header = tarfile.TarInfo(name)
            header.size, header.mtime, header.mode = len(content), max(0, int(at)), 0o600
            packed.append(packer.compress(header.tobuf(tarfile.USTAR_FORMAT)))
            packed.append(packer.compress(content + b"\0" * (-len(content) % _BLOCK)))
        self._write(b"".join((*packed, packer.compress(rest), packer.flush())))


def _pretty(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


class _Damage(Exception):
    """From here on nothing can be read; the message says why."""


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What the gzip members hold, each only after its checksum; of one that was cut short, what there is."""
    total = 0
    source = iter(chunks)
    rest = next(source, b"")
    if rest[:2] != b"\x1f\x8b":
        raise RecordingError("it is not a recording (not a .tar.gz file)")
    while rest:
        unpacker = zlib.decompressobj(_GZIP)
        held: list[bytes] = []
        while not unpacker.eof:
            if not rest and not (rest := next(source, b"")):
                yield b"".join(held)
                raise _Damage("it was cut short")
            try:
                piece = unpacker.decompress(rest, _PIECE_BYTES)
            except zlib.error:
                raise _Damage("its checksum is wrong") from None
            rest = unpacker.unconsumed_tail
            total += len(piece)
            if total > MAX_TOTAL_BYTES:
                raise RecordingError(f"it unpacks to more than {MAX_TOTAL_BYTES >> 20} MiB")
            held.append(piece)
        yield b"".join(held)
        rest = unpacker.unused_data or next(source, b"")


def _members(pieces: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member; RecordingError for one that a recording does not have."""
    buffer = bytearray()

    def take(size: int) -> bytes:
        while len(buffer) < size:
            piece = next(pieces, None)
            if piece is None:
                raise _Damage("it was cut short")
            buffer.extend(piece)
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    count = 0
    while True:
        block = take(_BLOCK)
        if not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError, ValueError):
            raise RecordingError("it is no tar file of the kind that gdrtop writes") from None
        count += 1
        if count > _MAX_MEMBERS:
            raise RecordingError(f"it has more than {_MAX_MEMBERS} members")
        name = printable(header.name, 100)
        if header.type == tarfile.DIRTYPE and _DIRECTORY.fullmatch(header.name):
            continue
        matched = _MEMBER.fullmatch(header.name)
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or matched is None:
            what = "a link " if header.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            raise RecordingError(f"it has a member that no recording has: {what}{name!r}")
        if not 0 <= header.size <= MAX_BLOB_BYTES:
            raise RecordingError(f"its member {name!r} is too long")
        content = take(header.size)
        take(-header.size % _BLOCK)
        yield matched.group(1), content


def read_archive(chunks: Iterable[bytes]) -> Recording:
    """The recording; `damage` says where its tail is lost. RecordingError for what is none."""
    recording: Recording | None = None
    loader: _Loader | None = None
    try:
        for name, content in _members(_inflated(chunks)):
            if name == "manifest.json":
                if recording is not None:
                    raise RecordingError("it has two manifests")
                recording = Recording(_manifest(content))
                loader = _Loader(recording)
            elif loader is None:
                raise RecordingError("its first member is not manifest.json")
            elif name == "end.json":
                break
            elif name.startswith("blobs/"):
                loader.add_blob(name.removeprefix("blobs/"), content)
            else:
                loader.add_moment(int(name[8:14]), content)
        else:
            raise _Damage("its end is missing")
    except _Damage as damage:
        if recording is None or not recording.moments:
            raise RecordingError(f"{damage}, and no whole moment is left; copy it again") from None
        count = len(recording.moments)
        left = f"its first {count} moments are" if count > 1 else "its first moment is"
        recording.damage = f"damaged: {left} left ({damage})"
    if recording is None or not recording.moments:
        raise RecordingError("it holds no moment")
    return recording


def _manifest(content: bytes) -> Manifest:
    told = parse_json(content)
    if not isinstance(told, dict) or type(told.get("format")) is not int:
        raise RecordingError("manifest.json names no format version")
    by = told.get("gdrtop")
    by = printable(by, 40) if isinstance(by, str) else "?"
    if told["format"] != FORMAT_VERSION:
        raise RecordingError(
            f"its format version is {str(told['format'])[:20]}, written by gdrtop {by}; this gdrtop reads"
            f" version {FORMAT_VERSION}: use the one that recorded it, or a newer one"
        )
    texts = {}
    for name in ("host", "source", "label"):
        if not isinstance(told.get(name), str):
            raise RecordingError(f"manifest.json has no {name!r}")
        texts[name] = printable(told[name], 253)
    if not isinstance(told.get("redacted"), bool):
        raise RecordingError("manifest.json does not say whether it is redacted")
    began_at = _seconds(told.get("began_at"), "manifest.json")
    return Manifest(FORMAT_VERSION, by, began_at=began_at, redacted=told["redacted"], **texts)


def _seconds(value: Any, where: str) -> float:
    # Up to the year 9999, which is as far as a calendar goes.
    if type(value) not in (int, float) or not 0 <= value < 253402300800:
        raise RecordingError(f"{where}: {value!r:.40} is no time")
    return float(value)


class _Loader:
    """Takes members into a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._blobs: dict[str, bytes] = {}
        self._decoded: dict[tuple[str, str], Maybe[Any]] = {}
        self._lines = 0

    def add_blob(self, name: str, content: bytes) -> None:
        if sha256(content).hexdigest() != name:
            raise RecordingError(f"its blob {name[:12]}… has another checksum than its name")
        self._blobs[name] = content

    def add_moment(self, number: int, content: bytes) -> None:
        recording = self._recording
        where = f"moment {number}"
        if number != len(recording.moments):
            raise RecordingError(f"{where} does not follow moment {len(recording.moments) - 1}")
        if number >= MAX_MOMENTS:
            raise RecordingError(f"it has more than {MAX_MOMENTS} moments")
        lines = content.split(b"\n")
        self._lines += len(lines)
        if self._lines > 2 * _MAX_LINES:
            raise RecordingError(f"it has more than {_MAX_LINES} lines")
        head: MomentHead | None = None
        for place, line in enumerate(lines, 1):
            if not line and place > 1:
                continue
            if len(line) > MAX_LINE_BYTES:
                raise RecordingError(f"{where}, line {place}: longer than {MAX_LINE_BYTES >> 20} MiB")
            try:
                fields = parse_json(line)
                if not isinstance(fields, dict):
                    raise RecordingError("no JSON object")
                if head is None:
                    head = _head(fields)
                    continue
                question, answer = self._answer(fields)
                recording.answers.setdefault(question, []).append((number, answer))
            except RecordingError as error:
                raise RecordingError(f"{where}, line {place}: {error}") from None
        assert head is not None  # the first line is never passed over
        recording.moments.append(head)

    def _answer(self, fields: dict[str, Any]) -> tuple[Question, Maybe[Any]]:
        line = decode(fields)
        if not line.blob:
            return line.question, line.answer
        key = line.question.kind, line.blob
        if key not in self._decoded:
            blob = self._blobs.get(line.blob)
            if blob is None:
                raise RecordingError(f"blob {line.blob[:12]!r} is not there")
            self._decoded[key] = decode_blob(line.question, blob)
        return line.question, self._decoded[key]


def _head(fields: dict[str, Any]) -> MomentHead:
    clock = fields.get("clock", [])
    if not isinstance(clock, list) or not isinstance(fields.get("probed"), bool):
        raise RecordingError("it does not begin with a moment's line")
    at = _seconds(fields.get("at"), "at")
    return MomentHead(at, fields["probed"], tuple(_seconds(one, "clock") for one in clock))
