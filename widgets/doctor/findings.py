"""What the doctor found: the list, one finding in its five parts, and the path of the data drawn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len

from probes.base.plan import Plan
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Evidence, Finding, Severity, Status
from probes.snapshot.verdict import State, Verdict
from widgets.base.figures import plural
from widgets.base.lines import Line, Run, Tone, fit, line, width_of, wrapped
from widgets.doctor.plan import draw_consequences, draw_steps

_TONES = {Severity.CRITICAL: Tone.BAD, Severity.WARNING: Tone.WARNING, Severity.NOTE: Tone.PLAIN}
_MARKS = {Severity.CRITICAL: "✗", Severity.WARNING: "▲", Severity.NOTE: "·"}
_MOST_ID_CELLS = 40
_ROOM_FOR_IDS = 96  # cells of a line, from which on the ids stand before the titles
_LABEL_CELLS = 10
_FEWEST_FOLDED = 3
_MOST_DEVICES = 4  # named in the details
_NUMBERS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")


def mark_of(finding: Finding) -> Run:
    """`✗` critical, `▲` warning, `·` note, `?` could not run, `✓` ok."""
    if finding.status is Status.PASSED:
        return Run("✓", Tone.GOOD)
    if finding.status is Status.UNKNOWN:
        return Run("?", Tone.DIM)
    return Run(_MARKS[finding.severity], _TONES[finding.severity])


def marks_of(findings: Sequence[Finding]) -> dict[str, Run]:
    """The mark of each device and module that a critical finding or a warning is about, the worst one."""
    marks: dict[str, Run] = {}
    for severity in (Severity.CRITICAL, Severity.WARNING):
        for one in findings:
            if one.status is Status.FOUND and one.severity is severity:
                for device in one.devices:
                    marks.setdefault(device, mark_of(one))
    return marks


def counted(findings: Iterable[Finding]) -> str:
    """As "1 critical, 2 warnings, 3 notes; 4 checks could not run, 50 are ok or not applicable"."""
    of = list(findings)
    severities = Counter(one.severity for one in of if one.status is Status.FOUND and not one.part_of)
    statuses = Counter(one.status for one in of)
    nouns = {Severity.WARNING: "warning", Severity.NOTE: "note"}
    counts = [
        plural(count, nouns[kind]) if kind in nouns else f"{count} critical"
        for kind in Severity
        if (count := severities[kind])
    ]
    unknown, passed = statuses[Status.UNKNOWN], statuses[Status.PASSED]
    rest = [f"{plural(unknown, 'check')} could not run"] if unknown else []
    quantity = str(passed) if unknown else plural(passed, "check")
    rest.append(f"{quantity} {'is' if passed == 1 else 'are'} ok or not applicable")
    return f"{', '.join(counts) or 'nothing found'}; {', '.join(rest)}"


# The list


@dataclass(frozen=True)
class Entry:
    """A row of the list: a finding, a check that is ok, or all checks that need the same thing to run."""

    id: str
    findings: tuple[Finding, ...]
    depth: int = 0  # 1: it has the same cause as the entry above it that has 0

    @property
    def first(self) -> Finding:
        """The finding, or the first of a group."""
        return self.findings[0]

    @property
    def is_found(self) -> bool:
        """Whether it is a finding."""
        return self.first.status is Status.FOUND


def entries_of(findings: Sequence[Finding]) -> list[Entry]:
    """The rows: findings with those of the same cause below, what could not run by need, what is ok."""
    found = {one.id: one for one in findings if one.status is Status.FOUND}
    entries: list[Entry] = []
    for one in found.values():
        if one.part_of not in found:
            entries.append(Entry(one.id, (one,)))
            entries.extend(Entry(part.id, (part,), 1) for part in _parts_of(one, found))
    listed = {entry.id for entry in entries}
    entries.extend(Entry(one.id, (one,)) for one in found.values() if one.id not in listed)
    needs: dict[str, list[Finding]] = {}
    for one in findings:
        if one.status is Status.UNKNOWN:
            needs.setdefault(one.cause, []).append(one)
    entries.extend(Entry(f"needs:{cause}", tuple(some)) for cause, some in needs.items())
    return [*entries, *(Entry(one.id, (one,)) for one in findings if one.status is Status.PASSED)]


def _parts_of(root: Finding, found: dict[str, Finding]) -> list[Finding]:
    """The findings with this one's cause, and those with theirs."""
    parts, roots = [], {root.id}
    for _ in found:
        more = [one for one in found.values() if one.part_of in roots and one.id not in roots]
        if not more:
            break
        parts.extend(more)
        roots.update(one.id for one in more)
    return parts


def title_of(finding: Finding) -> str:
    """What a finding or a check that is ok says in one line."""
    if finding.status is Status.PASSED:
        return finding.ok or f"ok: {finding.id}"
    return finding.title


def _needs(entry: Entry) -> str:
    """As "35 checks need root"."""
    count, cause = len(entry.findings), entry.first.cause
    if cause.startswith("needs "):
        return f"{plural(count, 'check')} {'needs' if count == 1 else 'need'} {cause.removeprefix('needs ')}"
    return f"{plural(count, 'check')} could not run: {cause}"


def draw_entries(entries: Sequence[Entry], width: int, selected: str = "") -> list[Line]:
    """One line each, the titles below each other."""
    ids = [len(entry.id) + 2 * entry.depth for entry in entries if entry.is_found]
    cells = min(_MOST_ID_CELLS, max(ids, default=0)) if width >= _ROOM_FOR_IDS else 0
    return [fit(_row(entry, cells, width, entry.id == selected), width) for entry in entries]


def _row(entry: Entry, cells: int, width: int, is_selected: bool) -> Line:
    finding, indent = entry.first, "└ " if entry.depth else ""
    tone = Tone.CURSOR if is_selected else Tone.PLAIN if entry.is_found else Tone.DIM
    if finding.status is Status.UNKNOWN:
        return (mark_of(finding), Run(" "), Run(_needs(entry), tone, entry.id))
    if finding.status is Status.PASSED:
        room = width - len(finding.id) - 3
        return (
            *fit((mark_of(finding), Run(" "), Run(title_of(finding), tone, entry.id)), max(room, width // 2)),
            Run(f"  {finding.id}", Tone.DIM),
        )
    title = Run(finding.title, tone, entry.id)
    if cells:
        named = _TONES[finding.severity] if not is_selected else Tone.CURSOR
        name = Run(f"{indent}{finding.id:<{cells - len(indent)}}", named, entry.id)
        head: Line = (mark_of(finding), Run(" "), name, Run("  "))
        return (*head, *_title_and_device(finding, title._replace(tone=Tone.PLAIN), width - width_of(head)))
    head = (mark_of(finding), Run(f" {indent}"))
    return (*head, *_title_and_device(finding, title, width - width_of(head)))


def _title_and_device(finding: Finding, title: Run, width: int) -> Line:
    """The title, cut where it must be, and the first device."""
    more = f" +{len(finding.devices) - 1}" if len(finding.devices) > 1 else ""
    device = f"  {finding.devices[0]}{more}" if finding.devices else ""
    room = width - cell_len(device)
    shown = (title,) if cell_len(title.text) <= room else fit((title,), room)
    return (*shown, Run(device, Tone.DIM))


# One entry


def draw_entry(entry: Entry, width: int) -> list[Line]:
    """All of one entry of the list."""
    if entry.first.status is Status.UNKNOWN:
        return _unknown(entry, width)
    return draw_details(entry.first, width)


def _unknown(entry: Entry, width: int) -> list[Line]:
    lines = [*_title(entry.first, _needs(entry), width), ()]
    for finding in entry.findings:
        lines.extend(wrapped(f"{finding.id}: {finding.title}", width, Tone.DIM, "  "))
        for one in _folded(finding.evidence):
            lines.extend(_evidence(*one, width - 4, indent="    "))
    return lines


def draw_details(finding: Finding, width: int) -> list[Line]:
    """What, impact, cause, evidence, fix, and where to read more."""
    room = width - _LABEL_CELLS
    lines = _title(finding, title_of(finding), width)
    word = finding.severity.value if finding.status is Status.FOUND else "ok or not applicable"
    devices = f" · {', '.join(finding.devices[:_MOST_DEVICES])}" if finding.devices else ""
    if len(finding.devices) > _MOST_DEVICES:
        devices += f" and {len(finding.devices) - _MOST_DEVICES} more"
    lines.extend(wrapped(f"{finding.id} · {word}{devices}", width, Tone.DIM, "  "))
    if finding.part_of:
        lines.extend(wrapped(f"same cause as {finding.part_of}", width, Tone.DIM, "  "))
    lines.append(())
    if finding.status is Status.FOUND and finding.impact:
        lines.extend(_labelled("Impact", wrapped(finding.impact, room)))
    if finding.cause:
        lines.extend(_labelled("Cause", wrapped(finding.cause, room)))
    seen = [of for one in _folded(finding.evidence) for of in _evidence(*one, room)]
    lines.extend(_labelled("Evidence", seen))
    if finding.status is Status.FOUND:
        lines.extend(_labelled("Fix", _fix(finding.fix, room)))
    lines.extend(_labelled("More", wrapped(finding.reference, room, Tone.DIM)))
    return lines


def _title(finding: Finding, title: str, width: int) -> list[Line]:
    first, *rest = wrapped(title, width - 2, Tone.TITLE)
    return [(mark_of(finding), Run(" "), *first), *((Run("  "), *of) for of in rest)]


def _labelled(label: str, lines: Sequence[Line]) -> list[Line]:
    blank = Run(" " * _LABEL_CELLS)
    first = Run(f"{label:<{_LABEL_CELLS}}", Tone.TITLE)
    return [(blank if number else first, *of) for number, of in enumerate(lines)]


def _folded(evidence: Sequence[Evidence]) -> list[tuple[Evidence, int]]:
    """Each piece with how many like it follow: of many equal values from like places one is enough."""
    folded: list[tuple[Evidence, int]] = []
    for _, group in groupby(evidence, lambda one: (one.value, _NUMBERS.sub("#", one.source))):
        some = list(group)
        if len(some) < _FEWEST_FOLDED:
            folded.extend((one, 0) for one in some)
        else:
            folded.append((some[0], len(some) - 1))
    return folded


def _evidence(one: Evidence, more: int, width: int, indent: str = "") -> list[Line]:
    source = f"{one.source}{f' and {more} more like it' if more else ''}"
    short = line(Run(f"{indent}{one.value}"), Run(f"  {source}", Tone.DIM))
    if one.value and width_of(short) <= width:
        return [short]
    return [*wrapped(one.value, width, Tone.PLAIN, indent), *wrapped(source, width, Tone.DIM, f"{indent}  ")]


def _fix(plan: Plan | None, width: int) -> list[Line]:
    if plan is None:
        return wrapped("No command fixes this.", width, Tone.DIM)
    return [*wrapped(plan.title, width), *draw_consequences(plan, width), *draw_steps(plan, width)]


def explain_path(verdict: Verdict, width: int) -> list[Line]:
    """In plain words, with the path of the data drawn: through host memory, and directly."""
    lines: list[Line] = [
        (Run("Without GPUDirect RDMA", Tone.TITLE),),
        (Run("  wire ══ "), Run("NIC", Tone.NIC), Run(" ──▸ host memory ──▸ "), Run("GPU", Tone.GPU)),
        (Run("              copied twice, through the CPU's memory", Tone.DIM),),
        (),
        (Run("With GPUDirect RDMA", Tone.TITLE),),
        (Run("  wire ══ "), Run("NIC", Tone.NIC), Run(" ──────────────────▸ "), Run("GPU", Tone.GPU)),
        (Run("              the NIC reads and writes GPU memory over PCIe", Tone.DIM),),
        (),
    ]
    return [*lines, *_usable_path(verdict, width)]


def _usable_path(verdict: Verdict, width: int) -> list[Line]:
    """Whether GPUs of this node can use the direct path, as the verdict has it."""
    why = f" ({verdict.reason})" if verdict.reason else ""
    if verdict.state is State.UNKNOWN:
        return wrapped(f"Unknown on this node{why}.", width, Tone.WARNING)
    if verdict.path is None or not verdict.gpus_served:
        return wrapped(f"On this node no GPU can use the direct path{why}.", width, Tone.BAD)
    by = {GdrPath.DMABUF: "DMA-BUF", GdrPath.PEERMEM: "nvidia-peermem", GdrPath.EFA: "EFA's own peer memory"}
    some = f"{verdict.gpus_served} of {plural(verdict.gpus, 'GPU')}"
    return wrapped(f"On this node {some} can use the direct path, by {by[verdict.path]}.", width, Tone.GOOD)
