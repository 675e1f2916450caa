"""One run of `gdrtop fleet bench`: read the nodes, show the plan, ask, measure, print."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.rating import Rating
from probes.bandwidth.results.percentiles import Standing
from probes.base.origin import Origin, Source
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.facts.rdma.cable_ends import CableEnd
from probes.fleet.attribution import (
    BelowLimit,
    Crowd,
    Culprit,
    PairMemory,
    PairResult,
    PairsReport,
    attribute,
)
from probes.fleet.collective import Launch, NodeChannels, Outcome, Transport
from probes.fleet.fault_search import Where
from probes.fleet.pairs import PairSettings
from probes.fleet.rails import RailLeaves, check_rails
from tui.actions.guards import no_actions_here
from tui.bandwidth.pairs.pairs_session import (
    NodeLeftOut,
    Nodes,
    PairsEvent,
    PairsPlan,
    PairsSession,
    RoundEnded,
    RoundStarted,
)
from tui.command_line.options import OutputOptions, parsed
from tui.commands.bench.exit_status import EXIT_BELOW, EXIT_NOT_MEASURED, EXIT_NOT_WRITTEN
from tui.commands.bench.output import BenchOutput
from tui.commands.fleet.output import fleet_heading
from tui.files import NotWritten
from tui.files.pair_results import PairResultsFile
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import Changed, document, object_from, object_of
from tui.runtime.signals import signals_stop
from widgets.base.figures import minutes
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.fleet.pairs import answers, culprit_words, draw_left_out, draw_pairs

if TYPE_CHECKING:
    from typing_extensions import NotRequired


# The JSON document of `gdrtop fleet bench`.

_CULPRIT = Annotated[
    Culprit,
    Changed(
        without=("only_gpu_memory", "slow"), node=str | None, nic=str | None, slow_partners=int, text=str
    ),
]
_STANDING = Annotated[Standing, Changed(node=str, nic=str, rail=int, memory=PairMemory, gbps=float, text=str)]
_RESULT = Annotated[
    PairResult,
    Changed(server=str, server_nic=str, client=str, client_nic=str, gbps=float | None, failure=str),
]


class _LeftOut(TypedDict):
    name: str
    reason: str


class _Leaf(TypedDict):
    rail: int
    node: str
    switch: str | None
    switch_port: str | None
    differs: bool  # most other nodes end at another switch
    usual_switch: str | None
    why_unknown: str


class _NcclRun(TypedDict):
    nodes: tuple[str, ...]
    rails: tuple[int, ...]  # () means all
    gpus: int
    outcome: Outcome
    transport: Transport
    why: str
    bus_gbps: float | None  # nccl-tests' busbw, Gb/s
    failure: str
    size_bytes: int | None
    nic_gbps: float | None  # that each NIC carried
    limit_gbps: float | None  # of a node's slowest NIC, nominal
    rating: Rating
    channels: tuple[NodeChannels, ...]
    diagnostics: tuple[str, ...]


class _NcclFault(TypedDict):
    where: Where
    nodes: tuple[str, ...]
    rails: tuple[int, ...]
    others: tuple[str, ...]
    text: str


class _Nccl(TypedDict):
    launch: Launch
    commands: tuple[str, ...]  # of srun and mpirun, that measure the same
    runs: tuple[_NcclRun, ...]
    faults: tuple[_NcclFault, ...]


class FleetBenchDocument(TypedDict):
    """`gdrtop fleet bench --json, with --dry-run`."""

    nodes: tuple[str, ...]  # that take part
    rails: tuple[int, ...]
    memories: tuple[PairMemory, ...]
    duration_seconds: int
    both_ways: bool  # each figure is the sum of both directions
    expected_seconds: float
    answers: NotRequired[tuple[str, ...]]  # what is slow, worst first, in words; or that nothing is
    culprits: NotRequired[tuple[_CULPRIT, ...]]
    many_slow: NotRequired[tuple[Crowd, ...]]
    below_limit: NotRequired[tuple[BelowLimit, ...]]
    unexplained: NotRequired[tuple[_RESULT, ...]]
    # With each memory, the median of what each NIC reaches with its best partner, Gb/s.
    references: NotRequired[Mapping[PairMemory, float]]
    results: NotRequired[tuple[_RESULT, ...]]
    standings: NotRequired[tuple[_STANDING, ...]]  # of what each NIC reaches with its best partner
    left_out: NotRequired[tuple[_LeftOut, ...]]
    rails_left_out: NotRequired[tuple[_LeftOut, ...]]
    leaves: NotRequired[tuple[_Leaf, ...]]
    nccl: NotRequired[_Nccl]  # with --nccl
    exit_status: int
    exit_reason: str  # what decided the exit status, in words


_MEASURED = (
    *("answers", "culprits", "many_slow", "below_limit", "unexplained", "references", "results"),
    *("standings", "left_out", "rails_left_out", "leaves"),
)
FORMS: dict[str, tuple[str, ...]] = {
    "a plan": (),
    "a measurement": _MEASURED,
    "a plan of --nccl": ("nccl",),
    "a measurement of --nccl": ("nccl", "answers", "left_out", "rails_left_out"),
}
"""The fields that each form of the document has, and no other form's."""


def pairs_json(plan: PairsPlan, settings: PairSettings, report: PairsReport | None) -> dict[str, Any]:
    """Return the plan, and with a report what was measured."""
    content: dict[str, Any] = {
        "nodes": list(plan.nodes),
        "rails": list(plan.rails),
        "memories": [memory.value for memory in settings.memories],
        "duration_seconds": settings.duration_s,
        "both_ways": settings.is_bidirectional,
        "expected_seconds": plan.quick_seconds + plan.full_seconds,
    }
    if report is None:
        return content
    attribution = report.attribution
    wrong = {
        tuple(place): end
        for fault in report.cable_faults
        if fault.usual
        for *place, end in zip(fault.nodes, fault.nics, fault.usual, strict=True)
    }
    return content | {
        "answers": [text for text, _ in answers(report)],
        "culprits": [_culprit_json(culprit) for culprit in attribution.culprits],
        **object_of({"many_slow": attribution.crowds, "below_limit": attribution.below_limit}),
        "unexplained": [_result_json(result) for result in attribution.unexplained],
        "references": {memory.value: gbps for memory, gbps in attribution.references.items()},
        "results": [_result_json(result) for result in report.results],
        "standings": [
            object_from(
                standing,
                _STANDING,
                end,
                rail=rail,
                memory=memory.value,
                gbps=gbps,
                text=standing.words("nodes"),
            )
            for (end, rail, memory), (gbps, standing) in report.standings.items()
        ],
        "left_out": [{"name": name, "reason": why} for name, why in report.left_out.items()],
        "rails_left_out": [{"name": name, "reason": why} for name, why in report.rails_left_out.items()],
        "leaves": [leaf for rail in report.leaves for leaf in _leaves_json(rail, wrong)],
    }


def _culprit_json(culprit: Culprit) -> dict[str, Any]:
    return object_from(
        culprit,
        _CULPRIT,
        node=culprit.node or None,
        nic=culprit.nic or None,
        slow_partners=culprit.slow,
        text=culprit_words(culprit),
    )


def _result_json(result: PairResult) -> dict[str, Any]:
    return object_from(
        result,
        _RESULT,
        server=result.server.node,
        server_nic=result.server.nic,
        client=result.client.node,
        client_nic=result.client.nic,
        gbps=known(result.gbps, None),
        failure=result.gbps.detail if isinstance(result.gbps, Unknown) else "",
    )


def _leaves_json(rail: RailLeaves, wrong: Mapping[tuple[str, ...], CableEnd]) -> list[dict[str, Any]]:
    """`wrong`: where the rails of nodes with a cable fault should end."""
    return [
        {
            "rail": rail.rail,
            "node": node,
            "switch": None if isinstance(leaf, Unknown) else leaf.label,
            "switch_port": None if isinstance(leaf, Unknown) else leaf.port,
            "differs": (node, f"rail {rail.rail}") in wrong,
            "usual_switch": usual.label
            if (usual := wrong.get((node, f"rail {rail.rail}"), rail.usual))
            else None,
            "why_unknown": str(leaf) if isinstance(leaf, Unknown) else "",
        }
        for node, leaf in rail.leaves.items()
    ]


def earlier_words(results: int) -> str:
    """Return what is said of the results of an interrupted run."""
    are = "is" if results == 1 else "are"
    used = f"{plural(results, 'result')} of it {are} used (--restart measures all again)"
    return f"an earlier run was interrupted: {used}"


_MEMORIES = {"host": (PairMemory.HOST,), "gpu": (PairMemory.GPU,), "both": (PairMemory.HOST, PairMemory.GPU)}


class FleetBench:
    """The run; `options` are those of tui/commands/fleet/bench.py, with --ascii and --read-only."""

    def __init__(
        self,
        options: argparse.Namespace,
        nodes: Nodes,
        out: TextIO,
        answers: TextIO,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        results_directory: str | None = None,
        unanswered: Mapping[str, str] | None = None,
    ) -> None:
        """`unanswered`: nodes that could not be reached, and why."""
        self._options, self._nodes, self._answers = options, nodes, answers
        self._output = BenchOutput(out, parsed(OutputOptions, options))
        self._width = self._output.width
        self._settings = PairSettings(
            memories=_MEMORIES[options.memory],
            rails=options.rails,
            duration_s=options.seconds,
            is_bidirectional=options.both_ways,
            first_port=options.port,
            one_rail_at_a_time=options.one_rail_at_a_time,
        )
        origins = [host.origin for host, _ in nodes.values()]
        self._origin = origins[0] if origins else Origin(Source.LIVE, "")
        self._file: PairResultsFile | None = None
        if self._origin.source is not Source.SIMULATED or results_directory is not None:
            self._file = PairResultsFile([*nodes, *(unanswered or ())], self._settings, results_directory)
        self._session = PairsSession(nodes, self._settings, self._show, self._file, clock, pause)
        self._session.left_out.update(unanswered or {})
        self._interrupted = ""
        self._has_begun = False
        self._earlier: tuple[tuple[PairResult, ...], ...] = ()

    def run(self) -> int:
        """Read, ask, measure and print; return the exit status."""
        if refusal := self._refusal():
            return self._refuse(refusal)
        self._progress(f"reading {plural(len(self._nodes), 'node')} …")
        self._session.read()
        plan = self._session.plan(self._options.full)
        if len(plan.nodes) < 2:
            return self._refuse(f"a pair needs two nodes, and {plural(len(plan.nodes), 'node')} can measure")
        lines = self._draw_plan(plan)
        if self._options.dry_run:
            self._output.show(lines)
            if self._options.json:
                self._write_json(plan, None, 0, "nothing was run")
            return 0
        self._output.show_on_stderr(lines)
        if not self._may_run():
            return self._refuse("not confirmed; nothing was run (use --yes to run without asking)")
        if self._options.restart and self._file is not None:
            try:
                self._file.complete()
            except NotWritten as error:
                self._output.warn(str(error))
        self._has_begun = True
        self._earlier = () if self._file is None else self._file.earlier()
        with signals_stop(self._interrupt):
            self._session.run(self._options.full)
        return self._print(plan)

    # Before the run

    def _refusal(self) -> str:
        if len(self._nodes) < 2:
            return "a pair needs two nodes"
        for name, (host, _) in self._nodes.items():
            if refusal := no_actions_here(host.origin, self._options.read_only):
                return f"{name}: {refusal}"
        return ""

    def _may_run(self) -> bool:
        if self._options.yes or self._origin.source is Source.SIMULATED:
            return True
        return self._output.ask(self._answers, (), "Run it?")

    def _draw_plan(self, plan: PairsPlan) -> list[Line]:
        rails = plural(len(plan.rails), "rail")
        memories = " and ".join(memory.words for memory in self._settings.memories)
        title = f"{plural(len(plan.nodes), 'node')}, {rails}, {memories}"
        lines: list[Line] = [fleet_heading(len(self._nodes), self._origin)]
        lines += wrapped(title, self._width, Tone.TITLE)
        lines += wrapped(
            f"about {minutes(plan.quick_seconds)} for one round with each node once", self._width
        )
        more = f"at least {minutes(plan.repeat_seconds)} more if nodes are slow and measured again"
        lines += wrapped(more, self._width)
        if plan.full_seconds:
            lines += wrapped(f"about {minutes(plan.full_seconds)} for all pairs", self._width)
        lines += [row for note in plan.notes for row in wrapped(note, self._width)]
        if self._origin.source is Source.SIMULATED:
            lines += wrapped("simulated: the results are made up, and no job is affected", self._width)
        if self._file is not None and not self._options.restart and (earlier := self._file.unfinished()):
            lines += wrapped(earlier_words(len(earlier)), self._width)
        return [*lines, *draw_left_out(self._session.left_out, self._session.rails_left_out, self._width)]

    def _refuse(self, reason: str) -> int:
        lines = draw_left_out(self._session.left_out, self._session.rails_left_out, self._width)
        if self._options.json:
            plan = PairsPlan((), (), 0.0, 0.0, 0.0)
            self._write_json(plan, self._report(plan), EXIT_NOT_MEASURED, reason)
        else:
            self._output.show_on_stderr(lines)
            self._output.warn(f"not measured: {reason}")
        return EXIT_NOT_MEASURED

    # The run

    def _interrupt(self, why: str) -> None:
        self._interrupted = self._interrupted or why
        self._session.stop()

    def _show(self, event: PairsEvent) -> None:
        """Print the progress to stderr."""
        if isinstance(event, RoundStarted):
            count = f"{plural(event.pairs, 'pair')}, {plural(event.tests, 'test')}"
            self._progress(f"[{event.number}] {event.title}: {count} · about {minutes(event.seconds)}")
        elif isinstance(event, RoundEnded):
            failed = sum(isinstance(result.gbps, Unknown) for result in event.results)
            if failed:
                self._progress(f"    {plural(failed, 'test')} failed")
        elif isinstance(event, NodeLeftOut) and self._has_begun:
            self._progress(f"    {event.node} is left out: {event.reason}")

    def _progress(self, text: str) -> None:
        self._output.show_on_stderr([line(Run(text, Tone.DIM))])

    # After the run

    def _report(self, plan: PairsPlan) -> PairsReport:
        session = self._session
        results = tuple(session.results)
        return PairsReport(
            nodes=plan.nodes,
            results=results,
            attribution=attribute(results, not self._options.one_rail_at_a_time),
            left_out=session.left_out,
            rails_left_out=session.rails_left_out,
            leaves=check_rails(session.leaves),
            earlier=self._earlier,
        )

    def _print(self, plan: PairsPlan) -> int:
        report = self._report(plan)
        status, reason = self._exit(report)
        if self._session.not_saved:
            self._output.warn(f"not saved: {self._session.not_saved}")
        for text in self._session.left_behind:
            self._output.warn(text)
        head = fleet_heading(len(self._nodes), self._origin)
        self._output.show([head, *draw_pairs(report, self._width)])
        if self._options.json:
            self._write_json(plan, report, status, reason)
        elif status not in (0, EXIT_BELOW):  # what is slow is printed already
            self._output.warn(reason)
        return status or (EXIT_NOT_WRITTEN if self._output.lost is not None else 0)

    def _exit(self, report: PairsReport) -> tuple[int, str]:
        """Return the exit status and its reason."""
        measured = len(report.results) - report.failed
        if self._interrupted:
            return (
                EXIT_INTERRUPTED,
                f"{self._interrupted}: all ends stopped, {plural(measured, 'test')} completed",
            )
        if not report.results:
            why = next(iter(report.rails_left_out.values()), "no two nodes have a rail in common")
            return EXIT_NOT_MEASURED, f"not measured: {why}"
        if not measured:
            return EXIT_NOT_MEASURED, f"{report.failed} of {plural(len(report.results), 'test')} failed"
        if self._session.left_behind:
            return EXIT_NOT_MEASURED, "a process may still run on a node"
        if not report.attribution.is_clean or report.cable_faults:
            return EXIT_BELOW, answers(report)[0][0]
        if report.left_out or report.rails_left_out:
            nodes, rails = plural(len(report.left_out), "node"), plural(len(report.rails_left_out), "rail")
            return EXIT_NOT_MEASURED, f"{nodes} and {rails} left out"
        return 0, f"{plural(measured, 'test')}, none is slow"

    def _write_json(self, plan: PairsPlan, report: PairsReport | None, status: int, reason: str) -> None:
        content = pairs_json(plan, self._settings, report)
        content["exit_status"], content["exit_reason"] = status, reason
        name = os.uname().nodename
        self._output.write_json(document("fleet-bench", name, self._origin, time.time(), content))
