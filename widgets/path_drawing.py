"""A path hop by hop, with its weakest link."""

from __future__ import annotations

from probes.topology import Endpoint, Path, Topology
from probes.unknown import Unknown
from widgets.figures import gbps
from widgets.lines import Line, Run, Tone, wrapped
from widgets.matrix_drawing import both_words, path_tone, smi_word


def label_of(topology: Topology, id: str) -> str:  # noqa: A002 - an Endpoint's own word
    """The short name of an endpoint."""
    ends: tuple[Endpoint, ...] = (*topology.gpus, *topology.nics)
    return next((end.label for end in ends if end.id == id), id)


def draw(topology: Topology, path: Path, width: int) -> list[Line]:
    """Both words, the weakest link, and one line a hop with the link that leads to it."""
    a, b = label_of(topology, path.a), label_of(topology, path.b)
    tone = path_tone(path)
    lines: list[Line] = [(Run(f"{a} → {b}  "), Run(both_words(path), tone))]
    for word in (path.smi, path.nccl):
        if isinstance(word, Unknown):
            lines.extend(wrapped(str(word), width, Tone.WARNING, "  "))
            break
    if not isinstance(path.gbps, Unknown):
        lines.append((Run("PCIe at most "), Run(gbps(path.gbps)), Run(" each way", Tone.DIM)))
    differ = len({hop.gbps for hop in path.hops if not isinstance(hop.gbps, Unknown)}) > 1
    between_sockets = any(hop.link == "SMP" for hop in path.hops)  # of whose link no figure is known
    for number, hop in enumerate(path.hops):
        if hop.link:
            weak = differ and number == path.weakest
            mark = (" ◄ weakest PCIe link" if between_sockets else " ◄ weakest") if weak else ""
            carries = "" if isinstance(hop.gbps, Unknown) else f" {gbps(hop.gbps)}"
            text = f"  │ {hop.link if hop.link != 'PCIe' else ''} {hop.text}{carries}".replace("│  ", "│ ")
            lines.append((Run(text, Tone.WARNING if weak else Tone.DIM), Run(mark, Tone.WARNING)))
        shown = hop.id.removeprefix("0000:")
        lines.append((Run(shown, Tone.LIT), Run(f" {hop.kind}", Tone.DIM)))
    return lines


def partners_line(topology: Topology, id: str, width: int) -> list[Line]:  # noqa: A002
    """Which NICs are a GPU's best, or which GPUs take this NIC first."""
    if id in topology.best_nics:
        best = topology.best_nics[id]
        names = ", ".join(f"{label_of(topology, nic)} {smi_word(topology.path(id, nic))}" for nic in best[:4])
        return wrapped(f"Nearest NICs of {label_of(topology, id)}: {names or 'none'}", width)
    takers = [label_of(topology, gpu) for gpu, nics in topology.best_nics.items() if nics[:1] == (id,)]
    told = (
        f"{label_of(topology, id)} is the best NIC of {', '.join(takers)}"
        if takers
        else f"{label_of(topology, id)} is no GPU's first choice"
    )
    return wrapped(told, width)
