"""In what nodes of one type or of one rack differ from the rest: a line a fact, with the folded names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from probes.base.evidence import Severity
from probes.base.text import capitalized, join_limited, plural, printable
from probes.base.unknown import Unknown
from probes.fleet.compare import Change, Changes, Difference, Fleet, Kind
from probes.fleet.node_set import fold_nodes
from probes.fleet.racks import Rack, racks_of
from probes.fleet.summary import Role
from probes.fleet.traits import Fact, Place
from probes.snapshot.verdict import State
from widgets.base.figures import ago, local_time
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import Line, Run, Tone, behind, cut, paragraphs, section, width_of, wrapped
from widgets.node import verdict as verdict_drawing

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
    named = join_limited(slots, _MOST_NAMED)
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
    if set(counted) == {usual}:
        return ""
    words = [
        f"{count} {state.value}" if len(counted) > 1 else state.value for state, count in counted.items()
    ]
    return f" ({', '.join(words)})"


def _nodes(kind: Kind, is_rest: bool) -> str:
    text = fold_nodes(kind.nodes)
    return plural(len(kind.nodes), "node") if is_rest and len(text) > _MOST_SET_CELLS else text


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
    # GPUs and NICs have PCIe facts of the same label.
    kinds = (f"{fact.place.value} " if fact.id.startswith("pcie-") else "" for fact in facts)
    labels = [f"{kind}{fact.label}" for kind, fact in zip(kinds, facts, strict=True)]
    return capitalized(", ".join(dict.fromkeys(labels)))


def draw_racks(fleet: Fleet, width: int) -> list[Line]:
    """Draw a line a rack, and in what its nodes differ; nothing where NVLink ends at the nodes."""
    lines: list[Line] = []
    for rack in racks_of(fleet):
        lines += wrapped(_rack_line(rack), width, indent="  ", hanging="  ")
        for difference in rack.differences:
            slots = () if difference.fact.place is Place.NAME else difference.slots
            odd = fold_nodes([node for kind in difference.others for node in kind.nodes])
            where = f" on {odd}" if difference.rest else ""
            meaning = rack.meaning_of(difference)
            head = (Run("    "), SEVERITY_MARKS[Severity.WARNING if meaning else Severity.NOTE], Run(" "))
            text = f"{label_of(difference.fact, slots)} differs{where}{meaning and f': {meaning}'}"
            lines += behind(head, wrapped(text, width - width_of(head)))
    return section("Racks", lines)


def _rack_line(rack: Rack) -> str:
    """Return "NVLink domain 51a01a7e: 17 of 18 nodes, 68 GPUs, clique 1, IMEX active: gpu[01-17]"."""
    seen = len(rack.nodes)
    of_all = "" if rack.expected_nodes in (None, seen) else f" of {rack.expected_nodes}"
    count = f"{seen}{of_all} nodes" if of_all else plural(seen, "node")
    parts = [count, plural(rack.gpus, "GPU")]
    for label, counts in (("clique", rack.cliques), ("IMEX", rack.imex)):
        shown = [f"{value} ({count})" if len(counts) > 1 else value for value, count in counts.items()]
        parts += [f"{label} {' / '.join(shown)}"] if shown else []
    return f"NVLink domain {rack.domain[:8] or 'unknown'}: {', '.join(parts)}: {fold_nodes(rack.nodes)}"


_MOST_CHANGES = 3
_MOST_VALUE = 40  # characters in the line
_SHORTER = tuple((1, characters) for characters in (30, 20, 12))  # numbers of changes, and of characters


def draw_line(since: Changes | Unknown, width: int) -> Line:
    """Draw "Since it last worked, 2 d ago: kernel 6.8.0-45 → 6.8.0-48 and 2 more" in one line.

    It names as many changes as there is room for, at most three.
    """
    if isinstance(since, Unknown) or not since.changes:
        return cut((Run(text_of(since), _tone(since)),), width)
    most = min(_MOST_CHANGES, len(since.changes))
    for count, characters in (*((count, _MOST_VALUE) for count in range(most, 0, -1)), *_SHORTER):
        drawn = (Run(text_of(since, count, characters), _tone(since)),)
        if width_of(drawn) <= width:
            break
    return cut(drawn, width)


def draw_wrapped(since: Changes | Unknown, width: int, indent: str) -> list[Line]:
    """Draw the same in as many lines as it needs, with at most three changes."""
    return wrapped(text_of(since), width, _tone(since), indent)


def text_of(since: Changes | Unknown, count: int = _MOST_CHANGES, characters: int = _MOST_VALUE) -> str:
    """Return the line with so many changes, each value with so many characters; or why there is none."""
    if isinstance(since, Unknown):
        return since.detail
    named = join_limited((_short_fact(change, characters) for change in since.changes), count)
    return f"Since it last worked, {_age(since)}: {named or 'nothing that gdrtop compares has changed'}"


def _tone(since: Changes | Unknown) -> Tone:
    return Tone.WARNING if isinstance(since, Unknown) else Tone.PLAIN


def draw_changes(since: Changes, width: int) -> list[Line]:
    """Draw the whole answer: how much has changed, the verdicts then and now, and each change."""
    count = len(since.changes)
    amount = plural(count, "change") if count else "No change in the facts that gdrtop compares"
    lines = wrapped(f"{amount} since {since.now.name} last worked, {_age(since)}", width, Tone.TITLE)
    for word, summary in (("then", since.before), ("now", since.now)):
        begin = f"  {word:<4}  {local_time(summary.taken_at, '%Y-%m-%d %H:%M:%S %Z')}  "
        forms = verdict_drawing.forms(summary.verdict)
        fitting = (form for form in forms if width_of(form) <= width - len(begin))
        lines.append((Run(begin, Tone.DIM), *next(fitting, forms[-1])))
    lines.extend(wrapped(since.now.verdict.reason, width, Tone.PLAIN, "        "))
    if since.changes:
        lines.append(())
    for change in since.changes:
        label = capitalized(label_of(change.fact, change.slots))
        whole = (Run(f"  {label}  "), Run(change.before), Run(" → ", Tone.DIM), Run(change.now, Tone.TITLE))
        if width_of(whole) <= width:
            lines.append(whole)
            continue
        lines.extend(wrapped(label, width, Tone.PLAIN, "  "))
        lines.extend(wrapped(f"{change.before} → {change.now}", width, Tone.TITLE, "    "))
    unread = (f"{labels_of(facts)}: {reason}" for reason, facts in since.unread)
    return lines + section("Cannot be compared", paragraphs(unread, width, Tone.DIM, "  ", "  "))


def _age(since: Changes) -> str:
    return ago(since.now.taken_at - since.before.taken_at)


def _short_fact(change: Change, characters: int) -> str:
    """Return "NIC firmware of mlx5_0 and 3 more 28.39 → 28.40", each value with so many characters."""
    label = label_of(change.fact, (join_limited(change.slots, 1),) if change.slots else ())
    return f"{label} {printable(change.before, characters)} → {printable(change.now, characters)}"
