"""Dumps of PyTorch's flight recorder, as the watchdogs of a job that hangs write them."""

from __future__ import annotations

import pickle
from typing import Any

from probes.simulation.node.model.tree import Program, Tree

_CALLED = 5213  # collectives, when one rank stops
_KEPT = 20
_BEHIND = 3


def add_dumps(tree: Tree, late: Program) -> None:
    """Write the dump of each rank on this node; `late` has not called the last collectives.

    They have no times: the simulated node's clock is not known before it is opened.
    """
    ranks = [program for program in tree.programs if program.is_nccl]
    first = len(ranks) * tree.description.job_node
    world = len(ranks) * tree.description.job_nodes
    for program in ranks:
        called = _CALLED - _BEHIND if program is late else _CALLED
        dump = pickle.dumps(_dump(called, world), 2)
        tree.add(f"/proc/{program.pid}/root/tmp/nccl_trace_rank_{first + program.slot}", dump)


def _dump(called: int, world: int) -> dict[str, Any]:
    completed = _CALLED - _BEHIND
    return {
        "version": "2.7",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {
            "0": {
                "last_enqueued_collective": called,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
        },
        "entries": [_entry(number, number <= completed) for number in range(called - _KEPT, called + 1)],
    }


def _entry(number: int, is_completed: bool) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[33_554_432]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[33_554_432]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_completed else "scheduled",
        "is_p2p": False,
    }
