"""NCCL's RAS service of the simulated training job: its report and its events."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.data_files import read_toml_once
from probes.base.text import plural
from probes.host.ras import PORT
from probes.simulation.node.devices.network import NODE_ADDRESS
from probes.simulation.node.model.tree import Program, Tree, Via

ADDRESS = f"[::1]:{PORT}"
_DEAD_SECONDS = 60.0  # RAS's limits, in seconds since a rank has stopped
_EVENTS = (
    (5.0, "UNRESPONSIVE", "peer not responding for 5s"),
    (20.0, "KEEPALIVE_TIMEOUT", "keepalive timeout after 20s"),
    (_DEAD_SECONDS, "DEAD", ""),
)
_OPERATIONS_PER_SECOND = 3.0
_HASH = "5d1f0c7a93be4e20"
_PIDS_OF_A_JOB = 100


def ras_report(tree: Tree, seconds: float) -> str | None:
    """Return the text report of the first job; None: no job has RAS."""
    ranks = _ranks(tree)
    if not ranks:
        return None
    silent = [rank for rank in ranks if _since_stop(rank, seconds) > 0]
    dead = [rank for rank in silent if _since_stop(rank, seconds) >= _DEAD_SECONDS]
    missing = [rank for rank in silent if rank not in dead]
    per_node, nodes = len(ranks), tree.description.job_nodes
    total = per_node * nodes
    first = per_node * tree.description.job_node
    # Most of the time the ranks of a running job differ by one operation; after a stop all wait alike.
    operations = int(_until(ranks, seconds) * _OPERATIONS_PER_SECOND)
    late = next((rank for rank in ranks if rank.behind_at is not None and seconds > rank.behind_at), None)
    differs = late is not None or (not silent and operations % 3 != 0)
    words = [word for word, is_on in (("INCOMPLETE", silent), ("MISMATCH", differs)) if is_on]
    behind, fewer = (ranks[operations % len(ranks)], 1) if late is None else (late, 3)
    figures = {
        **{"version": _version(tree, ranks[0]), "nodes": nodes, "per_node": per_node, "group": 0, "one": 1},
        **{"total": total, "answered": total - len(silent), "seconds": 2.004 if missing else 0.003},
        "answering": f"{per_node - len(silent)}-{per_node}" if silent else per_node,
        **{"words": ",".join(words) or "OK", "hash": _HASH, "others": total - 1, "operations": operations},
        **{"rank": first + behind.slot, "fewer": operations - fewer, "place": _place(behind)},
    }
    counts = {
        "missing": plural(len(missing), "job process", "job processes"),
        "dead": f"{len(dead)} job {'processes are' if len(dead) > 1 else 'process is'}",
        "silent": plural(len(silent), "rank"),
    }
    lists = {
        "missing": "\n".join(f"  {_process(rank)}" for rank in missing),
        "dead": "\n".join(f"  {_process(rank)}" for rank in dead),
        "silent": "\n".join(f"  Rank {first + rank.slot} -- {_place(rank)}" for rank in silent),
    }
    shown = {"missing": missing, "dead": dead, "silent": silent, "timeout": missing, "mismatch": differs}
    parts: dict[str, str] = read_toml_once(__package__, "ras.toml")
    return "".join(
        text.format(**figures, count=counts.get(part), processes=lists.get(part), ranks=lists.get(part))
        for part, text in parts.items()
        if shown.get(part, True)
    )


def ras_events(tree: Tree, after: float, until: float, clock_text: str) -> tuple[str, ...]:
    """Return the events between two moments, in seconds since the node started."""
    events = [
        (rank.stopped_at + seconds, f"PEER_{kind}: {_process(rank)} {details}".rstrip())
        for rank in _ranks(tree)
        if rank.stopped_at is not None
        for seconds, kind, details in _EVENTS
    ]
    events.sort(key=lambda event: event[0])
    return tuple(f"[{clock_text}] {text}" for at, text in events if after < at <= until)


def _ranks(tree: Tree) -> list[Program]:
    """Return the ranks of the first job, in order; one that has not started yet has no RAS."""
    nccl = [
        program
        for program in tree.programs
        if program.is_nccl and program.via is not Via.NONE and program.gpu is not None
    ]
    nccl.sort(key=lambda program: program.pid)
    # A second user's job cannot listen on the same port.
    return [program for program in nccl if program.pid < nccl[0].pid + _PIDS_OF_A_JOB]


def _version(tree: Tree, rank: Program) -> str:
    match = re.search(r"libnccl\.so\.([0-9.]+)", tree.text(f"/proc/{rank.pid}/maps"))
    return match[1] if match else "?"


def _since_stop(rank: Program, seconds: float) -> float:
    return 0.0 if rank.stopped_at is None else seconds - rank.stopped_at


def _until(ranks: Sequence[Program], seconds: float) -> float:
    """Return when the job last launched an operation: one rank stops all."""
    ends = (end for rank in ranks for end in (rank.stopped_at, rank.behind_at) if end is not None)
    return min([seconds, *ends])


def _place(rank: Program) -> str:
    return f"GPU {rank.gpu} managed by process {rank.pid} on node {NODE_ADDRESS}"


def _process(rank: Program) -> str:
    return f"Process {rank.pid} on node {NODE_ADDRESS} managing GPU {rank.gpu}"


def add_ras(tree: Tree) -> None:
    """Let the job's RAS service listen on ::1."""
    if _ranks(tree):
        rest = "0A 00000000:00000000 00:00000000 00000000 0 0 1"
        line = f"   0: {'0' * 24}01000000:{PORT:04X} {'0' * 32}:0000 {rest}\n"
        tree.add("/proc/net/tcp6", tree.text("/proc/net/tcp6") + line)
