"""`gdrtop setup`: the steps from a bare node to a measured GPUDirect RDMA that survives a reboot."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.request import Mode, Request
from probes.base.origin import Source
from probes.base.plan import FileChange, Step
from probes.base.text import did_you_mean, printable
from probes.facts.gpudirect import GdrPath
from probes.facts.node import derivation
from probes.host.protocol import Host
from probes.plans.catalogue import Offer
from probes.setup.situation import situation_rows
from probes.setup.step import REBOOT, SetupStep, StepState
from probes.setup.steps.guide import Guide, read_guide, remaining_plans
from probes.setup.steps.step_list import STEPS
from probes.simulation.host import SimulatedHost
from tui.actions.audit_log import AuditFile, AuditLogFile, MemoryLog
from tui.actions.events import RunOutcome
from tui.actions.manual_steps import as_simulated
from tui.actions.runner import file_commands
from tui.actions.script import script_of_all
from tui.bandwidth.results_store import DiskResultsStore, MemoryResultsStore, ResultsStore, open_results_store
from tui.command_line.arguments import EXIT_REFUSED, UsageError, add_arguments
from tui.commands.do import Do, add_consent_options, confirm_and_run
from tui.files.append_file import objects_of
from tui.files.setup_log import PATH, SKIP, UNSKIP, DiskSetupLog, SetupLog, open_setup_log, remember_boot
from tui.files.xdg import simulated_directory
from tui.runtime.json_values import Changed, node_document, object_from, write_json
from tui.runtime.lock import user_and_day
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading, text_width
from widgets.base.lines import Tone, line, wrapped
from widgets.setup import draw_guide, draw_path_table, draw_step, finished_words

EXIT_NOT_FINISHED = 1
EXIT_NOT_APPLICABLE = 3
_PATHS = {"dmabuf": GdrPath.DMABUF.value, "peermem": GdrPath.PEERMEM.value, "recommended": ""}


class _SetupStep(SetupStep):
    optional: bool  # the node is set up without this step


_COMMAND = Annotated[Step, Changed(only=("why", "argv"), file=str | None)]
StepObject = Annotated[
    _SetupStep, Changed(without=("plan", "test", "is_optional", "is_left_out"), commands=tuple[_COMMAND, ...])
]


class SetupDocument(TypedDict):
    """`gdrtop setup --json`."""

    path: str | None  # chosen, else recommended; null: none can work on this node
    path_by: str  # who chose the path and when; empty: nobody, so it is the recommended one
    recommended: str | None
    reason: str  # why this path is recommended, or why none is
    situation: Mapping[str, str]  # where the node stands, as shown on screen
    steps: tuple[StepObject, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, {"[STEP]": "show one step; without it, list all steps"})
    what = parser.add_mutually_exclusive_group()
    rehearsal = "run the step on a simulated copy of this node and show the expected verdict"
    add_arguments(what, {"--run": "run the step after showing its commands", "--rehearse": rehearsal})
    add_consent_options(parser)
    add_arguments(
        parser,
        {
            "--path": "choose the path; the choice is saved",
            "--skip STEP,…": "skip these steps on this node",
            "--unskip STEP,…": "stop skipping these steps",
        },
        path={"choices": _PATHS},
        skip={"type": _names, "default": ()},
        unskip={"type": _names, "default": ()},
    )
    add_arguments(
        what,
        {
            "--paths": "show what each path requires, and what is missing",
            "--script": "print all remaining commands as a shell script and run nothing",
        },
    )
    add_arguments(what, {"--json": "print the steps as JSON (gdrtop schema setup)"})


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show the setup of the node that the options name, or run one of its steps."""
    if (options.run or options.rehearse) and options.step is None:
        raise UsageError(f"--{'run' if options.run else 'rehearse'} needs a STEP")
    if options.step is not None and (options.paths or options.script or options.json):
        raise UsageError("--paths, --script and --json apply to all steps and take no STEP")
    host = open_host(options)
    if host.origin.source is Source.TREE:
        tree = f"{printable(host.origin.label)} is a directory tree"
        raise UsageError(
            f"{tree}; setup needs a node. Use gdrtop forecast --image DIR --as NODE for an image"
        )
    log, simulated = open_setup_log(host.origin.source is Source.LIVE), None
    if isinstance(host, SimulatedHost):
        simulated = SimulatedSetup(host.origin.label)
        simulated.restore(host)
        log = simulated.log
    return SetupCommand(host, out, log, options, simulated).run(options)


class SetupCommand:
    """`gdrtop setup` on a node that was examined once."""

    def __init__(
        self,
        host: Host,
        out: TextIO,
        log: SetupLog,
        options: argparse.Namespace,
        simulated: SimulatedSetup | None = None,
    ) -> None:
        self._host, self._out, self._log = host, out, log
        self._width, self._simulated = text_width(out), simulated
        actions = None if simulated is None else simulated.actions
        self._do = Do(host, out, ascii_only=options.ascii, read_only=options.read_only, log=actions)
        self._results = open_results_store(host.origin) if simulated is None else simulated.results

    def run(self, options: argparse.Namespace) -> int:
        """Save a choice, show the steps, or run one; return the exit status."""
        names = [definition.id for definition in STEPS]
        for name in filter(None, (*options.skip, *options.unskip, options.step)):
            if name not in names:
                near = did_you_mean(name, names) or ""
                raise UsageError(f"no step {printable(name)!r}{near}")
        guide = self._guide()
        if not guide.choice.has_steps and not options.json:
            return self._show_impossible(guide, options)
        if options.path is not None or options.skip or options.unskip:
            by = user_and_day(self._host.wall_clock())
            if options.path is not None:
                self._log.add(PATH, _PATHS[options.path], by=f"chosen by {by}")
            for name in options.skip:
                self._log.add(SKIP, f"skipped by {by}", name)
            for name in options.unskip:
                self._log.add(UNSKIP, "", name)
            guide = self._guide()
            self._remember_boot(guide)
        if options.json:
            self._write_json(guide)
        elif options.script:
            return self._write_script(guide)
        elif options.step is not None:
            step = guide.step(options.step)
            assert step is not None
            is_run = options.run or options.rehearse
            return self._run_step(guide, step, options) if is_run else self._show_step(step)
        elif options.paths:
            self._do.print([heading(self._do.examination.node), *draw_path_table(guide, self._width)])
        else:
            self._do.print([heading(self._do.examination.node), *draw_guide(guide, self._width)])
            if self._simulated is not None and self._simulated.is_used:
                self._do.print([(), *wrapped(self._simulated.note, self._width, Tone.DIM)])
            following = guide.next_step
            if following is not None and following.id == REBOOT and not self._log.record().boots:
                hint = "Before the reboot, run gdrtop setup reboot --run, so that it can be checked later."
                self._do.print([(), line(hint)])
        if not guide.choice.has_steps:
            return EXIT_NOT_APPLICABLE
        return 0 if guide.is_finished else EXIT_NOT_FINISHED

    def _show_impossible(self, guide: Guide, options: argparse.Namespace) -> int:
        """Say once that no step can help; a choice or a step is refused."""
        if options.step or options.script or options.path is not None or options.skip or options.unskip:
            reason = printable(guide.choice.reason)
            print(f"gdrtop: GPUDirect RDMA cannot work on this node: {reason}", file=sys.stderr)
        else:
            draw = draw_path_table if options.paths else draw_guide
            self._do.print([heading(self._do.examination.node), *draw(guide, self._width)])
        return EXIT_NOT_APPLICABLE

    def _guide(self) -> Guide:
        do = self._do
        results, record = self._results.results(), self._log.record()
        return read_guide(self._host, do.examination, do.judgment.findings, results, record)

    def _remember_boot(self, guide: Guide) -> None:
        """Save that setup changed something in this boot; only showing the steps writes nothing."""
        failure = remember_boot(self._log, guide)
        if failure:
            print(f"gdrtop: the reboot cannot be checked later: {failure}", file=sys.stderr)

    def _show_step(self, step: SetupStep) -> int:
        self._do.print([heading(self._do.examination.node), *draw_step(step, self._width)])
        return 0 if step.is_over else EXIT_NOT_FINISHED

    def _run_step(self, guide: Guide, step: SetupStep, options: argparse.Namespace) -> int:
        if step.state is not StepState.TO_DO:
            message = f"gdrtop: nothing was run; {step.id} is {step.state.value}: {step.reason}"
            print(message, file=sys.stderr)
            if step.can_begin:
                print("To measure again, run gdrtop bench.", file=sys.stderr)
            return 0 if step.state is StepState.DONE else EXIT_REFUSED
        if options.rehearse and step.plan is None:
            print(f"gdrtop: nothing was rehearsed; {step.id} has no commands to rehearse", file=sys.stderr)
            return EXIT_REFUSED
        if not options.rehearse:
            self._remember_boot(guide)
        if step.test is not None and step.test.setup is not Mode.LOOPBACK:
            print(f"gdrtop: nothing was run; name the second node yourself: {step.command}", file=sys.stderr)
            return EXIT_REFUSED
        if step.test is not None:
            return self._measure(step, options)
        if step.plan is None:
            self._show_step(step)
            print(f"gdrtop: nothing was run; no command can complete {step.title!r}", file=sys.stderr)
            return EXIT_REFUSED
        plan = step.plan if self._simulated is None else as_simulated(step.plan)
        offer = Offer(f"setup:{step.id}", step.title, plan)
        if options.rehearse:
            prepared = self._do.prepare(offer)
            return prepared if isinstance(prepared, int) else self._do.rehearse(prepared)
        return confirm_and_run(self._do, offer, options.yes, options.disturb, answers=sys.stdin)

    def _measure(self, step: SetupStep, options: argparse.Namespace) -> int:
        assert step.test is not None
        return measure(self._host, self._out, step.test, options, self._results)

    def _write_script(self, guide: Guide) -> int:
        plans, source = remaining_plans(guide), derivation(self._do.examination.node)
        if not plans:
            scripted = {definition.id for definition in STEPS if definition.is_scripted}
            left = [step.id for step in guide.steps if step.is_open and step.id in scripted]
            if left:
                print(f"gdrtop: no command can complete these steps: {', '.join(left)}", file=sys.stderr)
                return EXIT_REFUSED
            left_over = "only tests, a reboot or the report are left"
            done = finished_words(guide) if guide.is_finished else left_over
            self._out.write(f"#!/bin/sh\n# {source}.\n# Nothing to script: {done} (gdrtop setup)\n")
            return 0
        self._out.write(script_of_all("Set up GPUDirect RDMA", plans, source))
        return 0

    def _write_json(self, guide: Guide) -> None:
        node = self._do.examination.node
        content = object_from(
            guide,
            SetupDocument,
            guide.choice,
            situation=dict(situation_rows(guide.situation)),
            steps=[step_json(step) for step in guide.steps],
        )
        write_json(node_document("setup", node, self._host.wall_clock(), content), self._out)


def measure(host: Host, out: TextIO, test: Request, options: argparse.Namespace, store: ResultsStore) -> int:
    """Run the bandwidth test of a step after asking; return the exit status."""
    from tui.commands.bench import run as bench
    from tui.commands.bench.options import BenchOptions

    wanted = BenchOptions(ascii=options.ascii, request=test, yes=options.yes)
    return bench.command(host, out, wanted, read_only=options.read_only, answers=sys.stdin, store=store)


def step_json(step: SetupStep) -> dict[str, Any]:
    commands = () if step.plan is None else step.plan.steps
    files = [object_from(each, _COMMAND, file=each.file and each.file.path) for each in commands]
    return object_from(step, StepObject, optional=step.is_optional, commands=files)


class SimulatedSetup:
    """What `gdrtop setup` and `gdrtop repair` did to a simulated node, for the next command.

    Choices, results and commands are files below the user's cache directory; without a home directory, they
    are gone when gdrtop ends.
    """

    def __init__(self, name: str) -> None:
        self.directory = simulated_directory(name)
        self.log: SetupLog = SetupLog()
        self.results: ResultsStore = MemoryResultsStore()
        self.actions: AuditFile = MemoryLog()
        if self.directory:
            choices = os.path.join(self.directory, "setup.jsonl")
            self.log = DiskSetupLog(choices, roots=os.path.join(self.directory, "roots.jsonl"))
            self.results = DiskResultsStore(self.directory)
            self.actions = AuditLogFile(os.path.join(self.directory, "actions.jsonl"))

    @property
    def is_used(self) -> bool:
        """Return whether an earlier command left something."""
        return bool(self.directory) and os.path.isdir(self.directory)

    @property
    def note(self) -> str:
        """Return where that is."""
        place = printable(self.directory)
        return f"Simulated: what earlier commands did is in {place}. Remove it to begin again."

    def restore(self, host: SimulatedHost) -> None:
        """Run again what earlier commands ran on the node, and reboot it where they did."""
        for step in _done_steps(self.actions.lines()):
            argv = tuple(word for word in step.get("argv") or () if isinstance(word, str))
            path, text, kept = step.get("file"), step.get("text"), step.get("kept")
            commands: Sequence[tuple[tuple[str, ...], str]] = [(argv, "")] if argv else ()
            if isinstance(path, str) and (text is None or isinstance(text, str)):
                change = FileChange(path, text, kept if isinstance(kept, str) and text is None else "")
                commands = file_commands(host, change, "")
            for command, given in commands:
                host.perform(command, given)


def _done_steps(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the steps that were completed, oldest first; lines that are not gdrtop's are left out."""
    begun: dict[tuple[object, object], dict[str, Any]] = {}
    for entry in objects_of(lines):
        key = (str(entry.get("run")), str(entry.get("step")))
        if entry.get("event") == "step":
            begun[key] = entry
        elif (
            entry.get("event") == "step end"
            and entry.get("outcome") == RunOutcome.DONE.value
            and key in begun
        ):
            yield begun.pop(key)
