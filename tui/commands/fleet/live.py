"""`gdrtop fleet live`: one job on all of its nodes, rank by rank, and what differs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TextIO, TypedDict

from probes.base.origin import Origin
from probes.base.unknown import Maybe, Unknown, known
from probes.fleet.job import JobWatch
from probes.fleet.job_model import Difference, FleetJob, FleetRank, Silence
from probes.fleet.sampler import Begun, FleetSampler
from probes.host.protocol import Host
from probes.live.model.sample import GDR_WORDS, PathWord
from tui.command_line.arguments import UsageError, add_arguments, add_job_option, duration
from tui.commands.fleet.output import NO_NODE, common_origin, fleet_heading
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import (
    Changed,
    ExitStatus,
    Time,
    document,
    object_from,
    time_json,
    write_json_line,
)
from tui.runtime.printing import print_lines, text_width
from widgets.fleet.job import MOST_ROWS, draw

DEFAULT_SECONDS = 12  # rates are compared over 10 s
_MOST_SECONDS = 24 * 3600
_FIRST_WAIT_SECONDS = 10.0  # the first sample reads the whole node
_WAIT_SECONDS = 1.0


class _RankName(TypedDict):
    node: str
    pid: int


_DIFFERENCE = Annotated[
    Difference,
    Changed(
        aspect=Literal["state", "path", "nics", "gpu", "rail", "node", "rate", "link", "place", "cpus"],
        ranks=tuple[_RankName, ...],
    ),
]
_RANK = Annotated[
    FleetRank,
    Changed(
        without=("process",),
        rank=Maybe[int],
        pid=int,
        nics=tuple[str, ...],
        path=PathWord,
        is_likely=bool,
        path_text=str,
        state=Maybe[str],
    ),
]
_SILENCE = Annotated[Silence, Changed(without=("at", "standstill"), time=Time | None, waits=bool | None)]


class FleetLiveDocument(TypedDict):
    """`gdrtop fleet live --json, one line a second`."""

    node: Maybe[None]  # the document is about several nodes
    # 0 all ranks use GPUDirect RDMA and none differs, 1 something differs, 2 no rank uses it, 3 unknown.
    exit_status: ExitStatus
    job: str | None  # slurm:4711, or the name of the job where no scheduler is known; null: no such job
    name: str
    world_size: Maybe[int]
    missing_ranks: str  # that no node shows: 8-15
    gbps: Maybe[float]  # through all ports of the job
    ranks: tuple[_RANK, ...]
    differences: tuple[_DIFFERENCE, ...]
    silence: _SILENCE | None
    notes: tuple[str, ...]
    absent: Mapping[str, str]  # nodes without a rank of the job, and why
    unanswered: Mapping[str, str]  # nodes that do not answer, and why
    other_jobs: tuple[str, ...]  # names of further NCCL jobs on these nodes
    watched_seconds: float


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job_option(parser, "the NCCL job with the most ranks")
    add_arguments(
        parser,
        {
            "--seconds TIME": f"number of samples, one a second, 2 to {_MOST_SECONDS} (default: "
            f"{DEFAULT_SECONDS})",
            "--follow": "print the job whenever something changes, until Ctrl-C",
            "--all": "list every rank of a large job",
            "--json": "print one JSON object per second, one per line (gdrtop schema fleet-live)",
        },
        seconds={"type": duration(2, _MOST_SECONDS)},
    )


def run(
    options: argparse.Namespace,
    hosts: Mapping[str, Host],
    unanswered: Mapping[str, str],
    out: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
    wall: Callable[[], float] = time.time,
    begun: Begun | None = None,
) -> int:
    """Print the job that runs on these nodes, and return the exit status.

    `hosts`: by the name of the node; each is asked from a thread of its own, one question at a time.
    `unanswered`: nodes that could not be reached, and why. Other threads may move nodes from here to `hosts`.
    `begun`: what has read nodes when they were reached.
    """
    if options.follow and options.seconds is not None:
        raise UsageError("--follow and --seconds cannot be used together")
    out = sys.stdout if out is None else out
    most_rows = sys.maxsize if options.all else MOST_ROWS
    seconds = None if options.follow else options.seconds or DEFAULT_SECONDS
    latest: FleetJob | None = None
    printed: object = None

    def print_job(job: FleetJob) -> None:
        head = fleet_heading(len(hosts) + len(unanswered), origin)
        print_lines([head, *draw(job, text_width(out), most_rows)], out, options.ascii)
        out.flush()

    origin = common_origin([host.origin for host in hosts.values()])
    sampler = FleetSampler(hosts, clock, wall, begun)
    try:
        for latest in _rounds(options.job, seconds, sampler, hosts, unanswered, clock, wait):
            if options.json:
                write_json_line(job_json(latest, origin, wall()), out)
            elif options.follow and (state := _state(latest)) != printed:
                if printed is not None:
                    print_lines([()], out, options.ascii)
                print_job(latest)
                printed = state
    except KeyboardInterrupt:
        if latest is not None and not options.json and not options.follow:
            print_job(latest)
        return EXIT_INTERRUPTED
    if latest is None:
        return 3
    if not options.json and not options.follow:
        print_job(latest)
    return exit_status(latest)


def _rounds(
    wanted: str,
    seconds: int | None,
    sampler: FleetSampler,
    hosts: Mapping[str, Host],
    unanswered: Mapping[str, str],
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> Iterator[FleetJob]:
    """Yield the job once a second; the first time when all nodes have answered, or after ten seconds."""
    watch = JobWatch(wanted)
    answered: set[str] = set()
    count = 0
    while seconds is None or count < seconds:
        began = clock()
        seen, late = sampler.read(_WAIT_SECONDS if count else _FIRST_WAIT_SECONDS)
        answered |= seen.keys()
        slow = {name: "still reading the node" for name in dict(hosts) if name not in answered}
        yield watch.add(clock(), seen, {**slow, **late, **dict(unanswered)})
        count += 1
        if not hosts:
            return
        if seconds is None or count < seconds:
            wait(max(0.0, began + 1.0 - clock()))


def _state(job: FleetJob) -> object:
    """Return the job without its figures."""
    return (
        job.id,
        [(rank.key, rank.process.path_text, rank.process.ready_nics) for rank in job.ranks],
        [(odd.aspect, odd.subject) for odd in job.differences],
        job.silence is None or job.silence.waits,
        job.missing_ranks,
        sorted(job.unanswered),
    )


def exit_status(job: FleetJob) -> int:
    """Return the status as --help describes it."""
    words = [rank.process.path.word for rank in job.ranks]
    if not words or all(word is PathWord.UNKNOWN for word in words):
        return 3
    if not any(word in GDR_WORDS or word is PathWord.UNKNOWN for word in words):
        return 2
    waits = False if job.silence is None else job.silence.waits
    if job.differences or waits is True or any(word not in (*GDR_WORDS, PathWord.UNKNOWN) for word in words):
        return 1
    is_unknown = isinstance(waits, Unknown) or bool(job.unanswered or job.missing_ranks)
    return 3 if is_unknown or PathWord.UNKNOWN in words else 0


def job_json(job: FleetJob, origin: Origin, at: float) -> dict[str, Any]:
    """Return the JSON document of one moment; `at`: seconds since 1970."""
    silence = job.silence
    content = object_from(
        job,
        FleetLiveDocument,
        exit_status=exit_status(job),
        job=job.id or None,
        ranks=[_rank_json(rank) for rank in job.ranks],
        differences=[
            object_from(odd, _DIFFERENCE, ranks=[{"node": node, "pid": pid} for node, pid in odd.ranks])
            for odd in job.differences
        ],
        silence=None
        if silence is None
        else object_from(silence, _SILENCE, time=time_json(silence.at), waits=known(silence.waits, None)),
    )
    return document("fleet-live", NO_NODE, origin, at, content)


def _rank_json(rank: FleetRank) -> dict[str, Any]:
    process = rank.process
    path = process.path
    return object_from(
        rank, _RANK, process, path, nics=process.ready_nics, path=path.word, path_text=process.path_text
    )


def demo_hosts(demo: str, count: int, seed: int = 0) -> dict[str, Host]:
    """Return simulated nodes with one job over them, by host name; faults after a "+" are on the second node.

    Inference engines are on all nodes, prefill and decode in turn.

    `demo`: as for `--demo`, already checked: "hgx-h100", "hgx-h100+nic-slow".
    """
    from probes.simulation.faults.catalogue import faults_of
    from probes.simulation.host import job_nodes

    name, _, faults = demo.partition("+")
    is_everywhere = any(fault.is_everywhere for fault in faults_of(faults))
    faulty = range(count) if is_everywhere else (min(1, count - 1),)
    return dict(job_nodes(name, count, dict.fromkeys(faulty, faults) if faults else {}, seed))
