"""Reports of a RAS service, written in the forms of NCCL 2.29."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HASH = "27a079b828ff1a75"
NODE = "10.0.0.7"


def rank_line(rank: int, middle: str = "", pid: int | None = None, node: str = NODE) -> str:
    process = 4711 + rank if pid is None else pid
    return f"  Rank {rank} {middle}-- GPU {rank} managed by process {process} on node {node}"


def a_report(
    counts: Mapping[str, Mapping[int, int]] | None = None,
    errors: Sequence[str] = (),
    status: str = "RUNNING",
    ranks: int = 8,
    communicator: str = HASH,
    node: str = NODE,
) -> str:
    """Return a report of one communicator; `counts`: of each rank by operation, where they differ."""
    lines = [
        "NCCL version 2.29.7 compiled with CUDA 12.9",
        "CUDA runtime version 12090, driver version 12090",
        "",
        "Job summary",
        "===========",
        "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"      1          {ranks}            1          {ranks}        {ranks}",
        "",
        "Communicators... (0.01s)",
        "=============",
        "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
        f"    0         1         1         {ranks}         {ranks}         {ranks}  {status:>8}"
        f"  {'MISMATCH' if counts else 'OK'}",
        "",
        "Errors",
        "======",
        "",
        *errors,
        "Warnings",
        "========",
        "",
    ]
    if counts:
        lines.append(f"#0-0 ({communicator}) MISMATCH")
        for operation, by_rank in counts.items():
            lines.append(f"  Communicator ranks have different {operation} operation counts")
            values = list(by_rank.values())
            for value in sorted(set(values), key=lambda value: -values.count(value)):
                lines += _set(value, [rank for rank in by_rank if by_rank[rank] == value], node)
            lines.append("")
    return "\n".join([*lines, ""])


def _set(value: int, ranks: Sequence[int], node: str) -> list[str]:
    launched = f"launched up to operation {value}" if value else "not launched any operations"
    if len(ranks) == 1:
        return [rank_line(ranks[0], f"has {launched} ", node=node)]
    named = [rank_line(rank, node=node) for rank in ranks] if len(ranks) < 3 else []
    return [f"  {len(ranks)} ranks have {launched}", *named]
