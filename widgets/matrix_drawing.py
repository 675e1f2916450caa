"""The affinity matrix: what lies between every GPU and every NIC, in words that are also a heat map."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.topology import Endpoint, Nccl, Path, Smi, Topology
from probes.unknown import Unknown
from widgets.figures import UNKNOWN_MARK
from widgets.lines import Line, Run, Tone, wrapped
from widgets.topology_drawing import Lit

BEST_MARK = "•"
LONGEST_HEADING = 10
_TONES = {
    Smi.PIX: Tone.GOOD,
    Smi.PXB: Tone.GOOD,
    Smi.PHB: Tone.WARNING,
    Smi.NODE: Tone.WARNING,
    Smi.SYS: Tone.BAD,
}


def smi_word(path: Path) -> str:
    """nvidia-smi's word for the path; bonded NVLinks before PCIe, as `nvidia-smi topo -m` does."""
    if path.nvlinks:
        return f"NV{path.nvlinks}"
    return UNKNOWN_MARK if isinstance(path.smi, Unknown) else path.smi.value


def both_words(path: Path) -> str:
    """Both vocabularies, the second only where it says something else: "NODE (NCCL PHB)"."""
    ours = smi_word(path)
    theirs = UNKNOWN_MARK if isinstance(path.nccl, Unknown) else path.nccl.value
    same = ours == theirs or (path.nvlinks and path.nccl is Nccl.NVL)
    return ours if same else f"{ours} (NCCL {theirs})"


def path_tone(path: Path) -> Tone:
    """Good below a switch or by NVLink, a warning through the CPU, bad across sockets."""
    if path.nvlinks or path.nccl in (Nccl.P2C, Nccl.C2C):
        return Tone.GOOD
    return Tone.DIM if isinstance(path.smi, Unknown) else _TONES[path.smi]


def _cell_tone(path: Path, is_best: bool) -> Tone:
    """A far NIC is a fault only where there is no nearer one; most cells of a matrix are far by design."""
    tone = path_tone(path)
    if is_best or tone is Tone.GOOD:
        return tone
    return Tone.DIM if tone is Tone.BAD else Tone.PLAIN


def column_headings(labels: Sequence[str]) -> tuple[str, list[str]]:
    """What stands above the columns: numbers where all names are one prefix and a number, as mlx5_0 ….

    GPUs are numbers too; names of other shapes stand whole, long ones cut.
    """
    split = [re.fullmatch(r"(.*?)(\d+)", label) for label in labels]
    prefixes = {match.group(1) for match in split if match}
    if len(prefixes) == 1 and all(split):
        return prefixes.pop(), [match.group(2) for match in split if match]
    return "", [
        label if len(label) <= LONGEST_HEADING else "…" + label[1 - LONGEST_HEADING :] for label in labels
    ]


def draw(
    topology: Topology,
    width: int,
    rows: Sequence[Endpoint] | None = None,
    columns: Sequence[Endpoint] | None = None,
    lit: Lit | None = None,
) -> list[Line]:
    """GPU rows by NIC columns (GPU by GPU where there is no NIC); more columns than fit go below.

    A GPU's best NICs are marked `•`.
    """
    lit = lit or Lit()
    rows = topology.gpus if rows is None else rows
    columns = (topology.nics or topology.gpus) if columns is None else columns
    if not rows or not columns:
        return wrapped("No pair of GPU and NIC here.", width, Tone.DIM)
    prefix, headings = column_headings([end.label for end in columns])
    label_width = max(len(end.label) for end in rows)
    label_width = max(label_width, len(prefix))
    cell = max(5, max(len(heading) for heading in headings)) + 1
    per_block = max(1, (width - label_width) // cell)
    lines: list[Line] = []
    for start in range(0, len(columns), per_block):
        if lines:
            lines.append(())
        block = list(zip(columns, headings, strict=True))[start : start + per_block]
        lines.append(
            (
                Run(f"{prefix:<{label_width}}", Tone.DIM),
                *(Run(f" {heading:<{cell - 1}}", lit.tone(end.id, Tone.TITLE)) for end, heading in block),
            )
        )
        for row in rows:
            best = topology.best_nics.get(row.id, ())[:1]
            cells: list[Run] = [Run(f"{row.label:<{label_width}}", lit.tone(row.id, Tone.TITLE), row.id)]
            for end, _ in block:
                if end.id == row.id:
                    cells.append(Run(f" {'X':<{cell - 1}}", Tone.DIM))
                    continue
                path = topology.path(row.id, end.id)
                word = smi_word(path) + (BEST_MARK if end.id in best else "")
                on_way = {row.id, end.id} <= {lit.selected, *lit.partners}
                cells.append(
                    Run(f" {word:<{cell - 1}}", Tone.CURSOR if on_way else _cell_tone(path, end.id in best))
                )
            lines.append(tuple(cells))
    return lines


def differences(topology: Topology, width: int) -> list[Line]:
    """Where NCCL's word is another than nvidia-smi's, once for each pair of words."""
    words: dict[tuple[str, str], int] = {}
    for gpu in topology.gpus:
        for nic in topology.nics:
            path = topology.path(gpu.id, nic.id)
            theirs = UNKNOWN_MARK if isinstance(path.nccl, Unknown) else path.nccl.value
            if smi_word(path) != theirs:
                words[smi_word(path), theirs] = words.get((smi_word(path), theirs), 0) + 1
    told = "; ".join(
        f"{ours} is {theirs} to NCCL ({count} pairs)" for (ours, theirs), count in sorted(words.items())
    )
    return wrapped(told, width, Tone.DIM) if told else []
