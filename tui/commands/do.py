"""`gdrtop do`: the actions without a screen, with the list, guards and audit log of the dashboard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, TypedDict

from probes.base.origin import Source
from probes.base.plan import NothingToDo
from probes.base.text import did_you_mean, printable
from probes.checks.judgment import judge
from probes.host.protocol import Host
from probes.plans.catalogue import Offer
from probes.queries.finding import Status
from tui.actions.audit_log import AuditError, AuditFile
from tui.actions.dispatcher import Dispatcher, Prepared
from tui.actions.events import RunEvent, RunOutcome, lines_of
from tui.actions.local_commands import ask_for_password
from tui.actions.manual_steps import why_manual
from tui.actions.script import script_of
from tui.command_line.arguments import EXIT_REFUSED, UsageError, add_arguments
from tui.commands.check import examine_host
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import StepObject, node_document, object_from, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import has_width, heading, print_lines, text_width
from tui.runtime.signals import TERMINAL_GONE, signals_stop
from tui.screens.confirm import draw_warnings, not_run
from widgets.base.figures import local_time
from widgets.base.lines import Line, Run, Tone, line, wrapped
from widgets.doctor.changes import draw_change, draw_rehearsal
from widgets.doctor.findings import title_of
from widgets.doctor.plan import draw_consequences, draw_steps, offer_text, step_groups

if TYPE_CHECKING:
    from typing_extensions import NotRequired


EXIT_FAILED = 1  # a step failed, or its outcome is unknown
_STATUSES = {
    RunOutcome.DONE: 0,
    RunOutcome.LEFT: 0,
    RunOutcome.REFUSED: EXIT_REFUSED,
    RunOutcome.STOPPED: EXIT_INTERRUPTED,
}


class _Action(TypedDict):
    id: str
    title: str
    possible: bool
    done: bool  # nothing is left to do; why_not says what is there already
    steps: tuple[StepObject, ...]
    why_not: NotRequired[str]  # why the action is not possible on this node


class DoDocument(TypedDict):
    """`gdrtop do --list --json`."""

    actions: tuple[_Action, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "[ACTION]": "the action to run; without it, list the actions",
            "--list": "list all actions, one per line",
            "--json": "print the list as JSON (gdrtop schema do)",
            "--dry-run": "show the plan and run nothing",
            "--script": "print the plan as a shell script and run nothing",
            "--rehearse": "run the plan on a simulated copy of this node and show the expected verdict",
            "--measure": "measure the affected GPU and NIC before and after, and log the difference",
        },
    )
    add_consent_options(parser)


def add_consent_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that stand for the answers to a confirmation."""
    helps = {
        "--yes": "run without asking for confirmation",
        "--disturb HOST": "run even if it affects jobs or the network; HOST must be this node's host name",
    }
    add_arguments(parser, helps, disturb={"default": ""})


def run(options: argparse.Namespace, out: TextIO) -> int:
    """List the actions of the node that the options name, or run one."""
    if options.rehearse and (options.action is None or options.script or options.dry_run):
        raise UsageError("--rehearse needs an ACTION, and cannot be used with --script or --dry-run")
    if options.action is not None and (options.list or options.json):
        raise UsageError("--list and --json list all actions and take no ACTION")
    if options.measure and (options.action is None or options.script or options.rehearse or options.dry_run):
        raise UsageError("--measure needs an ACTION that runs: not with --script, --rehearse or --dry-run")
    do = Do(open_host(options), out, ascii_only=options.ascii, read_only=options.read_only)
    if options.action is None:
        return do.list(options.json)
    offer = do.offer(options.action)
    if offer is None:
        hint = did_you_mean(options.action, do.actions) or "; gdrtop do --list lists them"
        raise UsageError(f"no action {options.action!r} on this node{hint}")
    if not options.script and not options.rehearse:
        return confirm_and_run(
            do,
            offer,
            options.yes,
            options.disturb,
            answers=sys.stdin,
            dry_run=options.dry_run,
            measure=options.measure,
        )
    prepared = do.prepare(offer, options.script)
    if isinstance(prepared, int):
        return prepared
    if options.rehearse:
        return do.rehearse(prepared)
    out.write(script_of(prepared.plan, prepared.source))
    return 0


class Do:
    """`gdrtop do` on a node that was examined once."""

    def __init__(
        self, host: Host, out: TextIO, *, ascii_only: bool, read_only: bool, log: AuditFile | None = None
    ) -> None:
        self._host, self._out, self._ascii, self._read_only = host, out, ascii_only, read_only
        self._width = text_width(out)
        self._dispatcher = Dispatcher(host, read_only, log)
        self.examination = examine_host(host)
        self.judgment = judge(self.examination)

    @property
    def actions(self) -> tuple[str, ...]:
        """Every action that is listed, also those that are not possible."""
        return tuple(offer.id for offer in self._dispatcher.offers(self.examination, self.judgment.findings))

    def list(self, as_json: bool) -> int:
        """Print one action a line: whether it is possible, its id, and its title or why not."""
        every = self._dispatcher.offers(self.examination, self.judgment.findings)
        offers = sorted(every, key=lambda offer: offer.plan is None)  # possible actions first
        if as_json:
            content = {"actions": [_offer_json(offer) for offer in offers]}
            node = self.examination.node
            write_json(node_document("do", node, self._host.wall_clock(), content), self._out)
            return 0
        self._print([heading(self.examination.node)])
        cells = max(len(offer.id) for offer in offers)
        for offer in offers:
            mark = Run("▸", Tone.GOOD) if offer.plan else Run("–", Tone.DIM)
            head = line(mark, f" {offer.id:<{cells}}  ")
            # In a pipe one line is one action, for grep.
            text = offer_text(offer)
            texts = wrapped(text, self._width - cells - 4) if has_width(self._out) else [line(text)]
            blank = line(" " * (cells + 4))
            self._print([(*(blank if number else head), *part) for number, part in enumerate(texts)])
        return 0

    def offer(self, name: str) -> Offer | None:
        """Return the action of this name; None if this node has none."""
        offers = self._dispatcher.offers(self.examination, self.judgment.findings)
        return next((offer for offer in offers if offer.id == name), None) or self._unlisted_fix(name)

    def _unlisted_fix(self, name: str) -> Offer | None:
        """Return the fix of a check that has none to offer: there is no finding, or no command for it."""
        checks = {f"fix:{finding.id}": finding for finding in self.judgment.findings}
        finding = checks.get(name)
        if finding is None:
            return None
        no_command = (
            f"no command fixes this; try fix:{finding.part_of}, which has the same cause"
            if finding.part_of
            else "no command fixes this"
        )
        why = {
            Status.PASSED: NothingToDo(f"{title_of(finding)}, or the check does not apply"),
            Status.UNKNOWN: f"the check could not run: {finding.cause}",
            Status.FOUND: no_command,
            Status.SILENCED: no_command,
        }[finding.status]
        return Offer(name, f"Fix: {finding.problem}", None, why)

    def prepare(self, offer: Offer, script: bool = False) -> Prepared | int:
        """Return the plan, or the exit status if there is none."""
        prepared = self._dispatcher.prepared(offer, self.examination)
        if not isinstance(prepared, str):
            return prepared
        if offer.is_done:
            done = f"{offer.title}: nothing is left to do; {prepared}"
            if script:
                self._out.write(f"#!/bin/sh\n# {done}\n")
            else:
                self._print([heading(self.examination.node), *wrapped(done, self._width)])
            return 0
        print(f"gdrtop: nothing was run: {printable(prepared)}", file=sys.stderr)
        return EXIT_REFUSED

    def show(self, prepared: Prepared) -> None:
        """Show a plan and its warnings."""
        width = self._width
        lines: list[Line] = [heading(self.examination.node), line(Run(prepared.title, Tone.TITLE))]
        lines += draw_consequences(prepared.plan, width, bool(prepared.clearance.affected))
        lines += draw_steps(prepared.plan, width)
        for step in prepared.plan.steps:
            why = why_manual(step, prepared.plan.is_simulated)
            if why and not step.is_instruction:
                first = f"run {step.argv[0]} or" if step.argv else f"{step.command} or run"
                lines += wrapped(f"gdrtop does not {first} the steps after it: {why}", width)
                break
        if any(len(steps) > 1 for steps in step_groups(prepared.plan.steps)):
            lines += wrapped("--script prints every step", width)
        if prepared.clearance.refused:
            lines += wrapped(not_run(prepared.clearance), width)
        lines += draw_warnings(prepared.clearance, width)
        self._print(lines)

    def confirm(self, prepared: Prepared, yes: bool, named: str, answers: TextIO | None) -> str | None:
        """Return what was typed; None: not confirmed. Without an option, ask on the terminal."""
        clearance = prepared.clearance
        terminal = answers is not None and answers.isatty()
        if clearance.word:
            if named or not terminal:
                return named or None
            return self._ask(f"Type the host name ({clearance.word}) to run it: ", answers)
        if yes:
            return ""
        if terminal and self._ask("Run it? [y/N] ", answers).lower() in ("y", "yes"):
            return ""
        return None

    def _ask(self, question: str, answers: TextIO | None) -> str:
        assert answers is not None
        self._out.write(question)
        self._out.flush()
        return answers.readline(4096).strip()

    def run(self, prepared: Prepared, typed: str) -> int:
        """Run it, print the events, check the node again, and return the exit status."""
        with signals_stop(self._dispatcher.stop, self._dispatcher.abandon_step):
            ended = self._dispatcher.run(prepared, typed, self._on_event, self._get_password)
        if ended.outcome is not RunOutcome.REFUSED:
            self._show_change()
        return _STATUSES.get(ended.outcome, EXIT_FAILED)

    def run_and_measure(self, prepared: Prepared, typed: str, yes: bool) -> int:
        """Run it between two bandwidth tests of the affected pair, and log what they show.

        `yes`: the tests may affect running jobs without another question.
        """
        from tui.bandwidth.results_store import open_results_store
        from tui.commands.bench.options import BenchOptions
        from tui.commands.bench.proof import affected_pair, difference, measured

        found = (item for item in self.judgment.findings if f"fix:{item.id}" == prepared.action)
        devices = next((finding.devices for finding in found), ())
        request = affected_pair(self.examination, prepared.plan, devices)
        options = BenchOptions(ascii=self._ascii, request=request, yes=yes)
        store = open_results_store(self._host.origin)
        measure = partial(measured, self._host, self._out, options, store, self._read_only)
        before = measure()
        status = self.run(prepared, typed)
        if status:
            return status
        text = difference(before, measure())
        when = local_time(self._host.wall_clock(), "%Y-%m-%d %H:%M %Z")
        ticket = f"For a ticket: {prepared.node}, {when}, {prepared.title}: {text}"
        self._print([(), *wrapped(text, self._width, Tone.TITLE), (), line(ticket)])
        try:
            self._dispatcher.note_measured(prepared.action, text)
        except AuditError as error:
            print(f"gdrtop: the difference was not logged: {error}", file=sys.stderr)
        return status

    def rehearse(self, prepared: Prepared) -> int:
        """Run the plan on a twin of the node, and show what to expect; the node stays as it is."""
        from tui.actions.rehearsal import rehearse

        if not (self._host.origin.is_running or self._host.origin.source is Source.SIMULATED):
            self._print([line("A rehearsal needs the running node, not --root or --replay.")])
            return EXIT_REFUSED
        self.show(prepared)
        self._print([()])
        rehearsed = rehearse(self._host, self.examination, prepared.action, prepared.plan, self._on_event)
        now, then = self.judgment, rehearsed.judgment
        self._print([(), *draw_rehearsal(now, then, rehearsed.not_rehearsed, self._width)])
        return _STATUSES.get(rehearsed.ended.outcome, EXIT_FAILED)

    def _on_event(self, event: RunEvent) -> None:
        try:
            self._print(lines_of(event, self._width))
            self._out.flush()
        except OSError:  # the terminal is gone; the current step still ends and is logged
            self._dispatcher.stop(TERMINAL_GONE)

    def _get_password(self) -> bool:
        return sys.stdin is not None and sys.stdin.isatty() and ask_for_password()

    def _show_change(self) -> None:
        """Check the node again and show what has changed."""
        before = self.judgment
        self.examination = examine_host(self._host, before=self.examination)
        self.judgment = judge(self.examination)
        change = draw_change(before, self.judgment, self._width)
        try:
            self._print([(), *change])
        except OSError:
            return

    def _print(self, lines: Sequence[Line]) -> None:
        print_lines(lines, self._out, self._ascii)


def _offer_json(offer: Offer) -> dict[str, Any]:
    steps = [] if offer.plan is None else [object_from(step, StepObject) for step in offer.plan.steps]
    state = {"possible": offer.plan is not None, "done": offer.is_done, "steps": steps}
    fields = object_from(offer, _Action, **state)
    return fields if offer.plan is None else {name: fields[name] for name in fields if name != "why_not"}


def confirm_and_run(
    do: Do,
    offer: Offer,
    yes: bool,
    named: str,
    answers: TextIO | None,
    dry_run: bool = False,
    measure: bool = False,
) -> int:
    """Show an action, ask for confirmation, run it, and return the exit status."""
    prepared = do.prepare(offer)
    if isinstance(prepared, int):
        return prepared
    do.show(prepared)
    if dry_run:
        return 0
    if prepared.clearance.refused:
        return EXIT_REFUSED
    typed = do.confirm(prepared, yes, named, answers)
    if typed is None:
        how = f"--disturb {prepared.clearance.word}" if prepared.clearance.word else "--yes"
        print(f"gdrtop: nothing was run; confirm with {how}", file=sys.stderr)
        return EXIT_REFUSED
    return do.run_and_measure(prepared, typed, yes or bool(named)) if measure else do.run(prepared, typed)
