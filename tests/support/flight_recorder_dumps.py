"""Dumps of the flight recorder, as a job with several ranks writes them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from probes.base.unknown import Unknown
from probes.nccl.flight_recorder.dump import Dump, parse_dump


def entry(sequence: int, group: str = "0", **values: Any) -> dict[str, Any]:
    """An entry of version 2.10."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        "record_id": sequence,
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "tp"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + sequence,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "retired": False,
        "timeout_ms": 600000,
        "is_p2p": False,
        **values,
    }


def dump_value(
    entries: Sequence[dict[str, Any]],
    groups: Mapping[str, Sequence[int]],
    status: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """A dump; `status`: called and completed by group."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in groups.items()
        },
        "pg_status": {
            name: {
                "last_enqueued_collective": called,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for name, (called, completed) in (status or {}).items()
        },
        "entries": list(entries),
    }


def pickled(value: object) -> bytes:
    """A pickle of protocol 2, which torch's pickler writes."""
    return pickle.dumps(value, 2)


def group_dump(
    rank: int, ranks: Sequence[int], called: int, completed: int, oldest: int = 1, **values: Any
) -> Dump:
    """The dump of a rank in one group; `values`: of the entry after the newest completed one."""
    return several_groups(rank, {"0": (ranks, called, completed, values)}, oldest)


def several_groups(
    rank: int, groups: Mapping[str, tuple[Sequence[int], int, int, Mapping[str, Any]]], oldest: int = 1
) -> Dump:
    """The dump of a rank in several groups: the ranks of each, the newest collective called and completed."""
    entries = [
        entry(
            number,
            name,
            state="completed" if number <= completed else "scheduled",
            **(values if number == completed + 1 else {}),
        )
        for name, (_, called, completed, values) in groups.items()
        for number in range(oldest, called + 1)
    ]
    config = {name: ranks for name, (ranks, *_) in groups.items()}
    parsed = parse_dump(pickled(dump_value(entries, config)), rank, f"nccl_trace_rank_{rank}")
    assert not isinstance(parsed, Unknown)
    return parsed
