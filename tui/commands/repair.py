"""`gdrtop repair`: take a node out of service, fix it, and return it when it is proved."""

from __future__ import annotations

import argparse
import os
import sys
from itertools import takewhile
from typing import Any, TextIO, TypedDict

from probes.acceptance.certificate import certificate_of, serials_of
from probes.acceptance.profile import SHIPPED, shipped
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import judge
from probes.checks.new_jobs import Action, rows_against_jobs, rows_of
from probes.facts.node import host_name
from probes.host.protocol import Host
from probes.host.values import BOOT_ID
from probes.plans.catalogue import Offer
from probes.queries.jobs import without_jobs
from probes.repair.runbook import ACT, DRAIN, RETURN, PastRuns, RepairFacts, Runbook, runbook_of
from probes.repair.scheduler import scheduler_of
from probes.setup.situation import choose_path, read_situation
from probes.setup.step import SetupRecord, SetupStep, StepState
from probes.simulation.host import SimulatedHost
from probes.slurm.slurm_node import LEADER, REPAIR_LEADER
from tui.actions.dispatcher import Dispatcher
from tui.actions.guards import node_name
from tui.actions.manual_steps import as_simulated
from tui.bandwidth.results_store import open_results_store
from tui.command_line.arguments import EXIT_REFUSED, UsageError, add_arguments
from tui.commands.consumers.contracts import slurm_reason
from tui.commands.do import Do, add_consent_options, confirm_and_run
from tui.commands.report import earlier_of
from tui.commands.setup import EXIT_NOT_FINISHED, SimulatedSetup, StepObject, measure, step_json
from tui.runtime.json_values import node_document, object_of, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, text_width
from widgets.base.lines import Tone, wrapped
from widgets.setup import draw_runbook, draw_step

_BY_SLURMD = ("drain",)  # the action of prolog and health check
_MOST_TEXT = 120
_NO_STATE = Unknown(Reason.NOT_THERE, "sinfo", "no scheduler was found on this node")


class RepairDocument(TypedDict):
    """`gdrtop repair --json`."""

    scheduler: str | None  # Slurm or Kubernetes; null: neither was found on the node
    state: Maybe[str]  # of the node, in the scheduler's word
    reason: str  # why it is repaired, as Slurm has it; empty: there is nothing to repair
    next: str | None  # id of the step that comes next
    steps: tuple[StepObject, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, {"[NODE]": "the node, as with --host; without it, this one"})
    add_arguments(
        parser.add_mutually_exclusive_group(),
        {
            "--next": "do the next steps, each after showing its commands and asking; with --yes, one step",
            "--json": "print the steps as JSON (gdrtop schema repair)",
        },
    )
    add_consent_options(parser)
    texts = {
        "--reason TEXT": "why the node is drained, where gdrtop sees nothing wrong",
        "--certificate OLD.json": "compare with this certificate before the node returns",
        "--anyway WHY": "let the node return although steps are open; WHY is logged",
    }
    add_arguments(parser, texts, **{name: {"default": ""} for name in ("reason", "certificate", "anyway")})


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show where the repair of a node stands, or do its next step."""
    if options.node:
        if options.host or options.demo is not None:
            raise UsageError("NODE is short for --host NODE; name one node")
        here = os.uname().nodename
        options.host = "" if options.node in (here, here.partition(".")[0]) else options.node
    host = open_host(options)
    if not host.origin.is_running and host.origin.source is not Source.SIMULATED:
        raise UsageError("repair needs a running node; --root and --replay have none")
    return RepairCommand(host, out, options).run()


class RepairCommand:
    """`gdrtop repair` on a node that is examined once, and again after each step."""

    def __init__(
        self, host: Host, out: TextIO, options: argparse.Namespace, answers: TextIO | None = None
    ) -> None:
        self._answers = sys.stdin if answers is None else answers
        self._host, self._out, self._options, self._width = host, out, options, text_width(out)
        self._earlier = earlier_of(options.certificate)
        self._simulated = None
        if isinstance(host, SimulatedHost) and host.origin.source is Source.SIMULATED:
            self._simulated = SimulatedSetup(host.origin.label)
            self._simulated.restore(host)
        self._log = None if self._simulated is None else self._simulated.actions
        simulated = self._simulated
        self._results = open_results_store(host.origin) if simulated is None else simulated.results
        self._do = Do(host, out, ascii_only=options.ascii, read_only=options.read_only, log=self._log)

    def run(self) -> int:
        """Show where the repair stands, or do its next step; return the exit status."""
        runbook = self._read()
        if self._options.json:
            write_json(self._document(runbook), self._out)
        elif self._options.next:
            return self._go_on(runbook)
        else:
            self._show(runbook)
        return 0 if runbook.is_finished else EXIT_NOT_FINISHED

    def _read(self) -> Runbook:
        host, do, options = self._host, self._do, self._options
        examination, situation = do.examination, read_situation(host, do.examination)
        past = self._past_runs(node_name(examination))
        is_live = host.origin.source is Source.LIVE
        since = max(past.acted_at, host.wall_clock() - host.monotonic() if is_live else 0.0)
        name = host_name(examination.node)
        own = [result for result in self._results.results() if result.node == name]
        judgment = judge(without_jobs(examination))
        rows = tuple(row for row in rows_of(judgment, {}) if row.action is not Action.NONE)
        worst = slurm_reason(rows_against_jobs(judgment, {}), judgment.verdict)
        choice, certificate = choose_path(examination), None
        if self._earlier is not None:
            profile, serials = shipped(SHIPPED[0]), serials_of(host)
            certificate = certificate_of(profile, examination, do.judgment, own, serials, self._earlier)
        facts = RepairFacts(
            situation=situation,
            choice=choice,
            path=None if choice.is_impossible else choice.recommended,
            findings={finding.id: finding for finding in do.judgment.findings},
            results=[result for result in own if result.taken_at >= since],
            record=SetupRecord(),
            boot_id=host.read(BOOT_ID),
            scheduler=scheduler_of(host, situation),
            judgment=judgment,
            rows=rows,
            worst=worst.replace(LEADER, REPAIR_LEADER, 1),
            past=past,
            is_local=host.origin.source is not Source.REMOTE,
            certificate=certificate,
            earlier=self._earlier,
            given=_text(options.reason, REPAIR_LEADER),
            anyway=_text(options.anyway),
        )
        return runbook_of(facts)

    def _past_runs(self, node: str) -> PastRuns:
        """Return what the log says of the repair that has not ended."""
        every, _ = Dispatcher(self._host, True, self._log).history()
        own = [run for run in every if run.actor.host == node and run.outcome.is_success]
        runs = [
            run
            for run in takewhile(lambda run: run.action != RETURN, own)
            if run.action in (DRAIN, ACT, *_BY_SLURMD)
        ]
        texts = (run.title.partition(f"({REPAIR_LEADER}") for run in reversed(runs))
        return PastRuns(
            reason=next((f"{REPAIR_LEADER}{text.removesuffix(')')}" for _, mark, text in texts if mark), ""),
            acted_at=max((run.at for run in runs), default=0.0),
            has_drained=any(run.action == DRAIN for run in runs),
            boots=frozenset(run.actor.boot_id for run in runs if run.action == ACT),
        )

    def _show(self, runbook: Runbook) -> None:
        lines = [heading(self._do.examination.node), *draw_runbook(runbook, self._width)]
        if self._simulated is not None and self._simulated.is_used:
            lines += [(), *wrapped(self._simulated.note, self._width, Tone.DIM)]
        self._do.print(lines)

    def _go_on(self, runbook: Runbook) -> int:
        """Do one step after the other while each can be done and is confirmed; a test is not asked for."""
        step = runbook.next_step
        if step is None:
            self._show(runbook)
            return 0
        while not (status := self._run_step(step)):
            runbook = self._read()
            self._do.print([(), *draw_runbook(runbook, self._width)])
            step = runbook.next_step
            is_asked = not self._options.yes and self._answers.isatty()
            if not is_asked or step is None or step.state is not StepState.TO_DO or step.plan is None:
                break
        return status

    def _run_step(self, step: SetupStep) -> int:
        if step.state is StepState.TO_DO and step.test is not None:
            return measure(self._host, self._out, step.test, self._options, self._results)
        if step.state is StepState.TO_DO and step.plan is not None:
            plan = step.plan if self._simulated is None else as_simulated(step.plan)
            offer, options = Offer(f"repair:{step.id}", plan.title, plan), self._options
            return confirm_and_run(self._do, offer, options.yes, options.disturb, self._answers)
        self._do.print([heading(self._do.examination.node), *draw_step(step, self._width, can_skip=False)])
        print(f"gdrtop: nothing was run: {step.title} is {step.state.value}", file=sys.stderr)
        return EXIT_REFUSED

    def _document(self, runbook: Runbook) -> dict[str, Any]:
        scheduler, step = runbook.facts.scheduler, runbook.next_step
        content: dict[str, object] = {
            "scheduler": None if scheduler is None else scheduler.name,
            "state": _NO_STATE if scheduler is None else scheduler.state,
            "reason": runbook.facts.reason,
            "next": None if step is None else step.id,
            "steps": [step_json(each) for each in runbook.steps],
        }
        node = self._do.examination.node
        return node_document("repair", node, self._host.wall_clock(), object_of(content))


def _text(given: str, leader: str = "") -> str:
    """Return a text of the command line, as one line for Slurm and the log."""
    text = printable(given.strip(), _MOST_TEXT)
    return f"{leader} {text}" if text and leader else text
