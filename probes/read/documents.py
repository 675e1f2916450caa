"""Files that are no lines: dumps of PyTorch's flight recorder, and recordings of gdrtop."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable

from probes.base.frozen import frozen
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.nccl.flight_recorder.dump import MOST_BYTES, Dump, parse_dump, rank_in_name
from probes.nccl.flight_recorder.verdict import WaitingGroup, ranks_text, verdict_of
from probes.nccl.log.facts import Place
from probes.read.findings import judged_node, statement
from probes.read.reading import Parsed, Statement
from probes.recording.archive import read_archive
from probes.recording.format import RecordingError
from probes.recording.replay_host import ReplayHost
from probes.snapshot.examination import examine

HEAD_BYTES = 512
_MOST_RECORDING_BYTES = 256 << 20  # unpacked
_MOST_DUMPS = 4096
_MOST_GROUPS = 8
_DUMP_KEY = re.compile(
    rb'\s*\{(?!\s*"version"\s*:\s*\d+,\s*"start_time").*"(?:entries|pg_config|pg_status|nccl_comm_state|comm_lib_version|nccl_version)"\s*:',
    re.DOTALL,
)
"""Not of nccl-tests (-J), which also has the key nccl_version."""
DUMP, RECORDING = "PyTorch flight recorder", "gdrtop recording"


@frozen
class _Kind:
    name: str
    limit: int
    is_it: Callable[[bytes], bool]


_KINDS = (
    _Kind(DUMP, MOST_BYTES, lambda head: head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05"),
    _Kind(DUMP, MOST_BYTES, lambda head: _DUMP_KEY.match(head) is not None),
    _Kind(RECORDING, _MOST_RECORDING_BYTES, lambda head: head[257:262] == b"ustar"),
)


class Document:
    """One file, whole."""

    def __init__(self, name: str, kind: _Kind) -> None:
        self.name = name
        self.kind = kind.name
        self._limit = kind.limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Keep a piece, up to the limit of its kind."""
        if self._size <= self._limit:
            self._pieces.append(piece)
            self._size += len(piece)

    @property
    def content(self) -> bytes:
        """The bytes; one more than the limit if it was larger."""
        return b"".join(self._pieces)[: self._limit + 1]


def document_of(name: str, head: bytes) -> Document | None:
    """Return the document that begins with these bytes; None: it is lines."""
    kind = next((kind for kind in _KINDS if len(head) > 1 and kind.is_it(head)), None)
    return None if kind is None else Document(name, kind)


class Documents:
    """The documents of all files: dumps say more together than each alone."""

    def __init__(self) -> None:
        self._dumps: dict[int, Dump] = {}
        self._broken: list[str] = []
        self._recordings: list[Parsed] = []

    def add(self, document: Document) -> None:
        """Read a document."""
        if document.kind == RECORDING:
            self._recordings.append(_recording(document))
            return
        rank = rank_in_name(document.name)
        rank = max(self._dumps, default=-1) + 1 if rank is None or rank in self._dumps else rank
        dump = parse_dump(document.content, rank, document.name)
        if isinstance(dump, Unknown):
            self._broken.append(f"{document.name}: {dump.detail}")
        elif len(self._dumps) < _MOST_DUMPS:
            self._dumps[rank] = dump

    def parsed(self) -> list[tuple[str, Parsed]]:
        """Return what they say, by kind."""
        found = [(RECORDING, parsed) for parsed in self._recordings]
        if self._dumps:
            found.append((DUMP, _hang(list(self._dumps.values()))))
        if self._broken:
            unread = Parsed(1, shows=f"Not readable as a dump: {join_limited(self._broken, 4)}.")
            found.append((DUMP, unread))
        return found


def _hang(dumps: list[Dump]) -> Parsed:
    verdict = verdict_of(dumps)
    statements = tuple(_waiting(group, dumps[0].file) for group in verdict.groups[:_MOST_GROUPS])
    shows = f"{plural(len(dumps), 'dump')} of PyTorch's flight recorder"
    if not verdict.groups:
        return Parsed(len(dumps), shows=f"{shows}: no process group waits.")
    if verdict.culprits:
        shows += f": all others wait for {ranks_text(verdict.culprits)}"
    else:
        shows += f": {plural(len(verdict.groups), 'process group')} waited when it was written"
    return Parsed(len(dumps), statements, shows=f"{shows}.")


def _waiting(group: WaitingGroup, file: str) -> Statement:
    title = group.sentence[0].upper() + group.sentence[1:]
    return statement(f"collective-waits-{group.cause.value}", Place(file, 1), title=title)


def _recording(document: Document) -> Parsed:
    """Judge a recording as gdrtop check --replay does."""
    content = document.content
    if len(content) > _MOST_RECORDING_BYTES:
        return Parsed(1, shows=f"{document.name} is too large: use gdrtop check --replay {document.name}.")
    try:
        # It came unpacked, and the reader of archives unpacks: stored blocks cost little.
        recording = read_archive([gzip.compress(content, 0)])
    except RecordingError:
        return Parsed(
            1, shows=f"{document.name} is an archive: unpack it, and give its files to gdrtop read."
        )
    host = ReplayHost(recording)
    verdict, statements = judged_node(examine(host))
    reason = f": {verdict.reason}" if verdict.reason else ""
    return Parsed(1, tuple(statements), shows=f"Recording of {host.origin.label}: {verdict.word}{reason}.")
