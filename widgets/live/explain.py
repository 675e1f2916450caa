"""What `gdrtop explain` shows: a process, its devices, limits and libraries, and what to change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from probes.base.evidence import Severity
from probes.base.grouping import grouped
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown, map_known
from probes.checks.statements import use_health
from probes.live.explain import ProcessExplanation, ProcessGpu
from probes.queries.finding import Finding
from probes.setup.env.own_container import ContainerRow
from widgets.base.health import TONES
from widgets.base.lines import Line, Run, Tone, behind, labeled, line, paragraphs, section, wrapped
from widgets.live import engines

_MOST_STEPS = 3
_CONTAINER_CELLS = 15
_NUMBERS = re.compile(r"\d+")
_MARKS = {
    Severity.CRITICAL: Run("✗ ", Tone.BAD),
    Severity.WARNING: Run("▲ ", Tone.WARNING),
    Severity.NOTE: Run("• ", Tone.DIM),
}


def draw_summary(explained: Sequence[ProcessExplanation], width: int) -> list[Line]:
    """Return on which path how many processes are."""
    paths = Counter(each.path_text for each in explained).most_common()
    counted = ", ".join(f"{text} on {count}" for text, count in paths)
    return [(), *wrapped(f"{plural(len(explained), 'process', 'processes')}: {counted}", width)]


def draw_processes(explained: Sequence[ProcessExplanation], width: int) -> list[Line]:
    """Return a block for each kind of process: those of one differ only in their GPUs and NICs."""
    lines: list[Line] = []
    for first, *others in grouped((_kind(each), each) for each in explained).values():
        lines += [(), *draw_process(first, width)]
        if others:
            pids = ", ".join(str(other.pid) for other in others)
            text = f"{len(others)} more, but for their GPUs and NICs: {pids}"
            lines += labeled("Alike", (text,), width)
    return lines


def _kind(explained: ProcessExplanation) -> tuple[object, ...]:
    """Return what processes have in common that differ only in which GPUs and NICs they have."""
    return (
        explained.path.text,
        explained.path_text,
        explained.unexpected,
        explained.limits,
        explained.queues,
        explained.spread,
        map_known(explained.given, len),
        map_known(
            explained.gpus, lambda gpus: tuple(tuple(nic.word for nic in gpu.nics[:1]) for gpu in gpus)
        ),
        map_known(explained.nics, len),
        map_known(explained.visible_nics, len),
        explained.all_nics,
        map_known(
            explained.libraries,
            lambda rows: tuple((row.library, row.path, _NUMBERS.sub("#", row.why)) for row in rows),
        ),
    )


def draw_process(explained: ProcessExplanation, width: int) -> list[Line]:
    """Return a process."""
    path = explained.path
    lines: list[Line] = [line(Run(explained.name, Tone.TITLE))]
    lines += engines.draw(explained.serving, explained.transfer, width)
    lines += labeled("Path now", (path.text,), width, TONES[use_health(path)])
    if explained.unexpected:
        mark, tone = ("• ", Tone.DIM) if explained.is_gdr else ("▲ ", Tone.WARNING)
        lines += labeled("", (f"{mark}{explained.unexpected}",), width, tone)
    gpus = explained.gpus
    texts = [f"unknown ({gpus})"] if isinstance(gpus, Unknown) else [_gpu_text(gpu) for gpu in gpus]
    lines += labeled("GPUs", texts or ["none in use"], width)
    lines += labeled("NICs", (_nics_text(explained),), width)
    lines += labeled("Queues", (*explained.queues, *explained.spread), width)
    given = explained.given
    if not isinstance(given, Unknown):
        lines += labeled("Given", given or ("no device by the kubelet",), width)
    elif given.reason is not Reason.NOT_THERE:
        lines += labeled("Given", (f"unknown ({given})",), width)
    lines += labeled("Limits", explained.limits, width)
    libraries = explained.libraries
    if isinstance(libraries, Unknown):
        return [*lines, *labeled("Libraries", (f"unknown ({libraries})",), width)]
    texts = [f"{library.library}: {library.path} ({library.why})" for library in libraries]
    return [*lines, *labeled("Libraries", texts or ["none that gdrtop knows is loaded"], width)]


def _gpu_text(gpu: ProcessGpu) -> str:
    near = ", ".join(f"{nic.name} {nic.word}" for nic in gpu.nics)
    return f"{gpu.label} ({gpu.bdf}), nearest NICs: {near or 'none'}"


def _nics_text(explained: ProcessExplanation) -> str:
    used, visible = explained.nics, explained.visible_nics
    uses = "use unknown"
    if not isinstance(used, Unknown):
        uses = f"uses {', '.join(used) or 'none'}"
    elif used.detail != explained.path.why:  # which stands above
        uses += f" ({used.detail})"
    unread = next((each for each in (visible, explained.all_nics) if isinstance(each, Unknown)), None)
    if isinstance(visible, Unknown) or isinstance(explained.all_nics, Unknown):
        return f"{uses}; which ones it sees is unknown ({unread})"
    sees = ", ".join(visible) if 0 < len(visible) < explained.all_nics else str(len(visible))
    return f"{uses}; sees {sees} of {explained.all_nics}"


def draw_changes(
    findings: Sequence[Finding], explained: Sequence[ProcessExplanation], width: int
) -> list[Line]:
    """Return what is wrong: what the user can change, and what to ask an admin for."""
    own = [finding for finding in findings if not needs_admin(finding)]
    others = [finding for finding in findings if needs_admin(finding)]
    lines: list[Line] = []
    for title, part in (("What you can change", own), ("What to ask your admin for", others)):
        lines += section(title, [drawn for finding in part for drawn in _finding(finding, width)])
    if lines or all(each.is_clear for each in explained):
        text = "✓ gdrtop finds nothing to change for this job. Whether it is slow, gdrtop live shows."
        return lines or [(), *wrapped(text, width, Tone.GOOD)]
    pids = [f"pid {each.pid}" for each in explained if not each.is_clear]
    unclear = pids[0] if len(pids) == 1 else f"{len(pids)} of {len(explained)} processes"
    text = f"? gdrtop cannot tell whether something has to change: too little is known of {unclear}."
    return [(), *wrapped(text, width, Tone.WARNING)]


def draw_container(rows: Sequence[ContainerRow], request: Sequence[str], width: int) -> list[Line]:
    """Return what the container of this session has, and the request to its admin, which can be pasted."""
    drawn: list[Line] = []
    for row in rows:
        label = f"{row.name:<{_CONTAINER_CELLS}}"
        pieces = paragraphs((row.shown,), max(8, width - _CONTAINER_CELLS))
        drawn += behind((Run(label, Tone.WARNING if row.ask else Tone.PLAIN),), pieces)
    lines = section("This container", drawn)
    return lines + section("Request for your admin (copy it)", [line(each) for each in request])


def needs_admin(finding: Finding) -> bool:
    """Return whether its fix begins with a step that needs root, or an admin has to find one."""
    steps = () if finding.fix is None else finding.fix.steps
    return next((step.needs_root for step in steps), True)


def _finding(finding: Finding, width: int) -> list[Line]:
    mark = _MARKS[finding.severity]
    lines = behind((mark,), wrapped(f"{finding.title} ({finding.id})", width - 2))
    lines += paragraphs((finding.impact,), width, Tone.DIM, "  ")
    steps = () if finding.fix is None else finding.fix.steps
    reasons = (f"→ {step.why.partition(chr(10))[0]}" for step in steps[:_MOST_STEPS])
    lines += paragraphs(reasons, width, Tone.PLAIN, "  ", "  ")
    if len(steps) > _MOST_STEPS:
        more = f"and {len(steps) - _MOST_STEPS} more steps: gdrtop check {finding.id}"
        lines += wrapped(more, width, Tone.DIM, "  ")
    return lines + (wrapped(f"More: {finding.page}", width, Tone.DIM, "  ") if finding.page else [])
