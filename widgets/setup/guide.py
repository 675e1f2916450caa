"""Draw setup: where the node stands, the paths' requirements, the steps, and one step in detail."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.setup.situation import situation_rows
from probes.setup.step import OPEN_STATES, SetupStep, StepState
from probes.setup.steps.guide import Guide
from widgets.base.lines import Line, Run, Tone, fit, line, width_of, wrapped
from widgets.doctor.plan import draw_consequences, draw_steps

_MARKS = {
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
    if guide.is_impossible:
        reason = f"GPUDirect RDMA cannot work on this node: {guide.choice.reason}"
        return [*wrapped(reason, width, Tone.TITLE), *wrapped(guide.choice.instead, width)]
    wanted = [step for step in guide.steps if step.state is not StepState.SKIPPED and not step.is_optional]
    done = sum(step.state is StepState.DONE for step in wanted)
    when = f" · {as_of}" if as_of else ""
    head = f"{_path_words(guide)} · {done} of {plural(len(wanted), 'step')} done{when}"
    rest = f" · {finished_words(guide)}{_optional_words(guide)}" if guide.is_finished else _next_words(guide)
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
    if guide.path is None:
        return f"no path: {guide.choice.reason}"
    if not guide.path_by:
        return f"target path {guide.path.value}"
    recommended = guide.choice.recommended
    instead = "" if recommended in (None, guide.path) else f", not the recommended {recommended.value}"
    return f"target path {guide.path.value}, {guide.path_by}{instead}"


def _next_words(guide: Guide) -> str:
    if (following := guide.next_step) is not None:
        return f" · next: {following.title}"
    unknown = sum(step.state is StepState.UNKNOWN for step in guide.steps)
    return f" · {unknown} unknown: see why, or skip" if unknown else ""


def _optional_words(guide: Guide) -> str:
    following = guide.next_step
    return f" · optional: {following.title}" if following is not None else ""


def draw_step_row(step: SetupStep, width: int, is_selected: bool = False) -> Line:
    """Draw one step in one line: state, title, reason."""
    cells = min(40, max(32, width // 3))
    tone = Tone.DIM if step.state in (StepState.DONE, StepState.SKIPPED, StepState.BLOCKED) else Tone.PLAIN
    title = step.title if len(step.title) <= cells else f"{step.title[: cells - 1]}…"
    name = Run(f" {title:<{cells}} ", Tone.CURSOR if is_selected else Tone.PLAIN, step.id)
    return fit(line(_MARKS[step.state]._replace(id=step.id), name, Run(step.reason, tone, step.id)), width)


def draw_step(step: SetupStep, width: int) -> list[Line]:
    """Draw one step in detail: its state, why it matters, the evidence and the commands."""
    lines: list[Line] = [
        line(_MARKS[step.state], " ", Run(step.title, Tone.TITLE), f"  {step.state.value}"),
        *wrapped(step.reason, width),
        *wrapped(f"Why: {step.why}", width, Tone.DIM),
    ]
    if step.needs_console:
        text = "This needs the console at the next boot: a BMC or a keyboard, not SSH."
        lines.extend(wrapped(text, width, Tone.WARNING))
    if step.findings:
        lines.extend(wrapped(f"Checks: {', '.join(step.findings)}", width, Tone.DIM))
    if step.plan is not None:
        lines += draw_consequences(step.plan, width)
        lines += draw_steps(step.plan, width)
    if step.command and step.state in OPEN_STATES:
        lines.extend(wrapped(f"Run: {step.command}", width))
    if not step.is_over:
        lines.extend(wrapped(f"Skip it: gdrtop setup --skip {step.id}, or Skip in Setup", width, Tone.DIM))
    for evidence in step.evidence[:_MOST_EVIDENCE]:
        lines.extend(wrapped(f"{evidence.source}: {evidence.value}", width, Tone.DIM))
    more = len(step.evidence) - _MOST_EVIDENCE
    if more > 0:
        lines.extend(wrapped(f"… {more} more in Doctor", width, Tone.DIM))
    return lines


def draw_path_table(guide: Guide, width: int) -> list[Line]:
    """Draw each path's requirements with what was read, and the recommendation."""
    lines: list[Line] = wrapped(guide.choice.reason, width)
    for old in guide.choice.old_peermem:
        text = f"An old configuration still loads nvidia_peermem ({old.source}: {old.value})"
        lines.extend(wrapped(text, width, Tone.WARNING))
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
    steps = () if guide.is_impossible else guide.steps
    rows: Sequence[Line] = [draw_step_row(step, width) for step in steps]
    return [*draw_situation(guide, width), (), *draw_summary(guide, width), *rows]
