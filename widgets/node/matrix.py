"""The matrix of paths: the word for every GPU and NIC, colored like a heat map."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.topology.endpoints import Endpoint
from probes.topology.hops import Smi
from probes.topology.nccl_paths import NEAR, Nccl
from probes.topology.paths import Path, Topology
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import LazyLines, Line, Run, Tone, flowed, wrapped
from widgets.node.highlights import DETOUR_MARK, NOT_USABLE_MARK, UNPROVEN_MARK, Highlights

BEST_MARK = "•"
LONGEST_HEADING = 10
_FIGURE_CELLS = 6  # " (393)"
_PAIR = "\n"  # between the endpoints of a cell in its id; no name has a line break
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
    """Return nvidia-smi's word for the path; bonded NVLinks before PCIe, as `nvidia-smi topo -m` does."""
    if path.nvlinks:
        return f"NV{path.nvlinks}"
    return UNKNOWN_MARK if isinstance(path.smi, Unknown) else path.smi.value


def nccl_word(path: Path) -> str:
    """Return NCCL's word for the path."""
    return UNKNOWN_MARK if isinstance(path.nccl, Unknown) else path.nccl.value


def both_words(path: Path) -> str:
    """Return nvidia-smi's word, and NCCL's if it differs: "NODE (NCCL PHB)"."""
    smi, nccl = smi_word(path), nccl_word(path)
    same = smi == nccl or (path.nvlinks and path.nccl is Nccl.NVL)
    return smi if same else f"{smi} (NCCL {nccl})"


def no_pairs(topology: Topology, width: int) -> list[Line]:
    """Say that there is nothing between a GPU and a NIC to show, or why it is unknown."""
    unread = topology.unread
    text = "No GPU–NIC pairs." if unread is None else f"GPU–NIC pairs unknown ({unread})."
    return wrapped(text, width, Tone.DIM)


def path_tone(path: Path) -> Tone:
    """Return good below a switch or over NVLink, warning through the CPU, bad across sockets."""
    # PIX and PXB of a topology file, where nvidia-smi sees the virtual machine's own tree.
    if path.nvlinks or path.nccl in (*NEAR, Nccl.C2C):
        return Tone.GOOD
    return Tone.DIM if isinstance(path.smi, Unknown) else _TONES[path.smi]


def shown_word(path: Path, is_from_file: bool = False) -> str:
    """Return the word in the matrix: nvidia-smi's, or NCCL's if nvidia-smi does not see the path.

    It sees no topology file, and no Data Direct function.
    """
    word = smi_word(path)
    is_nccls = (is_from_file and not path.nvlinks) or path.by_data_direct
    return nccl_word(path) if word == UNKNOWN_MARK or is_nccls else word


def _cell_tone(path: Path, is_best: bool) -> Tone:
    """Return a bad tone only if no NIC is nearer: most cells of a matrix are far by design."""
    tone = path_tone(path)
    if is_best or tone is Tone.GOOD:
        return tone
    return Tone.DIM if tone is Tone.BAD else Tone.PLAIN


def column_headings(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Return a common prefix and the numbers after it if all labels are like mlx5_0, else "" and the labels.

    Long labels are cut.
    """
    split = [re.fullmatch(r"(.*?)(\d+)", label) for label in labels]
    prefixes = {match.group(1) for match in split if match}
    if len(prefixes) == 1 and all(split):
        return prefixes.pop(), [match.group(2) for match in split if match]
    longest = LONGEST_HEADING
    return "", [label if len(label) <= longest else "…" + label[1 - longest :] for label in labels]


EQUALLY_NEAR = "All NICs are equally close, so none is best. NCCL spreads its GPUs and channels over them."


def draw(
    topology: Topology,
    width: int,
    rows: Sequence[Endpoint] | None = None,
    columns: Sequence[Endpoint] | None = None,
    highlights: Highlights | None = None,
    figures: Mapping[tuple[str, str], Run] | None = None,
) -> LazyLines:
    """Draw GPUs by NICs (GPUs by GPUs if there is no NIC); columns that do not fit go below.

    A GPU's best NIC is marked `•`, if one is nearer than the others. A node may have 65,000 cells, so a line
    is drawn when it is asked for. `figures`: behind the words, if all columns then fit beside each other.
    """
    marked = highlights or Highlights()
    ends = topology.gpus if rows is None else rows
    columns = (topology.nics or topology.gpus) if columns is None else columns
    if not ends or not columns:
        return LazyLines.from_lines(no_pairs(topology, width))
    prefix, headings = column_headings([end.label for end in columns])
    label_width = max(len(prefix), *(len(end.label) for end in ends))
    cell = _cell_width(headings)
    behind = figures if figures and has_room_for_figures(topology, width) else {}
    gap = _FIGURE_CELLS if behind else 0
    cell += gap
    across = max(1, (width - label_width) // cell)
    pairs = list(zip(columns, headings, strict=True))
    height = len(ends) + 2  # of a block of columns, with an empty line above all but the first

    def drawn(number: int) -> Line:
        block_number, place = divmod(number + 1, height)
        block = pairs[block_number * across : (block_number + 1) * across]
        if not place:
            return ()
        if place == 1:
            head = Run(f"{prefix:<{label_width}}", Tone.DIM)
            heads = ((heading, marked.tone(end.id, Tone.TITLE), end.id) for end, heading in block)
            return (head, *(Run(f" {heading:<{cell - 1}}", tone, end) for heading, tone, end in heads))
        row = ends[place - 2]
        label = Run(f"{row.label:<{label_width}}", marked.tone(row.id, Tone.TITLE), row.id)
        runs: list[Run] = [label]
        for end, _ in block:
            text, tone = cell_of(topology, row.id, end.id, marked)
            pair = pair_id(row.id, end.id)
            runs.append(Run(f" {text:<{cell - gap - 1}}", tone, pair))
            if gap:
                figure = behind.get((row.id, end.id), Run(""))
                runs.append(Run(f"{figure.text:>{gap}}", figure.tone, pair))
        return tuple(runs)

    count = -(-len(pairs) // across) * height - 1
    return LazyLines(count, drawn, heads=range(0, count, height))


def _cell_width(headings: Sequence[str]) -> int:
    return max(5, *map(len, headings)) + 1  # "NODE•" and a space


def has_room_for_figures(topology: Topology, width: int) -> bool:
    """Return whether the matrix of GPUs by NICs has room for a figure in every cell."""
    _, headings = column_headings([end.label for end in topology.nics])
    labels = max((len(end.label) for end in topology.gpus), default=0)
    return bool(headings) and len(headings) * (_cell_width(headings) + _FIGURE_CELLS) + labels + 1 <= width


def pair_id(row: str, column: str) -> str:
    """Return the id of a cell of the matrix."""
    return f"{row}{_PAIR}{column}"


def ends_of(id: str) -> tuple[str, str]:  # noqa: A002 - a run's own word
    """Return the endpoints that an id stands for: of a cell both, else the one and ""."""
    row, _, column = id.partition(_PAIR)
    return row, column


def cell_of(topology: Topology, row: str, column: str, highlights: Highlights) -> tuple[str, Tone]:
    """Return the text of a cell of the matrix and its tone."""
    if row == column:
        return "X", Tone.DIM
    path = topology.path(row, column)
    is_best = column == topology.best_nic.get(row)
    mark = highlights.path_mark(row, column)
    is_limited = row in highlights.not_usable or column in highlights.not_usable
    text = shown_word(path, topology.file is not None)
    text += NOT_USABLE_MARK if is_limited else BEST_MARK * is_best + mark
    if {row, column} <= {highlights.selected, *highlights.partners}:
        return text, Tone.CURSOR
    if is_limited:
        return text, Tone.DIM
    return text, Tone.WARNING if mark else _cell_tone(path, is_best)


def legend(
    topology: Topology,
    width: int,
    highlights: Highlights | None = None,
    figures: Sequence[str] = (),
    has_nccl_words: bool = True,
) -> list[Line]:
    """Explain the words that are in the matrix, and where NCCL's word for a path differs.

    `figures`: what explains the figures behind the words.
    """
    paths = topology.kinds_of_paths
    if not paths:
        return []
    from_file = topology.file is not None
    counts: Counter[tuple[str, str]] = Counter()
    for path, count in paths:
        counts[shown_word(path, from_file), nccl_word(path)] += count
    shown = {word for word, _ in counts}
    words = [f"{BEST_MARK} best NIC"] if topology.best_nic else []
    if highlights is not None and highlights.detours - highlights.unproven.keys():
        words.append(f"{DETOUR_MARK} via CPU")
    if highlights is not None and highlights.unproven:
        words.append(f"{UNPROVEN_MARK} data may be wrong")
    if highlights is not None and highlights.not_usable:
        words.append(f"{NOT_USABLE_MARK} not usable here")
    words.extend(f"{word} {_MEANINGS[word]}" for word in _MEANINGS if word in shown)
    lines = flowed([(Run(text, Tone.DIM),) for text in (*words, *figures)], width)
    if not topology.best_nic:
        lines.extend(wrapped(EQUALLY_NEAR, width, Tone.DIM))
    text = ""
    if topology.file is not None:
        text = f"These are NCCL's terms, from its topology file {topology.file.path}."
    elif any(path.by_data_direct for path, _ in paths):
        text = "These are NCCL's terms for the NICs' Data Direct functions, which nvidia-smi does not show."
    elif any(isinstance(path.smi, Unknown) and not isinstance(path.nccl, Unknown) for path, _ in paths):
        text = "These are NCCL's terms. nvidia-smi's are unknown: no NUMA node."
    if text:
        return [*lines, *wrapped(text, width, Tone.DIM)]
    for word in sorted(
        shown if has_nccl_words else (), key=lambda word: ([*_MEANINGS, word].index(word), word)
    ):
        others = sorted((nccl, count) for (smi, nccl), count in counts.items() if word == smi != nccl)
        if others:
            names = " or ".join(f"{nccl} ({plural(count, 'pair')})" for nccl, count in others)
            lines.extend(wrapped(f"NCCL calls {word} {names}", width, Tone.DIM))
    return lines
