"""Draw setup: a forecast for a reboot or an image; the node, the paths and the steps of setup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.evidence import Severity
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from probes.queries.finding import Finding, Status
from probes.repair.runbook import Runbook
from probes.setup.forecast import Forecast, ImageCheck, ImageKind, KernelForecast
from probes.setup.situation import situation_rows
from probes.setup.step import OPEN_STATES, SetupStep, StepState
from probes.setup.steps.guide import Guide
from probes.snapshot.verdict import State, Verdict
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.lines import Line, Run, Tone, fit, line, paragraphs, sentence, width_of, wrapped
from widgets.doctor.findings import NO_LABELS, draw_entries, draw_entry, entries_of
from widgets.doctor.plan import draw_consequences, draw_steps
from widgets.node.verdict import path_name

# The mark and the words of an outlook.
_OUTLOOKS = {
    State.ACTIVE: (Run("✓", Tone.GOOD), "will work"),
    State.READY: (Run("✓", Tone.GOOD), "will work"),
    State.DEGRADED: (Run("▲", Tone.WARNING), "will work, but not fully"),
    State.BROKEN: (Run("✗", Tone.BAD), "will not work"),
    State.UNKNOWN: (Run("?", Tone.DIM), "unknown"),
    State.NOT_APPLICABLE: (Run("–", Tone.DIM), "not applicable"),
}
_SENTENCES = {
    State.UNKNOWN: "the state of GPUDirect RDMA is unknown",
    State.NOT_APPLICABLE: "GPUDirect RDMA does not apply",
}


def draw(
    forecast: Forecast, kernel: KernelForecast | None, width: int, labels: Mapping[str, str] = NO_LABELS
) -> list[Line]:
    """Draw one kernel's headline and findings, then all kernels, then what no file shows.

    `labels`: the names of GPUs and NICs by BDF.
    """
    if kernel is None:
        return wrapped(sentence(forecast.not_applicable or "no installed kernel was found"), width)
    lines = [
        *draw_outlook(kernel.verdict, f"After a reboot into {kernel.release}", width),
        *wrapped(_place(kernel, forecast), width, Tone.DIM, "  "),
        *draw_found(kernel.findings, width, labels),
        (),
        *draw_kernels(forecast, kernel.release, width),
    ]
    limits = (*forecast.not_known, *filter(None, (kernel.missing,)))
    return [*lines, (), *draw_not_known(limits, width)]


def draw_not_known(limits: Sequence[str], width: int) -> list[Line]:
    """Name what no file shows."""
    return wrapped(f"Unknown until the boot: {'; '.join(limits)}.", width, Tone.DIM) if limits else []


def draw_outlook(verdict: Verdict, opening: str, width: int) -> list[Line]:
    """Draw the title "After a reboot into 6.8.0: GPUDirect RDMA will work (via DMA-BUF)", and why not."""
    state = verdict.state
    word = _SENTENCES.get(state, f"GPUDirect RDMA {_OUTLOOKS[state][1]}")
    gpus = f"{verdict.gpus_served} of {plural(verdict.gpus, 'GPU')}"
    is_usable = state.is_usable and verdict.path is not None
    by = f" (via {path_name(verdict.path)}, {gpus})" if is_usable else ""
    first, *rest = wrapped(f"{opening}: {word}{by}", width - 2, Tone.TITLE)
    lines: list[Line] = [(_OUTLOOKS[state][0], Run(" "), *first), *((Run("  "), *part) for part in rest)]
    if not state.is_green and verdict.reason:
        lines.extend(wrapped(sentence(verdict.reason), width, Tone.PLAIN, "  "))
    return lines


def draw_found(findings: Sequence[Finding], width: int, labels: Mapping[str, str] = NO_LABELS) -> list[Line]:
    """Draw what was found as the doctor does: the list, then each critical finding and warning in full."""
    entries = entries_of([finding for finding in findings if finding.status is Status.FOUND])
    if not entries:
        return []
    lines: list[Line] = [(), *draw_entries(entries, width, labels)]
    for entry in entries:
        if entry.first.severity is not Severity.NOTE and not entry.depth:
            lines += [(), *draw_entry(entry, width, labels)]
    return lines


def _place(kernel: KernelForecast, forecast: Forecast) -> str:
    """Return "running now; the boot loader starts it next"."""
    parts = ["running now" if kernel.is_running else "installed, not running"]
    if isinstance(kernel.is_next, Unknown):
        parts.append(f"the boot loader's next kernel is unknown ({kernel.is_next})")
    elif kernel.is_next:
        parts.append("the boot loader starts it next")
    else:
        parts.append(f"the boot loader starts {forecast.next_kernel} next")
    return "; ".join(parts)


def draw_kernels(forecast: Forecast, selected: str, width: int) -> list[Line]:
    """Draw a row for each kernel, then why each other kernel may not work."""
    kernels = forecast.kernels
    names = [line(_OUTLOOKS[kernel.verdict.state][0], f" {kernel.release}") for kernel in kernels]
    columns = [
        Column("KERNEL", names, 1),
        Column("", cells_of(kernels, _when), 2),
        Column("GPUDIRECT RDMA", cells_of(kernels, lambda row: Run(_OUTLOOKS[row.verdict.state][1])), 1),
        Column("PATH", cells_of(kernels, lambda row: Run(path_name(row.verdict.path))), 3),
    ]
    lines = list(draw_columns(columns, ["" for _ in kernels], width, selected))
    for kernel in kernels:
        if not kernel.verdict.is_green and kernel.release != selected:
            lines.extend(wrapped(f"{kernel.release}: {kernel.verdict.reason}", width, Tone.DIM, "  "))
    rest = len(forecast.installed) - len(kernels)
    if rest > 0:
        lines.extend(wrapped(f"{plural(rest, 'older kernel')} not judged; use --kernel.", width, Tone.DIM))
    return lines


def _when(kernel: KernelForecast) -> Run:
    return Run(", ".join(["running"] * kernel.is_running + ["next"] * (kernel.is_next is True)))


def draw_image_check(check: ImageCheck, width: int) -> list[Line]:
    """Draw the assumption, the headline, the findings and the kernels of the image."""
    assumed = f"{check.kind.value}; the hardware is assumed: {check.hardware}, {check.product}"
    lines: list[Line] = [*wrapped(sentence(assumed), width), ()]
    kernel = check.forecast.chosen()
    opening = "Programs in this image" if kernel is None else f"Booted with {kernel.release}"
    if kernel is None and check.kind is ImageKind.SYSTEM:
        lines += wrapped(sentence(check.forecast.not_applicable), width)
    else:
        lines += draw_outlook(check.verdict, opening, width)
    lines += draw_found(check.findings, width)
    if len(check.forecast.kernels) > 1 and kernel is not None:
        lines += [(), *draw_kernels(check.forecast, kernel.release, width)]
    unanswered = sum(finding.status is Status.UNKNOWN for finding in check.findings)
    rest = wrapped(f"{plural(unanswered, 'check')} could not run on an image.", width, Tone.DIM)
    missing = "" if kernel is None else kernel.missing
    limits = draw_not_known((*check.not_known, *filter(None, (missing,))), width)
    return [*lines, (), *(rest if unanswered else ()), *limits]


# Draw setup: where the node stands, the paths' requirements, the steps, and one step in detail.

_STEP_MARKS = {
    StepState.DONE: Run("✓", Tone.GOOD),
    StepState.TO_DO: Run("▸", Tone.TITLE),
    StepState.BLOCKED: Run("·", Tone.DIM),
    StepState.SKIPPED: Run("–", Tone.DIM),
    StepState.UNKNOWN: Run("?", Tone.WARNING),
}
_MET = {True: Run("✓", Tone.GOOD), False: Run("✗", Tone.BAD)}
_LABEL_CELLS = 18
_MOST_EVIDENCE = 4


def draw_situation(guide: Guide, width: int) -> list[Line]:
    """Draw what is known about the node, one row a fact."""
    return [
        fit(line(Run(f"{label:<{_LABEL_CELLS}}", Tone.DIM), value), width)
        for label, value in situation_rows(guide.situation)
    ]


def draw_summary(guide: Guide, width: int, as_of: str = "") -> list[Line]:
    """Draw the path, how many steps are done, when that was read, and what comes next."""
    if not guide.choice.has_steps:
        reason = f"GPUDirect RDMA cannot work on this node: {guide.choice.reason}"
        return [*wrapped(reason, width, Tone.TITLE), *wrapped(guide.choice.instead, width)]
    wanted = [step for step in guide.steps if step.state is not StepState.SKIPPED and not step.is_optional]
    done = sum(step.state is StepState.DONE for step in wanted)
    when = f" · {as_of}" if as_of else ""
    head = f"{_path_words(guide)} · {done} of {plural(len(wanted), 'step')} done{when}"
    rest = f" · {finished_words(guide)}" if guide.is_finished else ""
    unknown = sum(step.state is StepState.UNKNOWN for step in guide.steps)
    if (following := guide.next_step) is not None:
        rest += f" · {'optional' if guide.is_finished else 'next'}: {following.title}"
    elif unknown and not guide.is_finished:
        rest = f" · {unknown} unknown: see why, or skip"
    is_whole = guide.is_finished and not guide.skipped
    lines = wrapped(f"{head}{rest}", width, Tone.GOOD if is_whole else Tone.TITLE)
    for old in guide.choice.old_peermem if guide.path is guide.choice.recommended else ():
        text = f"An old configuration still loads nvidia_peermem, which no job here uses ({old.source})."
        lines.extend(wrapped(text, width, Tone.WARNING))
    return lines


def finished_words(guide: Guide) -> str:
    """Return what a guide says when nothing is left to do: what was skipped may be a fault all the same."""
    if not guide.skipped:
        return "the node is set up"
    return f"the node is set up, apart from {plural(len(guide.skipped), 'skipped step')}"


def _path_words(guide: Guide) -> str:
    if guide.choice.is_staged:
        return f"path through host memory, by design: {guide.choice.reason}"
    if guide.path is None:
        return f"no path: {guide.choice.reason}"
    if not guide.path_by:
        return f"target path {guide.path.value}"
    recommended = guide.choice.recommended
    instead = "" if recommended in (None, guide.path) else f", not the recommended {recommended.value}"
    return f"target path {guide.path.value}, {guide.path_by}{instead}"


def draw_step_row(step: SetupStep, width: int, is_selected: bool = False) -> Line:
    """Draw one step in one line: state, title, reason."""
    cells = min(40, max(32, width // 3))
    tone = Tone.DIM if step.state in (StepState.DONE, StepState.SKIPPED, StepState.BLOCKED) else Tone.PLAIN
    title = step.title if len(step.title) <= cells else f"{step.title[: cells - 1]}…"
    name = Run(f" {title:<{cells}} ", Tone.CURSOR if is_selected else Tone.PLAIN, step.id)
    return fit(
        line(_STEP_MARKS[step.state]._replace(id=step.id), name, Run(step.reason, tone, step.id)), width
    )


def draw_step(step: SetupStep, width: int, can_skip: bool = True) -> list[Line]:
    """Draw one step in detail: its state, why it matters, the evidence and the commands."""
    lines: list[Line] = [
        line(_STEP_MARKS[step.state], " ", Run(step.title, Tone.TITLE), f"  {step.state.value}"),
        *wrapped(step.reason, width),
        *wrapped(f"Why: {step.why}", width, Tone.DIM),
    ]
    if step.needs_console:
        text = "This needs the console at the next boot: a BMC or a keyboard, not SSH."
        lines.extend(wrapped(text, width, Tone.WARNING))
    checks = f"Checks: {', '.join(step.findings)}" if step.findings else ""
    lines += paragraphs((checks,), width, Tone.DIM)
    if step.plan is not None:
        lines += draw_consequences(step.plan, width)
        lines += draw_steps(step.plan, width)
    if step.command and step.state in OPEN_STATES:
        lines.extend(wrapped(f"Run: {step.command}", width))
    if can_skip and not step.is_over:
        lines.extend(wrapped(f"Skip it: gdrtop setup --skip {step.id}, or Skip in Setup", width, Tone.DIM))
    more = len(step.evidence) - _MOST_EVIDENCE
    texts = [f"{evidence.source}: {evidence.value}" for evidence in step.evidence[:_MOST_EVIDENCE]]
    return lines + paragraphs((*texts, f"… {more} more in Doctor" if more > 0 else ""), width, Tone.DIM)


def draw_runbook(runbook: Runbook, width: int) -> list[Line]:
    """Draw where a repair stands: what comes next, all steps, and the next one in detail."""
    scheduler, step = runbook.facts.scheduler, runbook.next_step
    where = "" if scheduler is None else f"{scheduler.summary} · "
    if not runbook.steps:
        ids = join_limited(row.id for row in runbook.facts.rows)
        reason = (
            f"found: {ids} · --reason ID or TEXT begins a repair" if ids else "gdrtop finds nothing to repair"
        )
        return wrapped(f"{where}no reason to drain it · {reason}", width, Tone.TITLE if ids else Tone.GOOD)
    over = sum(each.is_over for each in runbook.steps)
    rest = f"next: {step.title}" if step is not None else "the repair is over"
    title = f"{where}{over} of {plural(len(runbook.steps), 'step')} over · {rest}"
    rows = [draw_step_row(each, width) for each in runbook.steps]
    detail = [] if step is None else [(), *draw_step(step, width, can_skip=False)]
    return [*wrapped(title, width, Tone.TITLE), *rows, *detail]


def draw_path_table(guide: Guide, width: int) -> list[Line]:
    """Draw each path's requirements with what was read, and the recommendation."""
    lines: list[Line] = wrapped(guide.choice.reason, width)
    old_loads = (f"{old.source}: {old.value}" for old in guide.choice.old_peermem)
    texts = (f"An old configuration still loads nvidia_peermem ({old})" for old in old_loads)
    lines += paragraphs(texts, width, Tone.WARNING)
    for rows in guide.choice.paths:
        lines.append(line(Run(rows.path.value, Tone.TITLE)))
        for row in rows.requirements:
            mark = Run("?", Tone.WARNING) if isinstance(row.met, Unknown) else _MET[row.met]
            name = line("  ", mark, f" {row.name}  ")
            whole = line(*name, Run(row.evidence, Tone.DIM))
            if width_of(whole) <= width:
                lines.append(whole)
            else:
                lines += [fit(name, width), *wrapped(row.evidence, width, Tone.DIM, indent="    ")]
    return lines


def draw_guide(guide: Guide, width: int) -> list[Line]:
    """Draw everything, for a terminal or a pipe; no step where none can help."""
    steps = guide.listed if guide.choice.has_steps else ()
    rows: Sequence[Line] = [draw_step_row(step, width) for step in steps]
    return [*draw_situation(guide, width), (), *draw_summary(guide, width), *rows]
