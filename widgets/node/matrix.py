"""The affinity matrix: what lies between every GPU and every NIC, in words that are also a heat map."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.base.unknown import Unknown
from probes.topology.endpoints import Endpoint
from probes.topology.nccl_words import Nccl
from probes.topology.paths import Path, Topology
from probes.topology.smi_words import Smi
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import Line, Run, Tone, fit, wrapped
from widgets.node.topology import Lit

BEST_MARK = "•"
DETOUR_MARK = "▲"
LONGEST_HEADING = 10
_MEANINGS = {
    "PIX": "one switch",
    "PXB": "2+ switches",
    "PHB": "host bridge",
    "NODE": "same NUMA",
    "SYS": "other NUMA",
    "P2C": "C2C to the CPU, then PCIe",
    "PXN": "NVLink to a GPU near the NIC",
}
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
    if path.nvlinks or (not isinstance(path.nccl, Unknown) and path.nccl in (Nccl.P2C, Nccl.C2C)):
        return Tone.GOOD
    return Tone.DIM if isinstance(path.smi, Unknown) else _TONES[path.smi]


def shown_word(path: Path) -> str:
    """The word in the matrix: nvidia-smi's, or where that cannot be told NCCL's."""
    if isinstance(path.smi, Unknown) and not path.nvlinks and not isinstance(path.nccl, Unknown):
        return path.nccl.value
    return smi_word(path)


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
    cell = max(5, max(len(heading) for heading in headings)) + 1  # "NODE•" and a space
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
                is_bent = (row.id, end.id) in lit.detours
                mark = DETOUR_MARK if is_bent else ""
                word = shown_word(path) + (BEST_MARK if end.id in best else "") + mark
                on_way = {row.id, end.id} <= {lit.selected, *lit.partners}
                tone = Tone.WARNING if is_bent else _cell_tone(path, end.id in best)
                cells.append(Run(f" {word:<{cell - 1}}", Tone.CURSOR if on_way else tone))
            lines.append(tuple(cells))
    return lines


def legend(topology: Topology, width: int, lit: Lit | None = None) -> list[Line]:
    """What the words mean that are in the matrix, and where NCCL calls a path otherwise."""
    pairs = [topology.path(gpu.id, nic.id) for gpu in topology.gpus for nic in topology.nics]
    if not pairs:
        return []
    counts: dict[str, dict[str, int]] = {}
    nccl_only = False
    for path in pairs:
        theirs = UNKNOWN_MARK if isinstance(path.nccl, Unknown) else path.nccl.value
        nccl_only = nccl_only or (isinstance(path.smi, Unknown) and theirs != UNKNOWN_MARK)
        of = counts.setdefault(shown_word(path), {})
        of[theirs] = of.get(theirs, 0) + 1
    words = [f"{word} {meaning}" for word, meaning in _MEANINGS.items() if word in counts]
    words.insert(0, f"{BEST_MARK} best NIC")
    if lit is not None and lit.detours:
        words.insert(1, f"{DETOUR_MARK} via CPU")
    lines = _flowed(words, width)
    if nccl_only:
        lines.extend(
            wrapped("These are NCCL's words. nvidia-smi's are unknown: no NUMA node.", width, Tone.DIM)
        )
        return lines
    for ours in sorted(counts, key=lambda word: ([*_MEANINGS, word].index(word), word)):
        of = counts[ours]
        others = [f"{theirs} ({count} pairs)" for theirs, count in sorted(of.items()) if theirs != ours]
        if others:
            lines.extend(wrapped(f"NCCL calls {ours} {' or '.join(others)}", width, Tone.DIM))
    return lines


def _flowed(words: Sequence[str], width: int) -> list[Line]:
    """Entries of a legend in as few lines as hold them whole."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return [
        fit((Run(text, Tone.DIM),), width) if len(text) > width else (Run(text, Tone.DIM),) for text in lines
    ]
