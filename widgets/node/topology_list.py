"""The topology as a list: one line a GPU with its best NIC, then the NICs that are no GPU's best."""

from __future__ import annotations

from dataclasses import dataclass

from probes.base.unknown import Unknown, known
from probes.topology.endpoints import Endpoint
from widgets.base.lines import LazyLines, Line, Run, Tone, fit, joined, width_of, wrapped
from widgets.node.boxes import UNKNOWN_NUMA, columns_that_fit
from widgets.node.endpoint_lines import EndpointLines
from widgets.node.matrix import shown_word

_NO_NIC = " no NIC"
_WORD_TONES = {"PIX": Tone.GOOD, "PXB": Tone.GOOD, "SYS": Tone.BAD}


def unknown_last(numa: int) -> tuple[bool, int]:
    """Return the sort key of a NUMA node's number."""
    return numa == UNKNOWN_NUMA, numa


@dataclass
class Columns:
    """The widths of the columns in cells: with them, a line is drawn without all the others."""

    numbers: int  # of the names of NUMA nodes
    gpu: int
    nic: int  # of a GPU's best NIC
    other: int  # of a NIC that is no GPU's best
    is_broken: bool = False  # a GPU and its NIC do not fit in one line
    is_outgrown: bool = False  # a line that was drawn needed more: measure again


def measure(lines: EndpointLines, width: int) -> Columns:
    """Return the widths that all lines need."""
    gpus = lines.topology.gpus
    numbers = max((len(_numa_text(gpu)) for gpu in gpus), default=1)
    pairs, others = _pairs(lines), _others(lines)
    columns = Columns(
        numbers,
        max((width_of(lines[gpu.id][0]) for gpu in gpus), default=0),
        max((_nic_cells(nic, lines) for _, nic in pairs), default=0),
        max((width_of(line) for nic in others for line in lines[nic.id]), default=0),
    )
    columns.is_broken = any(
        width_of(_head(lines, gpu, nic, columns)) + _nic_cells(nic, lines) > width for gpu, nic in pairs
    )
    return columns


def draw_list(lines: EndpointLines, width: int, columns: Columns) -> LazyLines:
    """Draw one line a GPU with its best NIC, or two if they do not fit in one; then the other NICs."""
    places: list[tuple[Endpoint, str, int]] = []  # of each line: the GPU, its NIC, and which line of both
    for gpu, nic in _pairs(lines):
        ports = lines.count(nic) if nic else 0
        places += [(gpu, nic, number) for number in range(ports + 1 if columns.is_broken else max(1, ports))]

    def drawn(row: int) -> Line:
        gpu, nic, number = places[row]
        columns.is_outgrown |= width_of(lines[gpu.id][0]) > columns.gpu
        columns.is_outgrown |= _nic_cells(nic, lines) > columns.nic
        if number and columns.is_broken:
            return Run("   └ ", id=nic), *lines[nic][number - 1]
        head = _head(lines, gpu, nic, columns)
        if number:
            return Run(" " * width_of(head)), *lines[nic][number]
        whole = (*head, *lines[nic][0]) if nic and not columns.is_broken else head
        figure = lines.highlights.measured.get(gpu.id)
        if figure is None:
            return whole
        measured: Line = (*whole, Run(" ", id=gpu.id), figure._replace(id=gpu.id))
        return measured if columns.is_broken or width_of(measured) <= width else whole

    others = _other_nics(lines, width, columns)
    if not places and not others:
        return LazyLines.from_lines(wrapped("No GPU or NIC matches the filter.", width, Tone.DIM))
    if not places:
        return others
    heading = LazyLines(1, lambda _: _heading(drawn(0), columns.is_broken), heads=range(1))
    return heading.followed_by(LazyLines(len(places), drawn)).followed_by(others)


def _pairs(lines: EndpointLines) -> list[tuple[Endpoint, str]]:
    """Return the GPUs to show in their order, each with its best NIC; "" if it has none."""
    topology, only = lines.topology, lines.highlights.only
    pairs = [(gpu, next(iter(topology.best_nics.get(gpu.id, ())), "")) for gpu in topology.gpus]
    shown = [(gpu, nic) for gpu, nic in pairs if only is None or only.intersection((gpu.id, nic))]
    return sorted(shown, key=lambda pair: unknown_last(known(pair[0].numa_node, UNKNOWN_NUMA)))


def _nic_cells(nic: str, lines: EndpointLines) -> int:
    """Return the width of a NIC's widest line; 0 for no NIC."""
    return max(map(width_of, lines[nic] if nic else ()), default=0)


def _head(lines: EndpointLines, gpu: Endpoint, nic: str, columns: Columns) -> Line:
    """Return a GPU's line up to the word of the path to its NIC."""
    line = lines[gpu.id][0]
    pad = " " * (columns.gpu - width_of(line))
    head: Line = (Run(f"{_numa_text(gpu):>{columns.numbers}} ", Tone.DIM, gpu.id), *line)
    if pad:
        head = (*head, Run(pad, id=gpu.id))
    if not nic:
        return (*head, Run(_NO_NIC, Tone.WARNING, gpu.id))
    word = shown_word(lines.topology.path(gpu.id, nic), lines.topology.file is not None)
    mark = lines.highlights.path_mark(gpu.id, nic)
    tone = Tone.WARNING if mark else _WORD_TONES.get(word, Tone.WARNING)
    return (*head, Run(f" {f'{word}{mark}':<5}", tone, gpu.id))


def _numa_text(end: Endpoint) -> str:
    return "N?" if isinstance(end.numa_node, Unknown) or end.numa_node < 0 else f"N{end.numa_node}"


def _heading(first: Line, is_broken: bool) -> Line:
    """Return what the columns show, above the first figures of each kind."""
    if is_broken:
        return (Run("N", Tone.DIM), Run(" = NUMA node; ↑↓ GPU: PCIe, NIC: RDMA, Gb/s", Tone.DIM))
    text, at = "NUMA, GPU", 0
    for run in first:
        if "↑" in run.text and "↓" in run.text:
            place = at + run.text.index("↑")
            is_gpu = run.id == first[0].id
            word = "PCIe Gb/s" if is_gpu else f"RDMA Gb/s{', share' if '%' in run.text else ''}"
            text = f"{text:<{place}}{word}" if len(text) < place else text
        at += width_of((run,))
    return (Run(text, Tone.DIM),)


def _others(lines: EndpointLines) -> list[Endpoint]:
    """Return the NICs to show that are no GPU's best."""
    topology, only = lines.topology, lines.highlights.only
    best = {nics[0] for nics in topology.best_nics.values() if nics}
    return [nic for nic in topology.nics if nic.id not in best and (only is None or nic.id in only)]


def _other_nics(lines: EndpointLines, width: int, columns: Columns) -> LazyLines:
    """Draw the NICs that are no GPU's best, as many in a row as fit."""
    others = _others(lines)
    cells = [(nic, port) for nic in others for port in range(lines.count(nic.id))]
    least = columns.other + 1 + max((len(_numa_text(nic)) for nic in others), default=0)
    across = columns_that_fit(least, len(cells), width, gap=2) if cells else 1
    each = min(least, (width - 2 * (across - 1)) // across)

    def drawn(row: int) -> Line:
        parts: list[Line] = []
        for nic, port in cells[row * across : (row + 1) * across]:
            line = lines[nic.id][port]
            columns.is_outgrown |= width_of(line) > columns.other
            parts.append(fit((Run(f"{_numa_text(nic)} ", Tone.DIM, nic.id), *line), each))
        return joined(parts)

    return LazyLines(-(-len(cells) // across), drawn)
