"""Draw findings: the list, one finding in its five parts, and the data path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from rich.cells import cell_len

from probes.base.evidence import Evidence, Severity
from probes.base.frozen import frozen
from probes.base.grouping import grouped
from probes.base.text import join_limited, plural
from probes.checks.judgment import Judgment
from probes.checks.statements import NO_IDS, device_statements, marked_ids
from probes.facts.gpudirect import GdrPath
from probes.queries.finding import Finding, Status, named_first
from probes.queries.pcie_paths import detours
from probes.queries.unproven_paths import unproven_pairs
from probes.queries.usable_here import usable_here
from probes.snapshot.condition import CONGESTED, ERRORS_RISING, FLAPPING, PAUSED, SLOW_NIC, THROTTLED
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import roles_of
from probes.snapshot.verdict import State, Verdict
from widgets.base.figures import local_time
from widgets.base.health import SEVERITY_MARKS
from widgets.base.lines import Line, Run, Tone, behind, fit, line, paragraphs, width_of, wrapped
from widgets.doctor.plan import draw_consequences, draw_steps, gain_text
from widgets.node import verdict as verdict_drawing
from widgets.node.highlights import Highlights

_STATUS_MARKS = {
    Status.PASSED: Run("✓", Tone.GOOD),
    Status.UNKNOWN: Run("?", Tone.DIM),
    Status.SILENCED: Run("–", Tone.DIM),
}
_MOST_ID_CELLS = 40
_ROOM_FOR_IDS = 96  # cells of a line that has ids before the titles
_LABEL_CELLS = 10
_FEWEST_FOLDED = 3
_MOST_DEVICES = 4  # named in the details
# The drawings of a node show these words beside a device; of at most nine characters, as its row is short.
_WORDS = {
    FLAPPING: "flapping",
    "link-flaps": "flapping",
    "link-flaps-carrier": "flapping",
    "pcie-link-degraded-width": "PCIe slow",
    "pcie-link-degraded-speed": "PCIe slow",
    "pcie-link-degraded-gpu-speed": "PCIe slow",
    SLOW_NIC: "slow",
    THROTTLED: "throttled",
    PAUSED: "paused",
    CONGESTED: "congested",
    ERRORS_RISING: "errors",
    "symbol-errors-rising": "errors",
    "symbols-lost": "errors",
}
_NUMBERS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]|\d+")
_MOST_DEVICE_CELLS = 15
_PLURALS = {"NVSwitch": "NVSwitches"}
NO_LABELS: Mapping[str, str] = MappingProxyType({})


def mark_of(finding: Finding) -> Run:
    """Return `✗` critical, `▲` warning, `·` note, `–` silenced, `?` could not run, `✓` ok."""
    return _STATUS_MARKS.get(finding.status, SEVERITY_MARKS[finding.severity])


def marks_of(findings: Sequence[Finding], ids: Mapping[str, Collection[str]] = NO_IDS) -> dict[str, Run]:
    """Return the worst mark of each device and module that is at fault; `ids` as in device_statements."""
    stated = device_statements(findings, ids)
    return {device: SEVERITY_MARKS[row.severity] for device, row in stated.items()}


def words_of(findings: Sequence[Finding], ids: Mapping[str, Collection[str]] = NO_IDS) -> dict[str, str]:
    """Return in a word what is wrong with each device that is slow or fails now: "slow", "flapping"."""
    words: dict[str, str] = {}
    # A note is about the past: its count does not rise.
    now = (finding for finding in findings if finding.severity is not Severity.NOTE)
    found = (finding for finding in now if finding.status is Status.FOUND and finding.id in _WORDS)
    for finding in sorted(found, key=lambda finding: bool(finding.part_of)):  # the cause first
        for device in marked_ids(finding, ids):
            words.setdefault(device, _WORDS[finding.id])
    return words


def counted(findings: Iterable[Finding]) -> str:
    """Return "1 critical, 2 warnings, 3 notes; 50 checks passed, 4 could not run"."""
    counted_findings = list(findings)
    severities = Counter(
        finding.severity
        for finding in counted_findings
        if finding.status is Status.FOUND and not finding.part_of
    )
    statuses = Counter(finding.status for finding in counted_findings)
    nouns = {Severity.WARNING: "warning", Severity.NOTE: "note"}
    counts = [
        plural(count, nouns[kind]) if kind in nouns else f"{count} critical"
        for kind in Severity
        if (count := severities[kind])
    ]
    silenced = sum(f.status is Status.SILENCED and not f.part_of for f in counted_findings)
    counts += [f"{silenced} silenced"] if silenced else []
    unknown, passed = statuses[Status.UNKNOWN], statuses[Status.PASSED]
    rest = [f"{plural(passed, 'check')} passed", *([f"{unknown} could not run"] if unknown else [])]
    return f"{', '.join(counts) or 'no findings'}; {', '.join(rest)}"


# The list


@frozen
class Entry:
    """A row of the list: a finding, a check that is ok, or all checks that need the same thing to run."""

    id: str
    findings: tuple[Finding, ...]
    depth: int = 0  # 1: it has the same cause as the nearest entry above with 0

    @property
    def first(self) -> Finding:
        """Return the finding, or the first of a group."""
        return self.findings[0]

    @property
    def is_found(self) -> bool:
        """Return whether it is a finding."""
        return self.first.status is Status.FOUND


def entries_of(findings: Sequence[Finding]) -> list[Entry]:
    """Return findings with those of the same cause below, silenced ones, checks without a finding."""
    found = {finding.id: finding for finding in findings if finding.status is Status.FOUND}
    entries: list[Entry] = []
    for finding in found.values():
        if finding.part_of not in found:
            entries.append(Entry(finding.id, (finding,)))
            entries.extend(Entry(part.id, (part,), 1) for part in _parts_of(finding, found))
    listed = {entry.id for entry in entries}
    entries.extend(Entry(name, (finding,)) for name, finding in found.items() if name not in listed)
    silenced = (finding for finding in findings if finding.status is Status.SILENCED)
    entries.extend(Entry(finding.id, (finding,)) for finding in silenced)
    needs = grouped((finding.cause, finding) for finding in findings if finding.status is Status.UNKNOWN)
    entries.extend(Entry(f"needs:{cause}", tuple(group)) for cause, group in needs.items())
    passed = (finding for finding in findings if finding.status is Status.PASSED)
    return [*entries, *(Entry(finding.id, (finding,)) for finding in passed)]


def _parts_of(root: Finding, found: dict[str, Finding]) -> list[Finding]:
    """Return the findings with the cause of this one, directly or by another finding."""
    parts, roots = [], {root.id}
    for _ in found:
        more = [part for part in found.values() if part.part_of in roots and part.id not in roots]
        if not more:
            break
        parts.extend(more)
        roots.update(part.id for part in more)
    return parts


def title_of(finding: Finding) -> str:
    """Return the title of a finding, or the positive title of a check that is ok."""
    if finding.status is Status.PASSED:
        return finding.ok or f"ok: {finding.id}"
    return finding.title


def needs_text(entry: Entry) -> str:
    """Return "35 checks need root"."""
    count, cause = len(entry.findings), entry.first.cause
    if cause.startswith("needs "):
        return f"{plural(count, 'check')} {'needs' if count == 1 else 'need'} {cause.removeprefix('needs ')}"
    return f"{plural(count, 'check')} could not run ({cause})"


def draw_entries(
    entries: Sequence[Entry], width: int, labels: Mapping[str, str] = NO_LABELS, selected: str = ""
) -> list[Line]:
    """Draw a line per entry, with aligned titles; `labels`: the names of GPUs and NICs by BDF."""
    ids = [len(entry.id) + 2 * entry.depth for entry in entries if entry.is_found]
    cells = min(_MOST_ID_CELLS, max(ids, default=0)) if width >= _ROOM_FOR_IDS else 0
    return [fit(_row(entry, cells, width, labels, entry.id == selected), width) for entry in entries]


def _row(entry: Entry, cells: int, width: int, labels: Mapping[str, str], is_selected: bool) -> Line:
    finding, indent = entry.first, "└ " if entry.depth else ""
    tone = Tone.CURSOR if is_selected else Tone.PLAIN if entry.is_found else Tone.DIM
    if finding.status is Status.UNKNOWN:
        return (mark_of(finding), Run(" "), Run(needs_text(entry), tone, entry.id))
    if finding.status is Status.SILENCED:
        row = (mark_of(finding), Run(" "), Run(finding.title, tone, entry.id))
        return (*row, Run(f"  {silence_text(finding)}", Tone.DIM))
    if finding.status is Status.PASSED:
        room = width - len(finding.id) - 3
        return (
            *fit((mark_of(finding), Run(" "), Run(title_of(finding), tone, entry.id)), max(room, width // 2)),
            Run(f"  {finding.id}", Tone.DIM),
        )
    title = Run(finding.title, tone, entry.id)
    if cells:
        id_tone = SEVERITY_MARKS[finding.severity].tone if not is_selected else Tone.CURSOR
        name = Run(f"{indent}{finding.id:<{cells - len(indent)}}", id_tone, entry.id)
        head: Line = (mark_of(finding), Run(" "), name, Run("  "))
        title = title._replace(tone=Tone.PLAIN)
    else:
        head = (mark_of(finding), Run(f" {indent}"))
    named = device_of(finding, labels)
    device = f"  {named}" if named else ""
    room = width - width_of(head) - cell_len(device)
    shown = (title,) if cell_len(title.text) <= room else fit((title,), room)
    return (*head, *shown, Run(device, Tone.DIM))


def silence_text(finding: Finding) -> str:
    """Return "silenced until 2026-12-31: BIOS update planned", or that the silence has expired."""
    silence = finding.silence
    if silence is None:
        return ""
    is_expired = finding.status is Status.FOUND
    return f"{'silence expired after' if is_expired else 'silenced until'} {silence.until}: {silence.reason}"


# One entry


def draw_entry(entry: Entry, width: int, labels: Mapping[str, str] = NO_LABELS) -> list[Line]:
    """Draw an entry of the list in full; `labels`: the names of GPUs and NICs by BDF."""
    if entry.first.status is Status.UNKNOWN:
        return _unknown(entry, width)
    return draw_details(entry.first, width, labels)


def _unknown(entry: Entry, width: int) -> list[Line]:
    lines = [*_title(entry.first, needs_text(entry), width), ()]
    for finding in entry.findings:
        lines.extend(wrapped(f"{finding.id}: {finding.title}", width, Tone.DIM, "  "))
        for evidence, more in folded_evidence(finding.evidence):
            lines.extend(draw_evidence(evidence, more, width - 4, indent="    "))
    return lines


def draw_details(finding: Finding, width: int, labels: Mapping[str, str] = NO_LABELS) -> list[Line]:
    """Draw title, impact, cause, evidence, fix and reference."""
    room = width - _LABEL_CELLS
    lines = _title(finding, title_of(finding), width)
    word = finding.severity.value if finding.is_present else "ok or not applicable"
    devices = f" · {devices_text(finding, labels)}" if finding.devices else ""
    lines.extend(wrapped(f"{finding.id} · {word}{devices}", width, Tone.DIM, "  "))
    same = f"same cause as {finding.part_of}" if finding.part_of else ""
    lines += paragraphs((affected_text(finding), same), width, Tone.DIM, "  ")
    if finding.silence is not None:
        text = f"{silence_text(finding)} ({finding.silence.origin})"
        lines.extend(wrapped(text, width, Tone.WARNING if finding.status is Status.FOUND else Tone.DIM, "  "))
    lines.append(())
    if finding.is_present and finding.impact:
        lines.extend(_labelled("Impact", wrapped(finding.impact, room)))
    if finding.cause:
        lines.extend(_labelled("Cause", wrapped(finding.cause, room)))
    folded = folded_evidence(finding.evidence)
    evidence = [line for piece, more in folded for line in draw_evidence(piece, more, room)]
    lines.extend(_labelled("Evidence", evidence))
    if finding.is_present:
        lines.extend(_labelled("Fix", draw_fix(finding, room)))
    more = filter(None, (finding.page, finding.reference))
    lines.extend(_labelled("More", [each for text in more for each in wrapped(text, room, Tone.DIM)]))
    return lines


def affected_text(finding: Finding) -> str:
    """Return "affects rank 5 of train.py (alice) · leaves 1 GPU without GPUDirect RDMA · since 14:03 EST"."""
    ranks = f"{', '.join(finding.ranks[:_MOST_DEVICES])}{' …' if len(finding.ranks) > _MOST_DEVICES else ''}"
    jobs = ", ".join(finding.jobs)
    whom = f"{ranks} of {jobs}" if ranks and jobs else ranks or jobs
    parts = [f"affects {whom}"] if whom else []
    if finding.takes:
        parts.append(f"leaves {plural(len(finding.takes), 'GPU')} without GPUDirect RDMA")
    if finding.since is not None:
        parts.append(f"since {local_time(finding.since)}")
    return " · ".join(parts)


def devices_text(finding: Finding, labels: Mapping[str, str] = NO_LABELS) -> str:
    """Return "GPU0 (0000:0f:00.0), mlx5_0, mlx5_1, mlx5_2 and 4 more"."""
    labelled = ((device, labels.get(device, device)) for device in named_first(finding, labels))
    names = (device if label == device else f"{label} ({device})" for device, label in labelled)
    return join_limited(names, _MOST_DEVICES)


def _title(finding: Finding, title: str, width: int) -> list[Line]:
    return behind((mark_of(finding), Run(" ")), wrapped(title, width - 2, Tone.TITLE))


def _labelled(label: str, lines: Sequence[Line]) -> list[Line]:
    return behind((Run(f"{label:<{_LABEL_CELLS}}", Tone.TITLE),), lines)


def folded_evidence(evidence: Sequence[Evidence]) -> list[tuple[Evidence, int]]:
    """Return each piece and how many like it were left out: three or more equal values from like sources."""
    folded: list[tuple[Evidence, int]] = []
    for _, members in groupby(evidence, lambda piece: (piece.value, _NUMBERS.sub("#", piece.source))):
        group = list(members)
        if len(group) < _FEWEST_FOLDED:
            folded.extend((piece, 0) for piece in group)
        else:
            folded.append((group[0], len(group) - 1))
    return folded


def draw_evidence(evidence: Evidence, more: int, width: int, indent: str = "") -> list[Line]:
    """Draw a piece of evidence with its source; `more`: how many like it were left out."""
    source = f"{evidence.source}{f' and {more} more like it' if more else ''}"
    short = line(Run(f"{indent}{evidence.value}"), Run(f"  {source}", Tone.DIM))
    if evidence.value and width_of(short) <= width:
        return [short]
    value = wrapped(evidence.value, width, Tone.PLAIN, indent)
    return [*value, *wrapped(source, width, Tone.DIM, f"{indent}  ")]


def draw_fix(finding: Finding, width: int) -> list[Line]:
    """Draw the fix of a finding with its steps, or why there is none."""
    plan, gain = finding.fix, _own_gain(finding)
    shown = wrapped(gain, width) if gain else []
    if plan is None:
        return [*wrapped(why_no_fix(finding), width, Tone.DIM), *shown]
    return [*wrapped(plan.title, width), *shown, *draw_consequences(plan, width), *draw_steps(plan, width)]


def fix_text(finding: Finding) -> str:
    """Return the title of the fix, or why there is none, and what the fix should bring."""
    fix = why_no_fix(finding) if finding.fix is None else finding.fix.title
    gain = _own_gain(finding)
    return f"{fix}{'' if fix.endswith('.') else '.'} {gain}" if gain else fix


def _own_gain(finding: Finding) -> str:
    """Return what the fix should bring; "" for a part of another finding, whose fix brings it."""
    return "" if finding.part_of else gain_text(finding.gains)


def why_no_fix(finding: Finding) -> str:
    """Return what to do about a finding without a fix of its own: fix its cause."""
    same_cause = f"See {finding.part_of}, which has the same cause."
    return same_cause if finding.part_of else "No command fixes this."


def highlights_of(examination: Examination, found: Sequence[Finding]) -> Highlights:
    """Return what stands out in the topology of a node: roles, marks, and what this session may use."""
    return Highlights(
        marks=marks_of(found, examination.topology.ids_by_bdf),
        detours=detours(examination),
        roles=roles_of(examination.node, examination.topology),
        usable=usable_here(examination),
        unproven=unproven_pairs(examination),
    )


def explain_path(verdict: Verdict, width: int) -> list[Line]:
    """Explain GPUDirect RDMA, with both data paths drawn."""
    lines: list[Line] = [
        (Run("Without GPUDirect RDMA", Tone.TITLE),),
        (Run("  wire ══ "), Run("NIC", Tone.NIC), Run(" ──▸ host memory ──▸ "), Run("GPU", Tone.GPU)),
        (Run("              two copies through host memory", Tone.DIM),),
        (),
        (Run("With GPUDirect RDMA", Tone.TITLE),),
        (Run("  wire ══ "), Run("NIC", Tone.NIC), Run(" ──────────────────▸ "), Run("GPU", Tone.GPU)),
        (Run("              the NIC reads and writes GPU memory over PCIe", Tone.DIM),),
        (),
    ]
    return [*lines, *_usable_path(verdict, width)]


def _usable_path(verdict: Verdict, width: int) -> list[Line]:
    """Say whether GPUs of this node can use the direct path, by the verdict."""
    why = f" ({verdict.reason})" if verdict.reason else ""
    if verdict.state is State.UNKNOWN:
        return wrapped(f"Unknown on this node{why}.", width, Tone.WARNING)
    if verdict.path is None or not verdict.gpus_served:
        return wrapped(f"No GPU on this node can use the direct path{why}.", width, Tone.BAD)
    via = {
        GdrPath.DMABUF: "DMA-BUF",
        GdrPath.PEERMEM: "nvidia-peermem",
        GdrPath.EFA: "EFA's own peer memory",
        GdrPath.CXI: "libfabric",
    }
    gpus = f"{verdict.gpus_served} of {plural(verdict.gpus, 'GPU')}"
    return wrapped(f"{gpus} on this node can use the direct path, via {via[verdict.path]}.", width, Tone.GOOD)


def draw_rows(
    judgment: Judgment,
    labels: Mapping[str, str],
    width: int,
    selected: str = "",
    most: int = 0,
    is_focused: bool = False,
) -> list[Line]:
    """Draw a row per finding; `labels` maps ids or BDFs of endpoints to names.

    `most`: lines in which, below the rows, there is room for impact and fix, of the selected finding first,
    then of the others in their order. `is_focused`: the selected row is marked.
    """
    rows = judgment.listed
    if not rows and not judgment.verdict.state.has_counts:  # it could not be judged: nothing is green
        mark = verdict_drawing.draw(judgment.verdict)[0]
        text = wrapped(f"{counted(judgment.findings)} (Doctor)", width - 2)
        marks = (mark._replace(text=mark.text[:1]), *[Run(" ")] * len(text))
        return [(first, Run(" "), *line) for first, line in zip(marks, text, strict=False)]
    if not rows:
        notes = judgment.verdict.notes
        more = f", {notes} note{'s' if notes > 1 else ''} (Doctor)" if notes else ""
        return [(Run("✓", Tone.GOOD), Run(" no critical findings or warnings"), Run(more, Tone.DIM))]
    named = ((finding, device_of(finding, labels)) for finding in rows)
    devices = {finding.id: "" if device in finding.title else device for finding, device in named}
    cells = min(_MOST_DEVICE_CELLS, max(map(len, devices.values())))
    below = _below(rows, width, most - len(rows), selected)
    lines: list[Line] = []
    for finding in rows:
        device: Line = fit((Run(devices[finding.id]),), cells) if cells else ()
        tone = Tone.CURSOR if is_focused and finding.id == selected else Tone.PLAIN
        gap = Run("  " if cells else "")
        row: Line = (mark_of(finding), Run(" "), *device, gap, Run(finding.title, tone, finding.id))
        lines += [fit(row, width), *below.get(finding.id, ())]
    return lines


def _below(rows: Sequence[Finding], width: int, left: int, selected: str) -> dict[str, list[Line]]:
    """Return impact and fix of each finding, as far as so many lines hold them, of the selected one first."""
    below: dict[str, list[Line]] = {}
    for finding in sorted(rows, key=lambda finding: finding.id != selected):
        room = width - 2 - _LABEL_CELLS
        fix = _labelled("Fix", wrapped(fix_text(finding), room))
        impact = _labelled("Impact", wrapped(finding.impact, room)) if finding.impact else []
        whole = impact if len(impact) + len(fix) <= left else []
        text: list[Line] = [(Run("  "), *line) for line in (*whole, *fix)]
        if len(text) > left > 0:
            text = [*text[: left - 1], fit((*text[left - 1], Run(" …")), width)]
        if left > 0:
            left -= len(text)
            below[finding.id] = [tuple(run._replace(id=finding.id) for run in line) for line in text]
    return below


def device_of(finding: Finding, labels: Mapping[str, str]) -> str:
    """Return what a finding is about: "mlx5_3", "rank 5", "8 GPUs, 8 NICs", "17:01.0 +15".

    Of a finding that names no device, the program of its job; "" if it names none either.
    """
    if finding.ranks:
        return finding.ranks[0] if len(finding.ranks) == 1 else f"{len(finding.ranks)} ranks"
    ends = dict.fromkeys(labels[device] for device in finding.devices if device in labels)
    if len(ends) == 1:
        return next(iter(ends))
    if ends and len(names := ", ".join(ends)) <= _MOST_DEVICE_CELLS:
        return names
    if ends:
        kinds = Counter(
            next((kind for kind in ("GPU", "NVSwitch") if label.startswith(kind)), "NIC") for label in ends
        )
        return ", ".join(plural(count, kind, _PLURALS.get(kind, "")) for kind, count in kinds.items())
    others = [device.removeprefix("0000:") for device in finding.devices]
    if not others:
        return finding.jobs[0].partition(" (")[0] if finding.jobs else ""
    return others[0] if len(others) == 1 else f"{others[0]} +{len(others) - 1}"
