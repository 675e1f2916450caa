"""One run of `gdrtop fleet bench --nccl`: all-reduce over all nodes, judged by log and line rate."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from typing import Any, TextIO

from probes.base.origin import Source
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.fleet.attribution import PairMemory, PairsReport
from probes.fleet.collective import Launch, Outcome, RingReport, RingResult, launcher_command
from probes.fleet.fault_search import Group
from tui.bandwidth.pairs.nccl_session import NcclSession
from tui.bandwidth.pairs.pairs_session import Nodes, PairsEvent, PairsPlan, RoundStarted
from tui.commands.bench.exit_status import EXIT_BELOW, EXIT_NOT_MEASURED, EXIT_NOT_WRITTEN
from tui.commands.fleet.bench_run import FleetBench, earlier_words, pairs_json
from tui.commands.fleet.output import fleet_heading
from tui.files.pair_results import RingResultsFile
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import document, object_of
from widgets.base.figures import minutes
from widgets.base.lines import Line, Tone, listed, wrapped
from widgets.fleet.collective import draw_ring, fault_words, ring_answers
from widgets.fleet.pairs import draw_left_out


class NcclBench(FleetBench):
    """The run; nodes, guards and confirmation are those of pairs."""

    def __init__(
        self, options: argparse.Namespace, nodes: Nodes, out: TextIO, answers: TextIO, **more: Any
    ) -> None:
        options.memory = PairMemory.GPU.value
        super().__init__(options, nodes, out, answers, **more)
        self._launch = Launch(options.by)
        clock, pause = more.get("clock", time.monotonic), more.get("pause", time.sleep)
        file: RingResultsFile | None = None
        if self._file is not None:
            names = [*nodes, *(more.get("unanswered") or ())]
            file = RingResultsFile(names, self._settings, more.get("results_directory"), f"nccl {options.by}")
        self._file = self._ring_file = file
        self._ring = NcclSession(nodes, self._settings, self._launch, self._show, file, clock, pause)
        self._ring.left_out.update(more.get("unanswered") or {})
        self._session = self._ring

    def _draw_plan(self, plan: PairsPlan) -> list[Line]:
        ring, width = self._ring, self._width
        gpus = sum(len(ring.ring_nodes[name].gpus) for name in plan.nodes)
        rails = plural(len(plan.rails), "rail")
        title = f"all-reduce over {plural(len(plan.nodes), 'node')}, {plural(gpus, 'GPU')}, {rails}"
        lines: list[Line] = [
            fleet_heading(len(self._nodes), self._origin),
            *wrapped(title, width, Tone.TITLE),
        ]
        lines += wrapped(f"about {minutes(plan.quick_seconds)} for all nodes together", width)
        more = f"some {minutes(plan.repeat_seconds)} or more to find the node, NIC or rail if that fails"
        lines += wrapped(more, width)
        lines += wrapped("To run nccl-tests (built with MPI) yourself:", width)
        for command in self._instead(plan):
            lines += listed(f"  {command}", width, hang="      ")
        if self._origin.source is Source.SIMULATED:
            lines += wrapped("simulated: the results are made up, and no job is affected", width)
        if self._ring_file and not self._options.restart and (earlier := self._ring_file.ring_results()):
            lines += wrapped(earlier_words(len(earlier)), width)
        return [*lines, *draw_left_out(ring.left_out, ring.rails_left_out, width)]

    def _instead(self, plan: PairsPlan) -> list[str]:
        """Return the commands that an admin would run instead: only for nodes with equally many GPUs."""
        members = self._ring.members(Group(plan.nodes))
        if not members or len({len(node.gpus) for node in members}) > 1:
            return []
        settings = self._ring.ring_settings
        return [
            shlex.join(launcher_command(members, (), settings, launch))
            for launch in (Launch.SRUN, Launch.MPIRUN)
        ]

    def _show(self, event: PairsEvent) -> None:
        if isinstance(event, RoundStarted):
            self._progress(f"[{event.number}] {event.title} · about {minutes(event.seconds)}")
        else:
            super()._show(event)

    def _ring_report(self, plan: PairsPlan) -> RingReport:
        ring = self._ring
        return RingReport(
            plan.nodes, ring.whole, tuple(ring.ring_results), ring.faults, ring.left_out, ring.rails_left_out
        )

    def _print(self, plan: PairsPlan) -> int:
        report = self._ring_report(plan)
        status, reason = self._ring_exit(report)
        if self._session.not_saved:
            self._output.warn(f"not saved: {self._session.not_saved}")
        for text in self._session.left_behind:
            self._output.warn(text)
        self._output.show([fleet_heading(len(self._nodes), self._origin), *draw_ring(report, self._width)])
        if self._options.json:
            self._write_json(plan, self._report(plan), status, reason)
        elif status not in (0, EXIT_BELOW):
            self._output.warn(reason)
        return status or (EXIT_NOT_WRITTEN if self._output.lost is not None else 0)

    def _ring_exit(self, report: RingReport) -> tuple[int, str]:
        """Return the exit status and its reason."""
        whole, answer = report.whole, ring_answers(report)[0][0]
        if self._interrupted:
            runs = plural(len(report.results), "run")
            return EXIT_INTERRUPTED, f"{self._interrupted}: all ranks stopped, {runs} completed"
        if self._session.left_behind:
            return EXIT_NOT_MEASURED, "a process may still run on a node"
        if report.staged or report.faults or (whole is not None and whole.outcome is Outcome.SLOW):
            return EXIT_BELOW, answer
        if whole is None or whole.outcome is not Outcome.PASSED:
            return EXIT_NOT_MEASURED, answer
        if report.left_out or report.rails_left_out:
            nodes, rails = plural(len(report.left_out), "node"), plural(len(report.rails_left_out), "rail")
            return EXIT_NOT_MEASURED, f"{nodes} and {rails} left out"
        return 0, answer

    def _write_json(self, plan: PairsPlan, report: PairsReport | None, status: int, reason: str) -> None:
        ring = self._ring_report(plan)
        content = pairs_json(plan, self._settings, None)
        content["nccl"] = {
            "launch": self._launch.value,
            "commands": self._instead(plan),
            "runs": [_result_json(result) for result in ring.results],
            "faults": [
                object_of(
                    {
                        "where": fault.where,
                        "nodes": fault.nodes,
                        "rails": fault.rails,
                        "others": fault.others,
                        "text": fault_words(fault, ring),
                    }
                )
                for fault in ring.faults
            ],
        }
        if report is not None:
            content["answers"] = [text for text, _ in ring_answers(ring)]
            for name, left_out in (("left_out", ring.left_out), ("rails_left_out", ring.rails_left_out)):
                content[name] = [{"name": each, "reason": why} for each, why in left_out.items()]
        content["exit_status"], content["exit_reason"] = status, reason
        name = os.uname().nodename
        self._output.write_json(document("fleet-bench", name, self._origin, time.time(), content))


def _result_json(result: RingResult) -> dict[str, Any]:
    return object_of(
        {
            "nodes": result.group.nodes,
            "rails": result.group.rails,
            "gpus": result.gpus,
            "outcome": result.outcome,
            "transport": result.transport,
            "why": result.why,
            "bus_gbps": known(result.bus_gbps, None),
            "failure": result.bus_gbps.detail if isinstance(result.bus_gbps, Unknown) else "",
            "size_bytes": result.size_bytes,
            "nic_gbps": result.nic_gbps,
            "limit_gbps": result.limit_gbps,
            "rating": result.assessment.verdict,
            "channels": result.channels,
            "diagnostics": result.diagnostics,
        }
    )
