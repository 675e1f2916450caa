"""The dumps of PyTorch's flight recorder that the ranks of a job have written.

Sources: torch/csrc/distributed/c10d/FlightRecorder.cpp: the name is a prefix and the global rank. The prefix
is TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE, else ~/.cache/torch/comm_lib_trace_rank_,
before that /tmp/nccl_trace_rank_. A dump is overwritten in place, so one that is older than its process is of
an earlier run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.processes import read_environ
from probes.host.protocol import Host, of_user
from probes.live.model.sample import LiveProcess
from probes.live.processes.job_logs import NO_LOG_FILES
from probes.nccl.flight_recorder.dump import MOST_BYTES, Dump, parse_dump
from probes.nccl.flight_recorder.verdict import ranks_text

NO_DUMP = "no dump"
READ_SECONDS = 6.0  # for all dumps of a job
_MOST_RANKS = 1024
_PIECE_BYTES = 1 << 20
_SETTINGS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_NEEDED = (*_SETTINGS, "TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "XDG_CACHE_HOME", "HOME")
_OLD_PREFIX = "/tmp/nccl_trace_rank_"
_NEW_NAME = "torch/comm_lib_trace_rank_"
_NO_PREFIX = Unknown(Reason.NOT_THERE, "dump", "no prefix is set")


@frozen
class FoundDumps:
    """The dumps of a job's ranks, and why others were not read."""

    dumps: tuple[Dump, ...] = ()
    absent: tuple[int, ...] = ()  # ranks on this node that have written none
    unread: tuple[str, ...] = ()  # "rank 5: older than its process, so of an earlier run"


def read_dumps(host: Host, processes: Sequence[LiveProcess]) -> FoundDumps:
    """Read the dumps of these ranks, and with a set prefix those of the job's other ranks beside them."""
    until = time.monotonic() + READ_SECONDS
    dumps: dict[int, Dump] = {}
    unread: dict[str, list[int]] = {}  # reason -> ranks
    ranked = [(process, process.rank) for process in processes if isinstance(process.rank, int)]
    user: Maybe[int] = _NO_PREFIX
    prefixes: list[str] = []  # if the job has set one, beside which the dumps of its other nodes may be
    for process, rank in ranked:
        if time.monotonic() >= until:
            unread.setdefault("no time left", []).append(rank)
            continue
        settings = _settings(host, process.pid)
        if isinstance(settings, Unknown):
            unread.setdefault(str(settings), []).append(rank)
            continue
        started = map_known(process.process.usage, lambda usage: usage.started_at)
        found: Maybe[Dump] = Unknown(Reason.NOT_THERE, "dump", "no dump")
        for name, is_prefix in _names(settings):
            path = _inside(process.pid, f"{name}{rank}" if is_prefix else name)
            found = _read(host, path, rank, process.process.uid, known(started, 0.0), until)
            if not isinstance(found, Unknown) or found.reason is not Reason.NOT_THERE:
                break
        if isinstance(found, Unknown):
            why = NO_DUMP if found.reason is Reason.NOT_THERE else str(found)
            unread.setdefault(why, []).append(rank)
        else:
            dumps[rank] = found
        if any(settings.get(name) for name in _SETTINGS) and not prefixes:
            prefixes = [_inside(process.pid, name) for name, is_prefix in _names(settings) if is_prefix]
            user = process.process.uid
    world = max((known(process.world_size, 0) for process, _ in ranked), default=0)
    local = {rank for _, rank in ranked}
    for rank in range(min(world, _MOST_RANKS)):
        for prefix in prefixes:
            if rank in local or time.monotonic() >= until:
                continue
            beside = _read(host, f"{prefix}{rank}", rank, user, 0.0, until)
            if not isinstance(beside, Unknown):
                dumps[rank] = beside
            elif beside.reason is Reason.OTHER_OWNER:
                unread.setdefault(str(beside), []).append(rank)
    reasons = tuple(f"{ranks_text(ranks)}: {why}" for why, ranks in unread.items())
    absent = tuple(unread.get(NO_DUMP, ()))
    return FoundDumps(tuple(dumps[rank] for rank in sorted(dumps)), absent, reasons)


def _settings(host: Host, pid: int) -> Maybe[Mapping[str, str]]:
    content = read_environ(host, pid)
    if isinstance(content, Unknown):
        return content
    pairs = (piece.partition(b"=") for piece in content.split(b"\0"))
    values = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}
    return {name: values[name] for name in _NEEDED if len(values.get(name, "")) in range(1, 1024)}


def _names(settings: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    for name in _SETTINGS:
        if name in settings:
            is_whole = settings.get("TORCH_FR_DUMP_DYNAMIC_FILE_NAME") == "1"
            yield settings[name], not is_whole
            return
    cache = settings.get("XDG_CACHE_HOME") or (f"{settings['HOME']}/.cache" if "HOME" in settings else "")
    if cache:
        yield f"{cache}/{_NEW_NAME}", True
    yield _OLD_PREFIX, True


def _inside(pid: int, name: str) -> str:
    return f"/proc/{pid}/root{name}" if name.startswith("/") else f"/proc/{pid}/cwd/{name}"


def _read(host: Host, path: str, rank: int, user: Maybe[int], started_at: float, until: float) -> Maybe[Dump]:
    shown = path.partition("/root")[2] or path
    if shown.startswith(NO_LOG_FILES):
        return Unknown(Reason.MALFORMED, printable(shown, 200), "not a regular file")
    state = of_user(host.read_range(path, 0, 0), user, shown)
    if isinstance(state, Unknown):
        return state
    if state.size_bytes > MOST_BYTES:
        return Unknown(Reason.MALFORMED, printable(shown, 200), f"larger than {MOST_BYTES >> 20} MiB")
    pieces: list[bytes] = []
    size = 0
    while size < state.size_bytes:
        if time.monotonic() >= until:
            return Unknown(Reason.TIMED_OUT, printable(shown, 200))
        part = host.read_range(path, size, min(_PIECE_BYTES, state.size_bytes - size))
        piece = of_user(part, user, shown)
        if isinstance(piece, Unknown):
            return piece
        if not piece.content:
            break
        pieces.append(piece.content)
        size += len(piece.content)
    dump = parse_dump(b"".join(pieces), rank, shown, lambda: time.monotonic() >= until)
    if isinstance(dump, Unknown) or dump.newest_at is None or dump.newest_at >= started_at:
        return dump
    why = "older than its process, so of an earlier run"
    return Unknown(Reason.NOT_RECORDED, printable(shown, 200), why)
