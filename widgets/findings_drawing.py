"""What the doctor found: the list, one finding with its evidence, its fix, and the data's way drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probes.checks.finding import Finding, Severity, Status
from probes.gpudirect import GdrPath
from widgets.lines import Line, Run, Tone, fit, wrapped
from widgets.plan_drawing import draw_plan

_TONES = {Severity.CRITICAL: Tone.BAD, Severity.WARNING: Tone.WARNING, Severity.NOTE: Tone.PLAIN}
_MARKS = {Severity.CRITICAL: "✗", Severity.WARNING: "▲", Severity.NOTE: "·"}
_MOST_ID_CELLS = 40


def mark_of(finding: Finding) -> Run:
    """`✗` critical, `▲` warning, `·` note, `?` could not be made, `✓` passed."""
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
    """As "1 critical, 2 warnings, 3 notes; 4 could not be made, 50 passed or do not apply"."""
    of = list(findings)
    severities = Counter(one.severity for one in of if one.status is Status.FOUND)
    statuses = Counter(one.status for one in of)
    words = {Severity.CRITICAL: ("critical", "critical"), Severity.WARNING: ("warning", "warnings")}
    words[Severity.NOTE] = ("note", "notes")
    told = [f"{count} {words[kind][count > 1]}" for kind in Severity if (count := severities[kind])]
    rest = [f"{statuses[Status.UNKNOWN]} could not be made"] if statuses[Status.UNKNOWN] else []
    rest.append(f"{statuses[Status.PASSED]} passed or do not apply")
    return f"{', '.join(told) or 'nothing found'}; {', '.join(rest)}"


def draw_list(findings: Sequence[Finding], width: int, selected: str = "") -> list[Line]:
    """One line a finding: mark, id, title."""
    lines: list[Line] = []
    cells = min(_MOST_ID_CELLS, max((len(one.id) for one in findings), default=0))
    for finding in findings:
        tone = Tone.DIM if finding.status is not Status.FOUND else _TONES[finding.severity]
        title = finding.title if finding.status is Status.FOUND else _in_short(finding)
        name_tone = Tone.CURSOR if finding.id == selected else tone
        row: Line = (
            mark_of(finding),
            Run(" "),
            Run(f"{finding.id:<{cells}}", name_tone, finding.id),
            Run(f" {title}", Tone.PLAIN if finding.status is Status.FOUND else Tone.DIM),
        )
        lines.append(fit(row, width))
    return lines


def _in_short(finding: Finding) -> str:
    """A check that was not found, in one line: what it needs, or what it saw."""
    if finding.status is Status.UNKNOWN:
        return finding.cause
    return "; ".join(f"{one.source}: {one.value}" for one in finding.evidence[:2]) or "passed"


def draw_details(finding: Finding, width: int) -> list[Line]:
    """All of one finding: what, why, where it was seen, what to do, where to read on."""
    tone = _TONES[finding.severity] if finding.status is Status.FOUND else Tone.DIM
    word = finding.severity.value if finding.status is Status.FOUND else finding.status.value
    lines: list[Line] = [(mark_of(finding), Run(f" {finding.id}", Tone.TITLE), Run(f" · {word}", tone))]
    lines.extend(wrapped(finding.title, width))
    if finding.cause:
        lines.append(())
        lines.extend(wrapped(finding.cause, width, tone))
    if finding.evidence:
        lines.extend([(), (Run("SEEN", Tone.TITLE),)])
        for one in finding.evidence:
            lines.extend(wrapped(one.source, width, Tone.DIM))
            lines.extend(wrapped(one.value, width, Tone.PLAIN, "  "))
    if finding.fix is not None:
        lines.append(())
        lines.extend(draw_plan(finding.fix, width))
    lines.extend([(), (Run("READ ON", Tone.TITLE),)])
    lines.extend(wrapped(finding.reference, width, Tone.DIM))
    return lines


def explain_way(path: GdrPath | None, width: int) -> list[Line]:
    """In plain words, with the data's way drawn: through host memory, and straight."""
    ways = {
        None: "On this node every byte goes the long way: neither DMA-BUF nor nvidia-peermem can be used.",
        GdrPath.DMABUF: "On this node the short way is open, by DMA-BUF.",
        GdrPath.PEERMEM: "On this node the short way is open, through nvidia-peermem.",
        GdrPath.EFA: "On this node the short way is open, through EFA's own peer memory.",
    }
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
    lines.extend(wrapped(ways[path], width, Tone.GOOD if path else Tone.BAD))
    return lines
