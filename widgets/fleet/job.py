"""A job over several nodes: the answer first, then what differs, then one row a rank, the worst first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from probes.base.grouping import grouped
from probes.base.text import capitalized, plural
from probes.base.unknown import Unknown, known
from probes.checks.statements import process_health
from probes.fleet.job_differences import some_names
from probes.fleet.job_model import FleetJob, FleetRank, Silence
from probes.live.model.activity import waiting_text
from probes.live.model.sample import GDR_WORDS, Standstill
from widgets.base.columns import Column, cells_of, draw_columns
from widgets.base.figures import figure_run, gbps, local_time, minutes, percent, short
from widgets.base.health import TONES
from widgets.base.lines import LazyLines, Line, Run, Tone, behind, line, paragraphs, wrapped
from widgets.live.engines import engine_peer, engine_role, engine_text
from widgets.live.job_lines import path_summary
from widgets.live.ranks import short_names, state_word

MOST_ROWS = 64
_INDENT = "  "
_WAITS = (
    "It hangs, or waits for a rank that writes a checkpoint, compiles or loads data; gdrtop fleet hang names "
    "the suspect"
)
_PAUSES = "It loads data, compiles or writes a checkpoint"
_SILENT = "No port of this job has moved data for {}"


def draw(job: FleetJob, width: int, most_rows: int = MOST_ROWS) -> list[Line]:
    """Draw the job; of more than `most_rows` ranks only the worst."""
    if not job.ranks:
        return [*_no_ranks(job, width), *_unanswered(job, width)]
    lines = [*_answer(job, width)]
    for text in _problems(job):
        lines += _marked("▲", text, width, Tone.WARNING)
    if job.silence is not None and job.silence.waits is not True:
        lines += _marked("?", _silence(job.silence), width, Tone.DIM)
    lines += _unanswered(job, width)
    ranks = _worst_first(job)
    marked = {key for difference in job.differences for key in difference.ranks}
    lines += [(), *_table(ranks[:most_rows], marked, width)]
    if len(ranks) > most_rows:
        more = plural(len(ranks) - most_rows, "more rank")
        lines.append(line(Run(f"{_INDENT}{more} (--all lists every rank)", Tone.DIM)))
    return lines + paragraphs(_notes(job), width, Tone.DIM)


def _answer(job: FleetJob, width: int) -> list[Line]:
    """Return the job, its ranks and nodes, the paths, the rate, and how much differs."""
    processes = [rank.process for rank in job.ranks]
    count = len(job.ranks)
    world = job.world_size
    of_world = f" of {world}" if isinstance(world, int) and world != count else ""
    if served := engine_text(processes):
        ranks = f"{served}, {plural(count, 'process', 'processes')}"
    else:
        ranks = f"{count}{of_world} rank{'s' * (count != 1 or bool(of_world))}"
    ranks += f" on {plural(len(job.nodes), 'node')}"
    paths = "".join(run.text for run in path_summary(processes))
    odd = len(job.differences) + (job.silence is not None and job.silence.waits is True)
    parts = [ranks, paths, gbps(job.gbps)]
    if odd:
        parts.append(plural(odd, "problem"))
    tone = Tone.WARNING if odd or job.missing_ranks else Tone.TITLE
    return wrapped(f"{job.name} · {' · '.join(parts)}", width, tone, hanging=_INDENT)


def _problems(job: FleetJob) -> list[str]:
    """Return what differs and what is missing; a stopped rank comes before the silence that it causes."""
    texts = [difference.sentence for difference in job.differences]
    if job.silence is not None and job.silence.waits is True:
        state = sum(difference.aspect == "state" for difference in job.differences)
        texts.insert(state, _silence(job.silence))
    if job.missing_ranks:
        texts.append(f"No node shows ranks {job.missing_ranks} of {known(job.world_size, 0)}")
    return texts


def _silence(silence: Silence) -> str:
    """Return for how long no data has moved, what that may be, and which port was the first."""
    still, waits = silence.standstill, silence.waits
    if isinstance(waits, Unknown):
        what = f". Whether its ranks wait is unknown ({waits})"
    elif not isinstance(still, Standstill):
        what = ". It hangs, computes or writes a checkpoint"
    else:
        what = f", while {waiting_text(still)}. " + (_WAITS if waits else _PAUSES)
    at = silence.at if silence.first else None
    when = "" if at is None else f" (at {local_time(at)})"
    return f"{_SILENT.format(minutes(silence.seconds))}{what}. {silence.sentence}{when}."


def _marked(mark: str, text: str, width: int, tone: Tone) -> list[Line]:
    return behind((Run(f"{mark} ", tone),), wrapped(capitalized(text), max(8, width - 2)))


def _unanswered(job: FleetJob, width: int) -> list[Line]:
    """Return the nodes that do not answer, those with the same reason together."""
    lines: list[Line] = []
    for reason, names in _by_reason(job.unanswered).items():
        verb = "does" if len(names) == 1 else "do"
        text = f"{plural(len(names), 'node')} {verb} not answer: {some_names(names)} ({reason})"
        lines += _marked("▲", text, width, Tone.WARNING)
    return lines


def _by_reason(nodes: Mapping[str, str]) -> dict[str, list[str]]:
    return grouped((reason, name) for name, reason in sorted(nodes.items()))


def _no_ranks(job: FleetJob, width: int) -> list[Line]:
    """Return why no rank is shown."""
    what = f"Job {job.name} has no process" if job.name else "No NCCL job runs"
    lines = wrapped(f"{what} on the nodes that answer ({len(job.absent)}).", width, Tone.WARNING)
    texts = [f"{some_names(names)}: {reason}" for reason, names in _by_reason(job.absent).items()]
    others = f"Other jobs on these nodes: {some_names(job.other_jobs)}" if job.other_jobs else ""
    return lines + paragraphs((*texts, others), width)


def _notes(job: FleetJob) -> list[str]:
    notes = list(job.notes)
    for reason, names in _by_reason(job.absent).items():
        verb = "shows" if len(names) == 1 else "show"
        notes.append(f"{plural(len(names), 'node')} {verb} no rank: {some_names(names)} ({reason})")
    if job.other_jobs:
        notes.append(f"Other jobs on these nodes: {some_names(job.other_jobs)}")
    return notes


def _worst_first(job: FleetJob) -> list[FleetRank]:
    """Return the ranks that differ first, then those without GPUDirect RDMA, then by rank."""
    place = {key: number for number, odd in reversed(list(enumerate(job.differences))) for key in odd.ranks}
    return sorted(
        job.ranks,
        key=lambda rank: (place.get(rank.key, len(job.differences)), rank.process.path.word in GDR_WORDS),
    )


def _table(ranks: Sequence[FleetRank], marked: set[tuple[str, int]], width: int) -> Sequence[Line]:
    """Draw one row a rank."""

    def cells(cell: Callable[[FleetRank], Run]) -> LazyLines:
        return cells_of(ranks, cell)

    def node(rank: FleetRank) -> Run:
        return Run(rank.node, Tone.WARNING if rank.key in marked else Tone.PLAIN)

    has_engine = any(rank.process.serving is not None for rank in ranks)
    path = max((len(rank.process.path_text) for rank in ranks), default=0)
    columns = [
        Column("node", cells(node), 1, least=4),
        Column("rank", cells(lambda rank: figure_run(rank.process.rank)), 1, to_right=True),
        Column("GPU", cells(lambda rank: Run(",".join(rank.gpus) or "–", Tone.GPU)), 4),
        *([Column("role", cells(lambda rank: engine_role(rank.process)), 2)] if has_engine else []),
        Column("path", cells(_path), 2, least=min(path, 39 if has_engine else 20), grows=True),
        *([Column("peer", cells(lambda rank: engine_peer(rank.process)), 4)] if has_engine else []),
        Column("NIC", cells(_nics), 3),
        Column("Gb/s", cells(_rate), 2, to_right=True, least=5),
        Column("rail", cells(lambda rank: Run(",".join(map(str, rank.rails)) or "–")), 6, to_right=True),
        Column("state", cells(_state), 5, least=7),
        Column("GPU load", cells(_load), 7, to_right=True),
        Column("pid", cells(lambda rank: Run(str(rank.process.pid))), 8, to_right=True),
    ]
    return draw_columns(columns, ["" for _ in ranks], width)


def _path(rank: FleetRank) -> Run:
    return Run(rank.process.path_text, TONES[process_health(rank.process)])


def _nics(rank: FleetRank) -> Run:
    names = rank.process.ready_nics
    return Run(short_names(names), Tone.NIC) if names else Run("–", Tone.DIM)


def _rate(rank: FleetRank) -> Run:
    if not rank.process.ready_nics and rank.process.transfer is None:
        return Run("–", Tone.DIM)
    return Run(f"{'≤' * rank.is_shared}{short(rank.gbps)}")


def _state(rank: FleetRank) -> Run:
    word = state_word(rank.process.state)
    return Run(word, Tone.BAD if word in ("stopped", "zombie") else Tone.PLAIN)


def _load(rank: FleetRank) -> Run:
    return Run(percent(rank.gpu_percent) if rank.gpus else "–")
