"""The suspect of a hung job with several nodes, from what `gdrtop hang` reads on each of them.

A node's own sources are judged there. Compared over all nodes are the dumps of the flight recorder, the ranks
with each other, and the numbers of the ranks: one node knows only its part of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.live.hang.diagnosis import (
    Clue,
    Diagnosis,
    HangFacts,
    Motion,
    SourceState,
    conclude,
    job_clues,
    node_clues,
)
from probes.live.hang.dump_files import FoundDumps
from probes.live.model.activity import SILENT_SECONDS
from probes.live.silence import PairMotion
from probes.nccl.flight_recorder.verdict import verdict_of

_ORDER = ("processes", "hardware", "threads", "RAS", "flight recorder", "ranks", "queue pairs", "NCCL log")
_MOST_SOURCES = 8


def diagnose_nodes(nodes: Mapping[str, HangFacts], unanswered: Mapping[str, str]) -> Diagnosis:
    """Return one page about a job; `nodes` is not empty. `unanswered`: nodes without facts, and why."""
    whole = _whole(nodes, unanswered)
    clues = [] if _repeated(nodes) else list(job_clues(whole, "a node that answered"))
    clues = [_placed(clue, whole) for clue in clues if not (unanswered and clue.source == "processes")]
    for name, facts in nodes.items():
        clues += [_on_node(clue, name) for clue in node_clues(facts, whole.motion)]
    # Sorting is stable, and a driver's thread is sure, other threads are not.
    clues.sort(key=lambda clue: (_ORDER.index(clue.source), not clue.is_sure))
    return conclude(whole, tuple(clues))


def _whole(nodes: Mapping[str, HangFacts], unanswered: Mapping[str, str]) -> HangFacts:
    first = next(iter(nodes.values()))
    ranks = tuple(
        replace(rank, node=name, name=f"{name} {rank.name}" if isinstance(rank.rank, Unknown) else rank.name)
        for name, facts in nodes.items()
        for rank in facts.ranks
    )
    dumps = {dump.rank: dump for facts in nodes.values() for dump in facts.dumps.dumps}
    absent = {rank for facts in nodes.values() for rank in facts.dumps.absent} - dumps.keys()
    return HangFacts(
        job=first.job,
        seconds=min(facts.seconds for facts in nodes.values()),
        silence=_silence(nodes),
        threads=tuple(replace(each, node=name) for name, facts in nodes.items() for each in facts.threads),
        ranks=tuple(sorted(ranks, key=lambda rank: (known(rank.rank, 1 << 30), rank.node, rank.pid))),
        dumps=FoundDumps(tuple(dumps.values()), tuple(sorted(absent))),
        dump_verdict=verdict_of(list(dumps.values())) if dumps else None,
        sources=tuple(_sources(nodes, unanswered)),
        summed_pairs=PairMotion(
            sum(facts.pairs.connected for facts in nodes.values()),
            sum(facts.pairs.moving for facts in nodes.values()),
        ),
        mixes_pairs=len({_is_silent_by_pairs(facts) for facts in nodes.values()}) > 1,
        unread=f"on {plural(len(nodes), 'node')} ({len(unanswered)} more did not answer)"
        if unanswered
        else "",
    )


def _is_silent_by_pairs(facts: HangFacts) -> bool:
    """Return whether only the job's own queue pairs show that it is silent: its NICs carry other traffic."""
    return facts.motion is Motion.SILENT and known(facts.silence, 0.0) < SILENT_SECONDS


def _silence(nodes: Mapping[str, HangFacts]) -> Maybe[float]:
    """Return for how long no NIC of the job has moved data; 0 if a node moves it; unknown if one may.

    Where only its queue pairs show that, NICs carry other traffic, and count only if that is so on all nodes.
    """
    silent: list[float] = []
    by_pairs: list[Maybe[float]] = []
    unknown: Unknown | None = None
    for name, facts in nodes.items():
        if facts.motion is Motion.MOVES:
            return 0.0
        if facts.motion is Motion.UNKNOWN:
            why = facts.silence.detail if isinstance(facts.silence, Unknown) else ""
            unknown = Unknown(Reason.NOT_RECORDED, "rates", f"{name}: {why}")
        elif _is_silent_by_pairs(facts):
            by_pairs.append(facts.silence)
        else:
            silent.append(known(facts.silence, 0.0))
    if unknown is not None:
        return unknown
    silent = silent or [seconds for seconds in by_pairs if not isinstance(seconds, Unknown)]
    return min(silent) if silent else by_pairs[0]


def _sources(nodes: Mapping[str, HangFacts], unanswered: Mapping[str, str]) -> Iterator[SourceState]:
    count = sum(len(facts.ranks) for facts in nodes.values())
    yield SourceState("nodes", f"{plural(count, 'rank')} on {plural(len(nodes), 'node')}")
    if repeated := _repeated(nodes):
        text = (
            f"rank {repeated[0]} occurs more than once, so several jobs have this name and were not compared;"
            " use --job with a scheduler's job ID"
        )
        yield SourceState("ranks", text)
    for name, why in list(unanswered.items())[:_MOST_SOURCES]:
        yield SourceState(name, f"not read: {why}")
    if len(unanswered) > _MOST_SOURCES:
        yield SourceState("nodes", f"{len(unanswered) - _MOST_SOURCES} more were not read")
    by_text: dict[tuple[str, str], list[str]] = {}
    for name, facts in nodes.items():
        for source in facts.sources:
            by_text.setdefault((source.name, source.text), []).append(name)
    grouped = sorted(by_text.items(), key=lambda item: _ORDER.index(item[0][0]))
    for (source_name, text), names in grouped[: 4 * _MOST_SOURCES]:
        some = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
        where = "each node" if len(names) == len(nodes) else ", ".join(some)
        yield SourceState(source_name, f"{text} ({where})")


def _repeated(nodes: Mapping[str, HangFacts]) -> list[int]:
    """Return the numbers that several ranks have: these are several jobs."""
    numbers = Counter(
        rank.rank for facts in nodes.values() for rank in facts.ranks if not isinstance(rank.rank, Unknown)
    )
    return sorted(number for number, count in numbers.items() if count > 1)


def _on_node(clue: Clue, node: str) -> Clue:
    """Return a clue of a node with its name; ranks have their numbers, devices are those of the node."""
    suspects = tuple(name if name.startswith("rank ") else f"{node} {name}" for name in clue.suspects)
    step = f"{node}: {clue.next_step}" if clue.next_step else ""
    return replace(clue, text=f"{node}: {clue.text}", suspects=suspects, next_step=step)


def _placed(clue: Clue, whole: HangFacts) -> Clue:
    """Return a clue about ranks of all nodes, with the node of its suspect before the next command."""
    node = next((rank.node for rank in whole.ranks if rank.name in clue.suspects), "")
    return replace(clue, next_step=f"{node}: {clue.next_step}" if node and clue.next_step else clue.next_step)
