"""The topology as a list: one line a GPU with its best NIC, then the NICs that are no GPU's best."""

from __future__ import annotations

from probes.base.unknown import Unknown, known
from probes.topology.endpoints import Endpoint
from probes.topology.paths import Topology
from widgets.base.boxes import columns_that_fit
from widgets.base.lines import Line, Run, Tone, fit, joined, width_of, wrapped
from widgets.node.highlights import Highlights
from widgets.node.matrix import DETOUR_MARK, shown_word
from widgets.node.switch_boxes import UNKNOWN_NUMA

_NO_NIC = " no NIC"
_WORD_TONES = {"PIX": Tone.GOOD, "PXB": Tone.GOOD, "SYS": Tone.BAD}


def unknown_last(numa: int) -> tuple[bool, int]:
    """Return the sort key of a NUMA node's number."""
    return numa == UNKNOWN_NUMA, numa


def draw_list(
    topology: Topology, lines: dict[str, list[Line]], highlights: Highlights, width: int
) -> list[Line]:
    """Draw the list; `lines`: of each endpoint by its id."""
    rows, is_broken = list_rows(topology, lines, highlights, width)
    others = _other_nics(topology, lines, highlights, width)
    if not rows and not others:
        return wrapped("No GPU or NIC matches the filter.", width, Tone.DIM)
    return [*_heading(rows, is_broken), *rows, *others]


def list_rows(
    topology: Topology, lines: dict[str, list[Line]], highlights: Highlights, width: int
) -> tuple[list[Line], bool]:
    """Return one line a GPU, or two if GPU and NIC do not fit in one; then the second value is true."""
    heads = _heads(topology, lines, highlights)
    is_broken = any(cells + max(map(width_of, ports), default=0) > width for _, _, cells, ports in heads)
    drawn: list[Line] = []
    for gpu, head, cells, ports in heads:
        tail: Line = (Run(" "), highlights.measured[gpu]) if gpu in highlights.measured else ()
        if is_broken:
            drawn.extend([(*head, *tail), *((Run("   └ "), *port) for port in ports)])
            continue
        row: Line = (*head, *ports[0]) if ports else head
        drawn.append((*row, *tail) if tail and width_of(row) + width_of(tail) <= width else row)
        if len(ports) > 1:
            pad = Run(" " * cells)
            drawn.extend((pad, *port) for port in ports[1:])
    return drawn, is_broken


def _heads(
    topology: Topology, lines: dict[str, list[Line]], highlights: Highlights
) -> list[tuple[str, Line, int, list[Line]]]:
    """Return for each GPU its id, its line up to the path word, its width, and the lines of its best NIC."""
    numas = {gpu.id: _numa_text(gpu) for gpu in topology.gpus}
    numbers = max(map(len, numas.values()), default=1)
    widths = {gpu.id: width_of(lines[gpu.id][0]) for gpu in topology.gpus}
    most = max(widths.values(), default=0)
    heads: list[tuple[str, Line, int, list[Line]]] = []
    for gpu in sorted(topology.gpus, key=lambda gpu: unknown_last(known(gpu.numa_node, UNKNOWN_NUMA))):
        best = topology.best_nics.get(gpu.id, ())[:1]
        if highlights.only is not None and not highlights.only.intersection((gpu.id, *best)):
            continue
        head: Line = (Run(f"{numas[gpu.id]:>{numbers}} ", Tone.DIM), *lines[gpu.id][0])
        if widths[gpu.id] < most:
            head = (*head, Run(" " * (most - widths[gpu.id])))
        cells = numbers + 1 + most
        if not best:
            heads.append((gpu.id, (*head, Run(_NO_NIC, Tone.WARNING)), cells + len(_NO_NIC), []))
            continue
        word = shown_word(topology.path(gpu.id, best[0]), topology.file is not None)
        is_detour = (gpu.id, best[0]) in highlights.detours
        tone = Tone.WARNING if is_detour else _WORD_TONES.get(word, Tone.WARNING)
        text = f" {word + DETOUR_MARK if is_detour else word:<5}"
        heads.append((gpu.id, (*head, Run(text, tone)), cells + len(text), lines[best[0]]))
    return heads


def _numa_text(end: Endpoint) -> str:
    return "N?" if isinstance(end.numa_node, Unknown) or end.numa_node < 0 else f"N{end.numa_node}"


def _heading(rows: list[Line], is_broken: bool) -> list[Line]:
    """Return what the columns show, above the first figures of each kind."""
    if not rows:
        return []
    if is_broken:
        return [(Run("N", Tone.DIM), Run(" = NUMA node; ↑↓ GPU: PCIe, NIC: RDMA, Gb/s", Tone.DIM))]
    text, at, names = "NUMA, GPU", 0, 0
    for run in rows[0]:
        names += bool(run.id)
        if "↑" in run.text and "↓" in run.text:
            place = at + run.text.index("↑")
            word = "PCIe Gb/s" if names == 1 else "RDMA Gb/s, share"
            text = f"{text:<{place}}{word}" if len(text) < place else text
        at += width_of((run,))
    return [(Run(text, Tone.DIM),)]


def _other_nics(
    topology: Topology, lines: dict[str, list[Line]], highlights: Highlights, width: int
) -> list[Line]:
    """Draw the NICs that are no GPU's best, as many in a row as fit."""
    best = {nics[0] for nics in topology.best_nics.values() if nics}
    others = [nic for nic in topology.nics if nic.id not in best]
    if highlights.only is not None:
        others = [nic for nic in others if nic.id in highlights.only]
    cells: list[Line] = [
        (Run(f"{_numa_text(nic)} ", Tone.DIM), *line) for nic in others for line in lines[nic.id]
    ]
    if not cells:
        return []
    least = max(map(width_of, cells))
    across = columns_that_fit(least, len(cells), width, gap=2)
    each = min(least, (width - 2 * (across - 1)) // across)
    rows = (cells[start : start + across] for start in range(0, len(cells), across))
    return [joined([fit(cell, each) for cell in row]) for row in rows]
