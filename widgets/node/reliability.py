"""NICs and GPUs over weeks of jobs, as tables."""

from __future__ import annotations

from probes.base.text import plural
from probes.facts.rdma.devices import natural
from probes.host.component_history import SOURCE, Component, ComponentHistory, JobPart
from probes.live.reliability import BASIS, BASIS_OF_LOSSES, day_text, events_text, slow_text
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, line, paragraphs, section, sentence, wrapped

NONE = "–"
_OF_LOSSES = (("Finding", 1), ("GPU-hours", 1), ("In jobs", 2), ("Lost", 1))


def draw_history(history: ComponentHistory, width: int) -> list[Line]:
    """Draw a row for each component, what stands out first, and the GPU-hours of findings."""
    rows = _sorted(history)
    lines = wrapped(_kept(history), width)
    if rows:
        lines += [(), *draw_rows(history, width), ()]
        texts = [slow_text(row) for row in rows if row.stands_out and not row.is_gone]
        lines += paragraphs(map(sentence, texts), width, Tone.TITLE)
        lines += [*([()] if texts else []), *wrapped(BASIS, width, Tone.DIM)]
    return [*lines, *section("Findings that cost bandwidth, in GPU-hours", _draw_losses(history, width))]


def _draw_losses(history: ComponentHistory, width: int) -> list[Line]:
    rows = sorted(history.losses, key=lambda row: (not row.finding, -row.lost_seconds, -row.job_seconds))
    texts = [
        (
            row.finding or "any of them",
            _hours(row.gpu_seconds, row.gpu_seconds, row.gpu_seconds),
            _hours(row.job_seconds, row.seen_seconds, row.gpu_seconds),
            _hours(row.lost_seconds, row.rated_seconds, row.job_seconds),
        )
        for row in rows
    ]
    columns = [
        Column(title, [line(cells[place]) for cells in texts], importance, to_right=place > 0)
        for place, (title, importance) in enumerate(_OF_LOSSES)
    ]
    table = draw_columns(columns, [row.finding for row in rows], width)
    return [*table, (), *wrapped(BASIS_OF_LOSSES, width, Tone.DIM)] if rows else []


def _hours(seconds: float, known_seconds: float, all_seconds: float) -> str:
    """Return a figure that is known for a part of the time."""
    if not seconds and not known_seconds < all_seconds:
        return "0"
    least = "at least " if known_seconds < all_seconds else ""
    return f"{least}{seconds / 3600:.1f}" if seconds else "unknown"


def draw_rows(history: ComponentHistory, width: int, is_wide: bool = False) -> list[Line]:
    """Draw the heading and the rows of draw_history; `is_wide`: also the GUID or UUID of each."""
    rows = _sorted(history)

    def name_of(row: Component) -> Run:
        tone = Tone.WARNING if row.stands_out else Tone.PLAIN
        return Run(_name(row), Tone.DIM if row.is_gone else tone)

    columns = [
        Column("Component", cells_of(rows, name_of), 1),
        Column("PCI address", cells_of(rows, lambda row: Run(row.bdf, Tone.DIM)), 4),
        Column("Slow in", cells_of(rows, lambda row: Run(_slow(row), name_of(row).tone)), 2),
        Column("Events", cells_of(rows, lambda row: Run(events_text(row.counts) or NONE)), 3, grows=True),
    ]
    if is_wide:
        columns.insert(2, Column("GUID or UUID", cells_of(rows, lambda row: Run(row.id, Tone.DIM)), 4))
    return list(draw_columns(columns, [row.id for row in rows], width))


def _sorted(history: ComponentHistory) -> list[Component]:
    return sorted(history.components, key=lambda row: (row.is_gone, _order(row)))


def draw_component(history: ComponentHistory, component: Component, width: int) -> list[Line]:
    """Draw the jobs of one component, newest first."""
    title = f"{_name(component)} ({component.id})"
    lines = [*wrapped(title, width, Tone.TITLE), *wrapped(_kept(history), width)]
    texts = filter(None, (slow_text(component), events_text(component.counts)))
    lines += paragraphs(map(sentence, texts), width)
    table = draw_jobs(history, component, width)
    if not table[1:]:
        return [*lines, *wrapped("It was in none of these jobs.", width)]
    return [*lines, (), *table, (), *wrapped(BASIS, width, Tone.DIM)]


def draw_jobs(history: ComponentHistory, component: Component, width: int) -> list[Line]:
    """Draw the heading and the rows of draw_component."""
    parts = [part for part in component.parts if 0 <= part.job < len(history.jobs)]
    jobs = [history.jobs[part.job] for part in parts]
    columns = [
        Column("Ended", cells_of(jobs, lambda job: Run(day_text(job.ended))), 1),
        Column("Ran", cells_of(jobs, lambda job: Run(minutes(max(0.0, job.ended - job.began)))), 4, True),
        Column("Slow for", cells_of(parts, _slow_for), 2, True),
        Column("Job", cells_of(jobs, lambda job: Run(job.name)), 3, grows=True),
        Column("Events", cells_of(parts, lambda part: Run(events_text(part.counts) or NONE)), 5),
    ]
    return list(draw_columns(columns, [f"{part.job}" for part in parts], width))


def _name(component: Component) -> str:
    return f"{component.name} (gone)" if component.is_gone else component.name


def _kept(history: ComponentHistory) -> str:
    jobs, until = plural(len(history.jobs), "job"), day_text(history.until)
    return f"From {SOURCE}: {jobs}, and events from {day_text(history.since)} to {until}."


def _order(component: Component) -> tuple[float, int, bool, object]:
    events = sum(component.counts.values())
    return -component.slow_share, -events, component.is_gpu, natural(component.name)


def _slow(component: Component) -> str:
    compared = component.compared_jobs
    return f"{component.slow_jobs} of {plural(compared, 'job')}" if compared else "not compared"


def _slow_for(part: JobPart) -> Run:
    if part.is_slow is None:
        return Run("not compared")
    share = 100 * part.slow_seconds / part.compared_seconds
    tone = Tone.WARNING if part.is_slow else Tone.PLAIN
    return Run(f"{share:.0f} % of {minutes(part.compared_seconds)}", tone)
