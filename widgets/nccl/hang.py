"""The page of a job that hangs: the suspect, the evidence, the next commands, a row for each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known
from probes.live.hang.diagnosis import Diagnosis, Motion
from probes.live.hang.ranks import RankState
from probes.nccl.flight_recorder.dump import Dump
from probes.nccl.flight_recorder.verdict import DumpVerdict, ranks_text
from widgets.base.columns import Column, draw_columns
from widgets.base.figures import minutes, short
from widgets.base.lines import Line, Run, Tone, line, paragraphs, section, wrapped

_INDENT = "  "
_MOST_RANKS = 64
_MOST_CLUES = 12
_ABSENT = "–"


def draw_hang(diagnosis: Diagnosis, width: int) -> list[Line]:
    """Return the page of one job."""
    facts = diagnosis.facts
    tone = Tone.WARNING if diagnosis.exit_status else Tone.GOOD
    lines = [line(), line(Run(facts.job.name, Tone.TITLE))]
    lines += wrapped(f"Watched for {minutes(facts.seconds)}: {diagnosis.headline}.", width, tone, _INDENT)
    if diagnosis.suspects:
        sure = "Suspect" if diagnosis.is_sure else "Likely suspect"
        names = ", ".join(_named(name, facts.ranks) for name in diagnosis.suspects[:8])
        lines += wrapped(f"{sure}: {names}", width, Tone.BAD, _INDENT)
    elif facts.motion is not Motion.MOVES:
        lines += wrapped("No suspect: no source names a rank or a device.", width, Tone.PLAIN, _INDENT)
    clues = [f"{clue.source}: {clue.text}" for clue in diagnosis.clues[:_MOST_CLUES]]
    lines += _section("Evidence", clues, width)
    lines += _section("Next", list(diagnosis.next_steps[:6]), width)
    title = "Ranks" if _is_fleet(facts.ranks) else "Ranks on this node"
    lines += section(title, _ranks(facts.ranks, facts.dumps.dumps, width))
    lines += _section("Sources", [f"{source.name}: {source.text}" for source in facts.sources], width)
    return lines


def draw_dumps(verdict: DumpVerdict, point_to_point: int, width: int) -> list[Line]:
    """Return what dumps say together; `point_to_point`: sends and receives, which are not compared."""
    lines = [line(Run(f"Flight recorder: dumps of {ranks_text(verdict.ranks)}", Tone.TITLE))]
    if verdict.culprits:
        lines += wrapped(f"Suspect: {ranks_text(verdict.culprits)}", width, Tone.BAD, _INDENT)
    elif verdict.suspected:
        text = f"Likely suspect: {ranks_text(verdict.suspected)}, without a dump"
        lines += wrapped(text, width, Tone.BAD, _INDENT)
    elif verdict.is_cycle:
        text = "Ranks wait for each other: they call the process groups in a different order."
        lines += wrapped(text, width, Tone.WARNING, _INDENT)
    elif not verdict.groups:
        lines += wrapped("No rank waits in a collective.", width, Tone.PLAIN, _INDENT)
    lines += _section("Evidence", [group.sentence for group in verdict.groups[:_MOST_CLUES]], width)
    if point_to_point:
        text = f"Not compared: {plural(point_to_point, 'send or receive', 'sends and receives')}."
        lines += [line(), *wrapped(text, width, Tone.PLAIN, _INDENT)]
    return lines


def _section(title: str, texts: Sequence[str], width: int) -> list[Line]:
    return section(title, paragraphs(texts, width, Tone.PLAIN, _INDENT, _INDENT))


def _named(name: str, ranks: Sequence[RankState]) -> str:
    rank = next((rank for rank in ranks if rank.name == name), None)
    if rank is None or isinstance(rank.rank, Unknown):  # its name has the node and the pid
        return name
    place = (rank.node,) if rank.node else ()
    return f"{name} ({', '.join((*place, f'pid {rank.pid}', *rank.gpus[:2], *rank.nics[:2]))})"


def _is_fleet(ranks: Sequence[RankState]) -> bool:
    return any(rank.node for rank in ranks)


def _ranks(ranks: Sequence[RankState], dumps: Sequence[Dump], width: int) -> list[Line]:
    shown = ranks[:_MOST_RANKS]
    calls = {dump.rank: dump for dump in dumps}

    def column(title: str, texts: Sequence[str], importance: int, to_right: bool = True) -> Column:
        return Column(title, [line(text) for text in texts], importance, to_right)

    columns = [
        *([column("Node", [rank.node for rank in shown], 1, to_right=False)] if _is_fleet(ranks) else ()),
        column("Rank", [rank.name.removeprefix("rank ") for rank in shown], 1),
        column("PID", [str(rank.pid) for rank in shown], 2),
        column("State", [known(rank.state, "?") for rank in shown], 3, to_right=False),
        column("CPU %", [_figure(rank.cpu_percent) for rank in shown], 4),
        column("GPU %", [_figure(rank.gpu_percent) for rank in shown], 5),
        column("Power W", [_figure(rank.power_watts) for rank in shown], 8),
        column("Peak Gb/s", [_figure(rank.gbps, short) for rank in shown], 6),
        column("Silent", [_figure(rank.silent_seconds, minutes) for rank in shown], 7),
        column("QPs", [f"{rank.ready}/{rank.queue_pairs}{'+' * bool(rank.unlisted)}" for rank in shown], 9),
        column("Collective", [_calls(calls.get(known(rank.rank, -1))) for rank in shown], 10),
        column("GPUs and NICs", [" ".join((*rank.gpus[:2], *rank.nics[:2])) for rank in shown], 11, False),
    ]
    rows = list(draw_columns(columns, [str(rank.pid) for rank in shown], width))
    if len(ranks) > len(shown):
        rows.append(line(f"{_INDENT}and {len(ranks) - len(shown)} more ranks"))
    return rows


def _figure(value: Maybe[float], text: Callable[[float], str] = "{:.0f}".format) -> str:
    return _ABSENT if isinstance(value, Unknown) else text(value)


def _calls(dump: Dump | None) -> str:
    """Return the newest collective that a rank has called, in the group with the most ranks."""
    if dump is None or not dump.groups:
        return _ABSENT
    return str(max(dump.groups, key=lambda group: len(group.ranks)).called)
