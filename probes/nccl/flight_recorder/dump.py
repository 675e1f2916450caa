"""A dump of PyTorch's flight recorder: how far one rank has come in each process group.

Sources: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, versions 1.x to 2.10
of the dump. `state` of an entry is set by the watchdog's thread, so *scheduled* may run already. In JSON,
written by `dump_json`, numbers of pg_status are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.nccl.flight_recorder.pickle_values import NotPlain, plain_values

MOST_BYTES = 32 << 20
_MOST_JSON_BYTES = 8 << 20
_MOST_ENTRIES = 65_536
_MOST_GROUPS = 4096
_MOST_RANKS = 1 << 17  # of a group
_NAME = 80
_COMPLETED = "completed"


@frozen
class Operation:
    """A collective that a rank has called: what must be the same on all ranks of its group."""

    name: str  # "nccl:all_reduce"
    sizes: str  # "[[1024]] -> [[1024]]"
    types: str  # "['Float'] -> ['Float']"

    @property
    def text(self) -> str:
        """The operation as shown."""
        return " ".join(part for part in (self.name, self.sizes, self.types) if part)


@frozen
class GroupProgress:
    """How far one rank has come in one process group; sequence numbers of collectives."""

    name: str  # "0"
    description: str  # "default_pg"
    ranks: tuple[int, ...]  # global ranks; (): the dump does not say
    called: int  # the newest collective that the rank has called
    completed: int | None  # the newest that is known to have completed
    oldest: int  # in the ring of the recorder: older ones are forgotten
    operations: Mapping[int, Operation]  # by sequence number


@frozen
class Dump:
    """The dump of one rank."""

    rank: int
    file: str
    version: str
    groups: tuple[GroupProgress, ...]
    point_to_point: int = 0  # entries of sends and receives, which are not judged
    newest_at: float | None = None  # when the newest entry was made, seconds since 1970; None: unknown


def rank_in_name(name: str) -> int | None:
    """Return the global rank at the end of a dump's file name: nccl_trace_rank_5, _dump_5, rank_5.json."""
    match = re.search(r"([0-9]{1,7})(?:\.(?:json|pkl|pickle))?$", name)
    return int(match[1]) if match else None


def parse_dump(
    content: bytes, rank: int, file: str, is_over: Callable[[], bool] = lambda: False
) -> Maybe[Dump]:
    """Return what a dump says; no bytes can make it run code or raise an exception."""
    source = printable(file, 200)
    if not content:
        return Unknown(Reason.MALFORMED, source, "empty")
    is_json = content[:1] in b"{ \n"
    limit = _MOST_JSON_BYTES if is_json else MOST_BYTES
    if len(content) > limit:
        return Unknown(Reason.MALFORMED, source, f"larger than {limit >> 20} MiB")
    try:
        value = json.loads(content) if is_json else plain_values(content, is_over)
    except NotPlain as error:
        return Unknown(Reason.MALFORMED, source, str(error))
    except (ValueError, RecursionError):
        return Unknown(Reason.MALFORMED, source, "not a dump: neither a pickle nor JSON")
    if not isinstance(value, dict) or not {"entries", "pg_status"} & value.keys():
        return Unknown(Reason.MALFORMED, source, "not a dump of the flight recorder")
    return _Parser(value).dump(rank, source)


class _Progress:
    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: set[str] = set()  # pg_id
        self.called: int = -1
        self.completed: int | None = None
        self.oldest: int | None = None
        self.operations: dict[int, Operation] = {}


class _Parser:
    """The checked reading of a dump: what has another type than expected is left out."""

    def __init__(self, value: Mapping[Any, Any]) -> None:
        self._value = value
        self._groups: dict[str, _Progress] = {}
        self._described: dict[str, str] = {}
        self._point_to_point = 0
        self._newest_ns = 0

    def dump(self, rank: int, file: str) -> Dump:
        entries = self._value.get("entries")
        for entry in entries[-_MOST_ENTRIES:] if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                self._add(entry)
        self._add_status()
        config = self._value.get("pg_config")
        config = config if isinstance(config, dict) else {}
        groups = tuple(
            self._group(progress, config.get(progress.name))
            for progress in self._groups.values()
            if progress.called >= 0
        )
        return Dump(
            rank=rank,
            file=file,
            version=_text(self._value.get("version")),
            groups=groups,
            point_to_point=self._point_to_point,
            newest_at=self._newest_ns / 1e9 if self._newest_ns > 0 else None,
        )

    def _add(self, entry: Mapping[Any, Any]) -> None:
        self._newest_ns = max(self._newest_ns, _number(entry.get("time_created_ns")) or 0)
        if entry.get("is_p2p") is True:
            self._point_to_point += 1
            return
        sequence = _number(entry.get("collective_seq_id", entry.get("seq_id")))
        pair = entry.get("process_group")
        if sequence is None or not isinstance(pair, (list, tuple)) or not pair:
            return
        name = _text(pair[0])
        if name not in self._groups and len(self._groups) >= _MOST_GROUPS:
            return
        self._described[name] = _text(pair[1]) if len(pair) > 1 else ""
        progress = self._groups.setdefault(name, _Progress(name))
        progress.numbers.add(_text(entry.get("pg_id")))
        progress.called = max(progress.called, sequence)
        progress.oldest = sequence if progress.oldest is None else min(progress.oldest, sequence)
        # Of a coalesced operation, each part has an entry with the same number: the first one counts.
        progress.operations.setdefault(sequence, _operation(entry))
        if entry.get("state") == _COMPLETED:
            progress.completed = max(sequence, -1 if progress.completed is None else progress.completed)

    def _add_status(self) -> None:
        """Add pg_status, which has pg_id as its key: with completed entries left out, only it has them."""
        status = self._value.get("pg_status")
        if not isinstance(status, dict):
            return
        by_number = {number: group for group in self._groups.values() for number in group.numbers}
        config = self._value.get("pg_config")
        for key, values in list(status.items())[:_MOST_GROUPS]:
            if not isinstance(values, dict):
                continue
            group = by_number.get(_text(key))
            if group is None:
                # A group without an entry is found only where its name is its number: the default group.
                if not isinstance(config, dict) or _text(key) not in config or _text(key) in self._groups:
                    continue
                group = self._groups.setdefault(_text(key), _Progress(_text(key)))
            called = _number(values.get("last_enqueued_collective"))
            completed = _number(values.get("last_completed_collective"))
            if called is not None:
                group.called = max(group.called, called)
            if completed is not None and completed >= 0:
                group.completed = max(completed, -1 if group.completed is None else group.completed)

    def _group(self, progress: _Progress, config: object) -> GroupProgress:
        ranks: tuple[int, ...] = ()
        description = self._described.get(progress.name, "")
        if isinstance(config, dict):
            ranks = _ranks(config.get("ranks"))
            description = description or _text(config.get("desc"))
        oldest = progress.called if progress.oldest is None else progress.oldest
        return GroupProgress(
            name=progress.name,
            description=description,
            ranks=ranks,
            called=progress.called,
            completed=progress.completed,
            oldest=oldest,
            operations=progress.operations,
        )


def _operation(entry: Mapping[Any, Any]) -> Operation:
    def both(kind: str) -> str:
        values = [_list_text(entry.get(f"{side}_{kind}")) for side in ("input", "output")]
        return " -> ".join(value for value in values if value)

    return Operation(_text(entry.get("profiling_name")), both("sizes"), both("dtypes"))


def _list_text(value: object) -> str:
    """Return a list of at most two levels as text; deeper ones are no sizes."""
    if not isinstance(value, list):
        return ""
    parts = []
    for item in value[:8]:
        if isinstance(item, list):
            parts.append("[" + ", ".join(str(number) for number in item[:8] if type(number) is int) + "]")
        elif isinstance(item, str):
            parts.append(_text(item))
    return f"[{', '.join(parts)}]"


def _text(value: object) -> str:
    if type(value) is int and abs(value) < 1 << 63:
        return str(value)
    return printable(value[:_NAME], _NAME) if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _ranks(value: object) -> tuple[int, ...]:
    """Return the ranks of a group, which a dump has as text: "[0, 1]"."""
    if not isinstance(value, str) or len(value) > 8 * _MOST_RANKS:
        return ()
    return tuple(int(number) for number in re.findall(r"[0-9]{1,7}", value)[:_MOST_RANKS])
