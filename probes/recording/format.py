"""Questions to a host and their answers as JSON, and back.

A line of a recording is one question and its answer:

    {"ask": "file", "of": "/proc/cmdline", "answer": "root=…"}          text, as it was read
    {"ask": "file", "of": "/proc/config.gz", "blob": "9f86d0…"}         long or no UTF-8: blobs/9f86d0…
    {"ask": "names", "of": "/sys/class/infiniband", "answer": ["mlx5_0"]}
    {"ask": "run", "of": ["ibstat"], "answer": {"argv": […], "exit_status": 0, …}}
    {"ask": "size", "of": "/x", "answer": {"unknown": "not there", "source": "/x"}}

What comes from a recording is hostile: types, ranges and lengths are checked, and text that a host gives
cleaned is cleaned again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from hashlib import sha256
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from probes.base.text import printable, printable_lines
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.command import CommandOutput
from probes.host.cuda import CudaGpu
from probes.host.nvml import NvmlFacts, NvmlLive
from probes.host.usage import InterfaceCounters, ProcessUsage

FORMAT_VERSION = 1
MAX_LINE_BYTES = 1 << 20
MAX_BLOB_BYTES = 32 << 20  # the longest file that a probe reads
MAX_JSON_BLOB_BYTES = 4 << 20
MAX_NAMES = 65536  # as many as a host lists
INLINE_BYTES = 2048  # a longer answer is a blob of its own, so that a line stays readable
MAX_INLINE_FIGURES = 64 << 10  # but for what differs at every reading
_MAX_INTEGER = 1 << 64


class RecordingError(Exception):
    """A recording that cannot be written or used; the message says what is wrong and what to do."""


class Question(NamedTuple):
    """What was asked: the kind, and the path, device, variable or command that it was asked of."""

    kind: str
    of: tuple[str, ...] = ()


_NAMES = tuple[str, ...]
# What a host answers, by the kind of question: the method of probes.host.local.Host that asks it.
_ANSWERS: dict[str, Any] = {
    "file": bytes,
    "names": _NAMES,
    "link": str,
    "resolve": str,
    "size": int,
    "readable": bool,
    "writable": bool,
    "run": CommandOutput,
    "nvml": NvmlFacts,
    "nvml_live": tuple[NvmlLive, ...],
    "dmabuf_errno": int,
    "cuda_gpus": tuple[CudaGpu, ...],
    "process_usage": ProcessUsage,
    "interface_counters": InterfaceCounters,
    "environment": str,
    "is_root": bool,
}
_OF_NOTHING = ("nvml", "nvml_live", "cuda_gpus", "is_root")
# As they are: names in directories and links are part of paths, and whoever shows them cleans them.
_UNCLEANED = ("names", "link", "resolve")


class Encoded(NamedTuple):
    """A line without its newline, and the blob that it names, if any."""

    line: str
    blob_name: str = ""
    blob: bytes = b""


def encode_question(question: Question) -> dict[str, Any]:
    """The beginning of a line."""
    if question.kind in _OF_NOTHING:
        return {"ask": question.kind}
    of: Any = list(question.of) if question.kind == "run" else question.of[0]
    return {"ask": question.kind, "of": of}


def encode(question: Question, answer: Maybe[Any]) -> Encoded:
    """The line of a question and its answer."""
    fields = encode_question(question)
    blob = b""
    if isinstance(answer, bytes):
        text = _text_of(answer)
        if text is None or len(answer) > INLINE_BYTES:
            blob = answer
        else:
            fields["answer"] = text
    else:
        fields["answer"] = plain(answer)
        line = json.dumps(fields)
        if len(line) <= (MAX_INLINE_FIGURES if question.kind == "nvml_live" else INLINE_BYTES):
            return Encoded(line)
        blob = json.dumps(fields.pop("answer")).encode()
    if not blob:
        return Encoded(json.dumps(fields))
    if len(blob) > (MAX_BLOB_BYTES if question.kind == "file" else MAX_JSON_BLOB_BYTES):
        told = "longer than what a recording holds"
        fields["answer"] = plain(Unknown(Reason.NOT_RECORDED, printable(" ".join(question.of)), told))
        return Encoded(json.dumps(fields))
    fields["blob"] = sha256(blob).hexdigest()
    return Encoded(json.dumps(fields), fields["blob"], blob)


def _text_of(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def plain(value: Any) -> Any:
    """A fact as JSON has it; an unknown one is {"unknown": reason, "source": …, "detail": …}."""
    if isinstance(value, Unknown):
        told = {"unknown": value.reason.value, "source": value.source, "detail": value.detail}
        return {key: text for key, text in told.items() if text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return plain(Unknown(Reason.MALFORMED, "", "not a number"))
    return value


class Line(NamedTuple):
    """A line read back: the question, and its answer or the name of the blob that holds it."""

    question: Question
    answer: Maybe[Any]
    blob: str = ""


def decode(fields: dict[str, Any]) -> Line:
    """A question and its answer from a line's JSON object; RecordingError where it is none."""
    question = decode_question(fields)
    if "blob" in fields:
        return Line(question, None, _string(fields["blob"]))
    if "answer" not in fields:
        raise RecordingError(f"the question {question.kind!r} has no answer")
    return Line(question, decode_answer(question, fields["answer"]))


def decode_question(fields: dict[str, Any]) -> Question:
    """The question of a line."""
    kind = fields.get("ask")
    if not isinstance(kind, str) or kind not in _ANSWERS:
        raise RecordingError(f"a question of no known kind: {kind!r:.80}")
    if kind in _OF_NOTHING:
        return Question(kind)
    of = fields.get("of")
    if kind == "run":
        if not isinstance(of, list) or not of:
            raise RecordingError("a command without a name")
        return Question(kind, tuple(_string(word) for word in of))
    return Question(kind, (_string(of),))


def decode_answer(question: Question, value: Any) -> Maybe[Any]:
    """An answer of the type that this kind of question has."""
    kind = question.kind
    if isinstance(value, dict) and "unknown" in value:
        return _unknown(value)
    if kind == "file":
        return _string(value).encode("utf-8", "surrogatepass")
    answer = _typed(_ANSWERS[kind], value, clean=kind not in _UNCLEANED)
    if kind == "names" and (len(answer) > MAX_NAMES or not all(_is_name(name) for name in answer)):
        raise RecordingError(f"no names of a directory: {printable(question.of[0], 80)}")
    return answer


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def decode_blob(question: Question, content: bytes) -> Maybe[Any]:
    """An answer that stands in a blob: a file's content as it is, any other as JSON."""
    if question.kind == "file":
        return content
    if len(content) > MAX_JSON_BLOB_BYTES:
        raise RecordingError(f"an answer of more than {MAX_JSON_BLOB_BYTES >> 20} MiB")
    return decode_answer(question, parse_json(content))


def parse_json(content: bytes) -> Any:
    """JSON in strict UTF-8; RecordingError for anything else."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise RecordingError("text that is not UTF-8") from None
    except (ValueError, RecursionError):
        raise RecordingError("text that is not JSON") from None


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordingError(f"text was expected, not {type(value).__name__}")
    return value


def _unknown(value: dict[str, Any]) -> Unknown:
    try:
        reason = Reason(value["unknown"])
    except (ValueError, TypeError):
        raise RecordingError(f"no known reason: {value['unknown']!r:.80}") from None
    source, detail = _string(value.get("source", "")), _string(value.get("detail", ""))
    return Unknown(reason, printable(source), printable(detail))


def _typed(wanted: Any, value: Any, clean: bool = True) -> Any:
    """The value as the type that is wanted of it, checked all the way down."""
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        if isinstance(value, dict) and "unknown" in value:
            return _unknown(value)
        (wanted,) = (one for one in get_args(wanted) if one is not Unknown)
        return _typed(wanted, value, clean)
    if origin is tuple:
        return _tuple(get_args(wanted), value, clean)
    if dataclasses.is_dataclass(wanted):
        return _dataclass(wanted, value)
    if wanted is str:
        text = _string(value)
        return printable_lines(text) if clean else text
    if wanted is float and type(value) in (int, float) and abs(value) < _MAX_INTEGER:
        return float(value)
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is int and type(value) is int and abs(value) < _MAX_INTEGER:
        return value
    raise RecordingError(f"{wanted.__name__} was expected, not {value!r:.80}")


def _tuple(wanted: tuple[Any, ...], value: Any, clean: bool) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise RecordingError(f"a list was expected, not {value!r:.80}")
    if wanted[1:] == (...,):
        return tuple(_typed(wanted[0], one, clean) for one in value)
    if len(value) != len(wanted):
        raise RecordingError(f"{len(wanted)} values were expected, not {len(value)}")
    return tuple(_typed(one, part, clean) for one, part in zip(wanted, value, strict=True))


def _dataclass(wanted: Any, value: Any) -> Any:
    """Of a dataclass; a field that a later version has added is not recorded."""
    if not isinstance(value, dict):
        raise RecordingError(f"{wanted.__name__} was expected, not {value!r:.80}")
    fields: dict[str, Any] = {}
    for name, hint in _hints(wanted).items():
        if name in value:
            fields[name] = _typed(hint, value[name])
        elif Unknown in get_args(hint):
            fields[name] = Unknown(Reason.NOT_RECORDED, name)
        else:
            raise RecordingError(f"{wanted.__name__} has no {name!r}")
    return wanted(**fields)


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    hints = get_type_hints(wanted)
    return {one.name: hints[one.name] for one in dataclasses.fields(wanted)}
