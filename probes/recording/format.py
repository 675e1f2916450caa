"""Questions to a host and their answers as JSON, and back.

Each line of a recording is a question and its answer:

    {"ask": "file", "of": "/proc/cmdline", "answer": "root=…"}          text as read
    {"ask": "file", "of": "/proc/config.gz", "blob": "9f86d0…"}         long or not UTF-8: blobs/9f86d0…
    {"ask": "names", "of": "/sys/class/infiniband", "answer": ["mlx5_0"]}
    {"ask": "run", "of": ["ibstat"], "answer": {"argv": […], "exit_status": 0, …}}
    {"ask": "rdma_resources", "blob": "4bf5122f…"}                      tables, see below
    {"ask": "size", "of": "/x", "answer": {"unknown": "not there", "source": "/x"}}

RDMA resources are compact tables, because a node has thousands of objects and a recording many moments:

    {"queue_pairs": [["mlx5_0", [[300, "RC", "RTS", 1, 99, 3, 4711], …]], …], "regions": […], …}

A row has the fields after the device, in their order and without defaults at its end.

A recording is untrusted input: types, ranges and lengths are checked, and text that a host cleans is cleaned
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, replace
from hashlib import sha256
from typing import Any, NamedTuple

from probes.base.codec import Bounds, Codec, CodecError, decode_unknown
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host import rdma_resources as rdma
from probes.host.collectives import CollectiveSpeed
from probes.host.component_history import MOST_COMPONENTS, MOST_NUMBER, ComponentHistory, JobPart
from probes.host.fec import FecState
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.protocol import MESSAGE_CHARACTERS, CommandOutput, CudaGpu, KernelMessage, LogFinding
from probes.host.tcp_sockets import TcpSocket
from probes.host.usage import InterfaceCounters, ProcessUsage

FORMAT_VERSION = 1
MAX_LINE_BYTES = 1 << 20
MAX_BLOB_BYTES = 32 << 20  # the longest file that a probe reads
MAX_JSON_BLOB_BYTES = 4 << 20
INLINE_BYTES = 2048  # a longer answer becomes a blob, so that lines stay readable
MAX_INLINE_LIVE_BYTES = 64 << 10  # NVML readings differ every time: a blob would never be shared


class RecordingError(Exception):
    """A recording that cannot be written or used. The message says what is wrong and what to do."""


class Question(NamedTuple):
    """A question to a host: its kind, and the path, device, variable or command that it is about."""

    kind: str
    subject: tuple[str, ...] = ()


# The type of the answer to each kind of question.
_ANSWERS: dict[str, Any] = {
    "file": bytes,
    "names": tuple[str, ...],
    "link": str,
    "resolve": str,
    "size": int,
    "readable": bool,
    "writable": bool,
    "run": CommandOutput,
    "nvml": NvmlFacts,
    "nvml_live": tuple[NvmlLive, ...],
    "dmabuf_errno": int,
    "data_direct_path": str,
    "cuda_gpus": tuple[CudaGpu, ...],
    "process_usage": ProcessUsage,
    "interface_counters": InterfaceCounters,
    "rdma_resources": rdma.RdmaResources,
    "packet_numbers": tuple[rdma.PacketNumbers, ...],
    "tcp_sockets": tuple[TcpSocket, ...],
    "namespace_sockets": tuple[TcpSocket, ...],
    "socket_inodes": tuple[int, ...],
    "rdma_statistics": dict[str, int],
    "thread_names": tuple[str, ...],
    "ethtool_counters": dict[str, int],
    "fec_states": FecState,
    "kernel_messages": tuple[KernelMessage, ...],
    "ras_answer": str,
    "ras_events": tuple[str, ...],
    "collectives": tuple[CollectiveSpeed, ...],
    "component_history": ComponentHistory,
    "log_findings": tuple[LogFinding, ...],
    "environment": str,
    "is_root": bool,
}
_WITHOUT_OBJECT = (
    *("nvml", "nvml_live", "cuda_gpus", "rdma_resources", "packet_numbers", "tcp_sockets"),
    *("kernel_messages", "component_history", "log_findings", "is_root"),
)
_CODEC = Codec(sparse=(JobPart, LogFinding))
_COMPACT = (",", ":")
# Names in directories and links are parts of paths and stay as they are. Whoever shows them cleans them.
_PATH_CODEC = Codec(clean=str)
_PATH_KINDS = ("names", "link", "resolve")
# Names and messages of one line, of which a host returns no longer ones.
_LINE_CODEC = Codec(clean=lambda text: printable(text, MESSAGE_CHARACTERS))
_LINE_KINDS = (
    *("thread_names", "ethtool_counters", "kernel_messages", "ras_events", "collectives", "log_findings"),
    *("rdma_statistics", "fec_states"),
)
_HISTORY_CODEC = Codec(
    clean=lambda text: printable(text, MESSAGE_CHARACTERS),
    bounds={"": Bounds(items=MOST_COMPONENTS, least=0, most=MOST_NUMBER)},
)


class EncodedLine(NamedTuple):
    """A line without its newline, and the blob that it names, if any."""

    text: str
    blob_name: str = ""
    blob: bytes = b""


def encode_question(question: Question) -> dict[str, Any]:
    """Return the first fields of a line."""
    if question.kind in _WITHOUT_OBJECT:
        return {"ask": question.kind}
    subject: Any = list(question.subject) if question.kind == "run" else question.subject[0]
    return {"ask": question.kind, "of": subject}


def encode(question: Question, answer: Maybe[Any]) -> EncodedLine:
    """Return the line of a question and its answer."""
    fields = encode_question(question)
    if isinstance(answer, bytes):
        blob = answer
        if len(answer) <= INLINE_BYTES:
            try:
                return EncodedLine(json.dumps({**fields, "answer": answer.decode("utf-8")}))
            except UnicodeDecodeError:
                pass
    else:
        separators = None
        if isinstance(answer, rdma.RdmaResources):
            encoded: Any = encode_resources(answer)
            separators = _COMPACT
        else:
            encoded = _CODEC.encode(answer)
        line = json.dumps({**fields, "answer": encoded}, separators=separators)
        if len(line) <= (MAX_INLINE_LIVE_BYTES if question.kind == "nvml_live" else INLINE_BYTES):
            return EncodedLine(line)
        blob = json.dumps(encoded, separators=separators).encode()
    if len(blob) > (MAX_BLOB_BYTES if question.kind == "file" else MAX_JSON_BLOB_BYTES):
        unknown = Unknown(
            Reason.NOT_RECORDED, printable(" ".join(question.subject)), "too long for a recording"
        )
        return EncodedLine(json.dumps({**fields, "answer": _CODEC.encode(unknown)}))
    name = sha256(blob).hexdigest()
    return EncodedLine(json.dumps({**fields, "blob": name}), name, blob)


class DecodedLine(NamedTuple):
    """A question, and its answer or the name of the blob that has it."""

    question: Question
    answer: Maybe[Any]
    blob: str = ""


def decode(fields: dict[str, Any]) -> DecodedLine:
    """Return the question and answer of a line's JSON object; RecordingError if it is malformed."""
    question = decode_question(fields)
    if "blob" in fields:
        return DecodedLine(question, None, _string(fields["blob"]))
    if "answer" not in fields:
        raise RecordingError(f"question {question.kind!r} has no answer")
    return DecodedLine(question, decode_answer(question, fields["answer"]))


def decode_question(fields: dict[str, Any]) -> Question:
    """Return the question of a line."""
    kind = fields.get("ask")
    if not isinstance(kind, str) or kind not in _ANSWERS:
        raise RecordingError(f"unknown kind of question: {kind!r:.80}")
    if kind in _WITHOUT_OBJECT:
        return Question(kind)
    subject = fields.get("of")
    if kind == "run":
        if not isinstance(subject, list) or not subject:
            raise RecordingError("command without a name")
        return Question(kind, tuple(_string(word) for word in subject))
    return Question(kind, (_string(subject),))


def decode_answer(question: Question, value: Any) -> Maybe[Any]:
    """Return the answer in the type that this kind of question has."""
    kind = question.kind
    try:
        if isinstance(value, dict) and "unknown" in value:
            return decode_unknown(value)
        if kind == "file":
            return _string(value).encode("utf-8", "surrogatepass")
        if kind == "rdma_resources":
            return decode_resources(value)
        codec = _PATH_CODEC if kind in _PATH_KINDS else _LINE_CODEC if kind in _LINE_KINDS else _CODEC
        codec = _HISTORY_CODEC if kind == "component_history" else codec
        answer = codec.decode(_ANSWERS[kind], value)
    except CodecError as error:
        raise RecordingError(f"answer to {kind!r}: {error}") from None
    if kind == "names" and any(name in ("", ".", "..") or "/" in name for name in answer):
        raise RecordingError(f"invalid file name in the listing of {printable(question.subject[0], 80)}")
    return answer


@frozen
class PackedAnswer:
    """An answer as JSON, which takes a tenth of the memory of its objects."""

    kind: str
    content: bytes

    def answer(self) -> Maybe[Any]:
        """Return the answer."""
        return decode_answer(Question(self.kind, ("",)), parse_json(self.content))


def packed(question: Question, answer: Maybe[Any], content: Callable[[], bytes]) -> Maybe[Any]:
    """Return the answer, or its JSON `content` packed, if the answer takes more memory than that."""
    if isinstance(answer, bytes | int | Unknown) or (isinstance(answer, str) and answer.isascii()):
        return answer
    return PackedAnswer(question.kind, content())


def decode_blob(question: Question, content: bytes) -> Maybe[Any]:
    """Return the answer in a blob: a file's content as it is, any other answer from JSON."""
    if question.kind == "file":
        return content
    if len(content) > MAX_JSON_BLOB_BYTES:
        raise RecordingError(f"answer larger than {MAX_JSON_BLOB_BYTES >> 20} MiB")
    return decode_answer(question, parse_json(content))


def parse_json(content: bytes) -> Any:
    """Parse JSON in strict UTF-8; RecordingError for anything else."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise RecordingError("text is not UTF-8") from None
    except (ValueError, RecursionError):
        raise RecordingError("text is not JSON") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)  # NaN and Infinity are no JSON


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordingError(f"expected text, got {type(value).__name__}")
    return value


# RDMA resources

_TABLES: dict[str, Any] = {
    "queue_pairs": rdma.QueuePair,
    "regions": rdma.MemoryRegion,
    "domains": rdma.ProtectionDomain,
    "contexts": rdma.RdmaContext,
    "completion_queues": rdma.CompletionQueue,
}
_COLUMNS = {name: tuple(field.name for field in fields(kind))[1:] for name, kind in _TABLES.items()}
_REQUIRED = {name: sum(row.default is MISSING for row in fields(kind)) - 1 for name, kind in _TABLES.items()}
_MAX_TABLE_TEXT = 64
_TABLE_CODEC = Codec(clean=lambda text: printable(text, _MAX_TABLE_TEXT))


def encode_resources(resources: rdma.RdmaResources) -> dict[str, Any]:
    """Return the resources as JSON values."""
    encoded: dict[str, Any] = {
        name: _encode_table(getattr(resources, name), _COLUMNS[name], _REQUIRED[name]) for name in _TABLES
    }
    others = (row.name for row in fields(rdma.RdmaResources) if row.name not in _TABLES)
    return encoded | {name: _TABLE_CODEC.encode(getattr(resources, name)) for name in others}


def _encode_table(
    objects: Sequence[Any], columns: tuple[str, ...], required: int
) -> list[tuple[str, list[list[Any]]]]:
    table: list[tuple[str, list[list[Any]]]] = []
    for item in objects:
        row = [getattr(item, column) for column in columns]
        while len(row) > required and (row[-1] is None or row[-1] is False or row[-1] == ""):
            row.pop()
        if not table or table[-1][0] != item.device:
            table.append((item.device, []))
        table[-1][1].append(row)
    return table


def decode_resources(value: object) -> rdma.RdmaResources:
    """Return the resources in JSON values; CodecError if they are malformed."""
    if not isinstance(value, dict):
        raise CodecError("expected an object")
    rest = {name: item for name, item in value.items() if name not in _TABLES}
    tables: dict[str, Any] = {name: _decode_table(name, value.get(name, [])) for name in _TABLES}
    plain: rdma.RdmaResources = _TABLE_CODEC.decode(rdma.RdmaResources, rest)
    return replace(plain, **tables)


def _decode_table(name: str, value: object) -> tuple[Any, ...]:
    columns = _COLUMNS[name]
    objects: list[Any] = []
    for part in _list(name, value, rdma.MAX_OBJECTS):
        device, rows = (*_list(name, part, 2), None, None)[:2]
        for row in _list(name, rows, rdma.MAX_OBJECTS - len(objects)):
            cells = _list(name, row, len(columns))
            encoded = {"device": device, **dict(zip(columns, cells, strict=False))}
            objects.append(_TABLE_CODEC.decode(_TABLES[name], encoded))
    return tuple(objects)


def _list(name: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise CodecError(f"expected a list of at most {most} items", name)
    return value
