"""One path, element by element, with its weakest link; a detour through the root complex is drawn as such."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Unknown, known
from probes.topology.endpoints import Endpoint
from probes.topology.graph import DOWNSTREAM, INTERNAL, NO_LINK, NUMA_NODE, UPSTREAM, chain_of, root_port
from probes.topology.hops import Hop
from probes.topology.paths import Path, Topology
from widgets.base.figures import gbps
from widgets.base.lines import Line, Run, Tone, cut, width_of, wrapped
from widgets.node.boxes import beside
from widgets.node.matrix import both_words, pair_id, path_tone, smi_word

_NAME_CELLS = 17
_GAP = 3


@frozen
class _Element:
    """One row of the drawing: a device or a switch, and the link that leads to it."""

    name: str
    place: str  # addresses
    link: str  # "" for the first
    is_weakest: bool = False
    tone: Tone = Tone.PLAIN


def label_of(topology: Topology, id: str) -> str:  # noqa: A002 - an Endpoint's own word
    """Return the short name of an endpoint."""
    ends: tuple[Endpoint, ...] = (*topology.gpus, *topology.nics)
    return next((end.label for end in ends if end.id == id), id)


def draw(topology: Topology, path: Path, width: int, is_detour: bool = False, doubt: str = "") -> list[Line]:
    """Draw both words, what the weakest link carries, and a row for each device, switch, bridge and link.

    `is_detour`: GPU and NIC are below one switch, but their traffic goes through the root complex. `doubt`:
    why data may be wrong on this path.
    """
    a, b = label_of(topology, path.a), label_of(topology, path.b)
    tone = Tone.WARNING if doubt else path_tone(path)
    lines: list[Line] = [(Run(f"{a} → {b}  "), Run(both_words(path), tone))]
    if doubt:
        lines.extend(wrapped(f"Unproven: {doubt}", width, Tone.WARNING))
    if is_detour:
        lines.extend(wrapped("Detour through the CPU, not the switch", width, Tone.WARNING))
    for word in (path.smi, path.nccl):
        if isinstance(word, Unknown):
            lines.extend(wrapped(str(word), width, Tone.WARNING, "  "))
            break
    if topology.file is not None:
        text = f"NCCL's term is from {topology.file.path}; below is the tree that this machine shows"
        lines.extend(wrapped(text, width, Tone.DIM))
    if not isinstance(path.gbps, Unknown):
        lines.append((Run("PCIe at most "), Run(gbps(path.gbps)), Run(" each way", Tone.DIM)))
    elements = _elements(topology, path)
    if is_detour:
        elements = _with_detour(topology, path, elements)
    for element in elements:
        if element.link:
            tone = Tone.WARNING if element.is_weakest or element.tone is Tone.WARNING else Tone.DIM
            mark = " ◄ weakest" if element.is_weakest else ""
            lines.append(cut((Run(f" │ {element.link}", tone), Run(mark, Tone.WARNING)), width))
        name = Run(f"{element.name:<{_NAME_CELLS}}", Tone.LIT if element.tone is Tone.PLAIN else element.tone)
        lines.append(cut((name, Run(f" {element.place}", Tone.DIM)), width))
    return lines


def _elements(topology: Topology, path: Path) -> list[_Element]:
    """Return the hops, with the ports of one switch as one element."""
    bdfs = {known(end.bdf, ""): end.label for end in (*topology.gpus, *topology.nics)}
    differ = len({hop.gbps for hop in path.hops if not isinstance(hop.gbps, Unknown)}) > 1
    found: list[_Element] = []
    hops = list(path.hops)
    at = 0
    while at < len(hops):
        first, ports = hops[at], [hops[at]]
        while _is_switch_port(hops[at]) and at + 1 < len(hops) and hops[at + 1].link == INTERNAL:
            if not _is_switch_port(hops[at + 1]):
                break
            at += 1
            ports.append(hops[at])
        link, is_weakest = _link(first), differ and hops.index(first) == path.weakest
        if len(ports) > 1:
            upstream = next((port for port in ports if port.kind == UPSTREAM), first)
            others = [_short(port.id) for port in ports if port is not upstream]
            found.append(_Element(f"switch {_short(upstream.id)}", " → ".join(others), link, is_weakest))
        else:
            label = bdfs.get(first.id, "")
            name = label or (first.id if first.kind == NUMA_NODE else first.kind)
            place = "" if first.kind == NUMA_NODE else _short(first.id)
            found.append(_Element(name, place, link, is_weakest))
        at += 1
    return found


def _is_switch_port(hop: Hop) -> bool:
    return hop.kind in (UPSTREAM, DOWNSTREAM)


def _short(bdf: str) -> str:
    return bdf.removeprefix("0000:")


def _link(hop: Hop) -> str:
    """Return the link that leads to a hop: "Gen5 x16 504 Gb/s"; "" inside one chip."""
    if hop.link in ("", INTERNAL):
        return ""
    carries = "" if isinstance(hop.gbps, Unknown) else f" {gbps(hop.gbps)}"
    kind = "" if hop.link == "PCIe" else f"{hop.link} "
    return f"{kind}{hop.text}{carries}"


def _with_detour(topology: Topology, path: Path, elements: list[_Element]) -> list[_Element]:
    """Return the path with the way up to the root port and back, in place of the turn in the switch."""
    gpu = next((end.id for end in topology.gpus if end.id in (path.a, path.b)), "")
    root = root_port(topology.parts, gpu)
    switches = [at for at, element in enumerate(elements) if element.name.startswith("switch ")]
    if not switches or not root:
        return elements
    # With several switches below each other, the turn is in the uppermost: the middle one of the path.
    turn = switches[len(switches) // 2]
    uplink = _uplink(topology, gpu)
    switch = elements[turn]
    up = _Element(switch.name, switch.place.partition(" → ")[0], switch.link, switch.is_weakest, Tone.WARNING)
    top = _Element(f"root port {_short(root)}", "and CPU: redirected here", uplink, False, Tone.WARNING)
    down = _Element(switch.name, switch.place.rpartition(" → ")[2], uplink, False, Tone.WARNING)
    return [*elements[:turn], up, top, down, *elements[turn + 1 :]]


def _uplink(topology: Topology, gpu: str) -> str:
    """Return the link between the root port above a GPU and the switch below that port."""
    chain = chain_of(topology.parts, gpu)
    link = topology.parts.link(*chain[:2]) if len(chain) > 1 else {}
    if not link:
        return "PCIe"
    rate = link.get("gbps", NO_LINK)
    return f"{link['text']}{'' if isinstance(rate, Unknown) else f' {gbps(rate)}'}, shared"


def partners_line(topology: Topology, id: str, width: int) -> list[Line]:  # noqa: A002
    """Name the NICs nearest to a GPU, or the GPUs that this NIC is the best of."""
    if id in topology.best_nics:
        best = topology.best_nics[id]
        names = ", ".join(f"{label_of(topology, nic)} {smi_word(topology.path(id, nic))}" for nic in best[:4])
        return wrapped(f"Nearest NICs of {label_of(topology, id)}: {names or 'none'}", width)
    gpus = [label_of(topology, gpu) for gpu, nic in topology.best_nic.items() if nic == id]
    if topology.best_nics and not topology.best_nic:
        return wrapped(f"{label_of(topology, id)} is as close to every GPU as the other NICs", width)
    text = f"is the best NIC for {', '.join(gpus)}" if gpus else "is not the best NIC for any GPU"
    return wrapped(f"{label_of(topology, id)} {text}", width)


def best_pairs(
    topology: Topology,
    width: int,
    detours: Collection[tuple[str, str]],
    measured: Mapping[str, Run],
    rows: int,
    unproven: Collection[tuple[str, str]] = (),
) -> list[Line]:
    """Draw each GPU and its best NIC: words, what PCIe carries, a detour, the bandwidth measured.

    `measured`: by GPU. In fewer `rows` than pairs, several are beside each other, without the limits; nothing
    if that is not enough. A pair has the id of its cell in the matrix.
    """
    pairs = [(gpu.id, topology.best_nic[gpu.id]) for gpu in topology.gpus if gpu.id in topology.best_nic]
    if not pairs:
        return []
    names = {pair: f"{label_of(topology, pair[0])} → {label_of(topology, pair[1])}" for pair in pairs}
    cells = max(map(len, names.values()))
    is_list = len(pairs) < rows
    drawn: list[Line] = []
    for gpu, nic in pairs:
        path, id_ = topology.path(gpu, nic), pair_id(gpu, nic)
        limit = "" if isinstance(path.gbps, Unknown) else f"  at most {gbps(path.gbps)}"
        runs: list[Run] = [
            Run(f"{names[gpu, nic]:<{cells}}  ", Tone.PLAIN, id_),
            Run(both_words(path), Tone.WARNING if (gpu, nic) in unproven else path_tone(path), id_),
            Run(limit if is_list else "", Tone.DIM, id_),
        ]
        if (gpu, nic) in unproven:  # worse than a detour
            runs.append(Run("  data may be wrong", Tone.WARNING, id_))
        elif (gpu, nic) in detours:
            runs.append(Run("  via CPU", Tone.WARNING, id_))
        if gpu in measured:
            runs.append(measured[gpu]._replace(text=f"  {measured[gpu].text}", id=id_))
        drawn.append(cut(tuple(runs), width))
    widest = max(map(width_of, drawn))
    across = 1 if is_list else max(1, (width + _GAP) // (widest + _GAP))
    if -(-len(drawn) // across) >= rows:
        return []
    lines: list[Line] = [(Run("Each GPU and its best NIC", Tone.TITLE),)]
    for start in range(0, len(drawn), across):
        row = drawn[start : start + across]
        lines += beside([[line] for line in row], [widest] * len(row), _GAP)
    return lines
