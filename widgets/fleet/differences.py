"""In what nodes of one type differ from the rest: a line a fact, with the folded names of the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probes.base.text import capitalized, plural
from probes.fleet.compare import Difference, Fleet, Kind
from probes.fleet.facts import Fact, Place
from probes.fleet.node_set import fold_nodes
from probes.fleet.summary import Role
from probes.snapshot.verdict import State
from widgets.base.lines import Line, Run, Tone, width_of, wrapped

_MOST_NAMED = 4  # devices or settings
_MOST_SET_CELLS = 40  # of the names of the rest; a longer set is a number of nodes


def draw_differences(fleet: Fleet, width: int) -> list[Line]:
    """Draw all differences, by type of node if there are several."""
    if not fleet.differences:
        text = "The nodes do not differ" if len(fleet.roles) == 1 else "Nodes of one type do not differ"
        return wrapped(f"{text} in the facts that gdrtop compares.", width, Tone.DIM)
    states = {summary.name: summary.verdict.state for summary in fleet.summaries}
    lines: list[Line] = []
    for role, count in fleet.roles:
        found = [difference for difference in fleet.differences if difference.role == role]
        if not found:
            continue
        if lines:
            lines.append(())
        name = f": {role_name(role)} ({plural(count, 'node')})" if len(fleet.roles) > 1 else ""
        lines.extend(wrapped(f"Differences{name}", width, Tone.TITLE))
        for difference in found:
            lines.extend(_difference(difference, states, width))
    return lines


def role_name(role: Role) -> str:
    """Return "Supermicro SYS-821GE-TNHR, 8 × NVIDIA GH100 [H100 SXM5 80GB]"."""
    gpus = " + ".join(f"{count} × {model}" for model, count in role.gpus)
    return ", ".join(filter(None, (role.machine, gpus))) or "unknown machine"


def label_of(fact: Fact, slots: Sequence[str]) -> str:
    """Return "NIC firmware of mlx5_0, mlx5_1", "modules nvidia, nvidia_uvm", "kernel"."""
    if not slots:
        return fact.label
    named = ", ".join(slots[:_MOST_NAMED])
    if len(slots) > _MOST_NAMED:
        named += f" and {len(slots) - _MOST_NAMED} more"
    if fact.id == "gpu":  # "GPU0, GPU1"
        return named
    if fact.place is Place.NAME or fact.id == "nic":
        return f"{fact.label}{'s' if len(slots) > 1 else ''} {named}"
    return f"{fact.label} of {named}"


def _difference(difference: Difference, states: Mapping[str, State], width: int) -> list[Line]:
    kinds = [*([difference.rest] if difference.rest else []), *difference.others]
    label = capitalized(label_of(difference.fact, difference.slots))
    if difference.rest is None and len(kinds) > 2:
        label = f"{label}, {len(kinds)} kinds"
    shown = [
        Run(
            f"{kind.value}: {_nodes(kind, kind is difference.rest)}{_note(kind, difference.rest, states)}",
            Tone.DIM if kind is difference.rest else Tone.TITLE,
        )
        for kind in kinds
    ]
    runs = [Run(f"  {label}  "), *(run for text in shown for run in (Run(" · "), text))]
    whole = (runs[0], *runs[2:])
    if width_of(whole) <= width:
        return [whole]
    lines = wrapped(label, width, Tone.PLAIN, "  ")
    return [*lines, *(drawn for text, tone, _ in shown for drawn in wrapped(text, width, tone, "    ", "  "))]


def _note(kind: Kind, rest: Kind | None, states: Mapping[str, State]) -> str:
    """Return the verdict of odd nodes whose verdict is another, and of a rest that is not green itself."""
    if rest is None:
        return ""
    usual = Counter(states[node] for node in rest.nodes).most_common(1)[0][0]
    if kind is rest:
        return "" if usual.is_green else f" (most are {usual.value})"
    counted = Counter(states[node] for node in kind.nodes)
    return "" if set(counted) == {usual} else f" ({_states(counted)})"


def _nodes(kind: Kind, is_rest: bool) -> str:
    text = fold_nodes(kind.nodes)
    return plural(len(kind.nodes), "node") if is_rest and len(text) > _MOST_SET_CELLS else text


def _states(counted: Mapping[State, int]) -> str:
    if len(counted) == 1:
        return next(iter(counted)).value
    return ", ".join(f"{count} {state.value}" for state, count in counted.items())


def draw_uncompared(fleet: Fleet, width: int) -> list[Line]:
    """Draw which facts could not be compared on which nodes, with the reason."""
    lines: list[Line] = [(Run("Cannot be compared", Tone.TITLE),)]
    for uncompared in fleet.uncompared:
        nodes = fold_nodes(uncompared.nodes)
        nodes = nodes if len(nodes) <= _MOST_SET_CELLS else plural(len(uncompared.nodes), "node")
        text = f"{labels_of(uncompared.facts)}: {uncompared.reason} on {nodes}"
        lines.extend(wrapped(text, width, Tone.DIM, "  ", "  "))
    return lines


def labels_of(facts: Sequence[Fact]) -> str:
    """Return "Kernel, NIC PCIe link"."""
    labels = [f"{fact.place.value} {fact.label}" if _is_ambiguous(fact) else fact.label for fact in facts]
    return capitalized(", ".join(dict.fromkeys(labels)))


def _is_ambiguous(fact: Fact) -> bool:
    """Return whether a fact of GPUs and one of NICs have this label."""
    return fact.id.startswith("pcie-")
