"""`gdrtop prove`: register the memory of GPUs with NICs for a moment; nothing is sent."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TextIO, TypedDict

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.node_settings import NoSuchDevice, bdf_of
from probes.bandwidth.prove import GpuTrial, Outcome, PairResult, plan_registration
from probes.base.origin import Source
from probes.base.text import plural
from probes.host.protocol import Host
from probes.queries.unproven_paths import OVER_C2C
from probes.snapshot.examination import examine
from tui.bandwidth.prove.session import RegistrationSession
from tui.command_line.arguments import EXIT_WRONG_USAGE
from tui.command_line.options import OutputOptions, parsed
from tui.commands.bench.output import BenchOutput
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import Changed, node_document, object_from
from tui.runtime.open_host import open_host
from tui.runtime.printing import heading
from tui.runtime.signals import signals_stop
from widgets.bandwidth.prove import NOT_PROVEN, NOTICE, SIMULATED, draw_results, draw_users, gpu_line
from widgets.base.lines import Line, Tone, line, sentence, wrapped

EXIT_REFUSED, EXIT_NOT_PROVEN = 1, 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="N", help="only this GPU, by index or PCI address (default: all)")
    parser.add_argument("--nic", metavar="DEV", help="only this NIC (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be tried; run nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask: also try GPUs that jobs use")
    parser.add_argument("--json", action="store_true", help="print JSON (gdrtop schema prove)")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Register what the options name, and return the exit status."""
    host = open_host(options)
    session = RegistrationSession(host, options.read_only)
    output = BenchOutput(out, parsed(OutputOptions, options))
    return Proof(host, session, output, options, sys.stdin).run()


_TRIAL = Annotated[GpuTrial, Changed(without=("label",), gpu=str, nics=tuple[str, ...])]
_PAIR = Annotated[PairResult, Changed(outcome=Outcome, doubt=str | None)]


class ProveDocument(TypedDict):
    """`gdrtop prove --json, with --dry-run`."""

    gpus: tuple[_TRIAL, ...]  # what is tried
    pairs: tuple[_PAIR, ...]  # empty with --dry-run
    exit_status: int
    exit_reason: str


class Proof:
    """One run of `gdrtop prove`."""

    def __init__(
        self,
        host: Host,
        session: RegistrationSession,
        output: BenchOutput,
        options: argparse.Namespace,
        answers: TextIO | None,
    ) -> None:
        self._host, self._session, self._output = host, session, output
        self._options, self._answers = options, answers
        self._interrupted = ""
        self._examination = examine(host)

    def run(self) -> int:
        """Plan, ask, register; return the exit status."""
        self._output.show([heading(self._examination.node)])
        trials = self._planned()
        if isinstance(trials, Refused):
            is_wrong = isinstance(trials, NoSuchDevice)
            return self._refuse(trials.reason, EXIT_WRONG_USAGE if is_wrong else EXIT_NOT_PROVEN)
        if self._options.dry_run:
            return self._show_plan(trials)
        if self._session.refusal:
            return self._refuse(self._session.refusal, EXIT_NOT_PROVEN)
        self._output.show([*wrapped(NOTICE, self._output.width), *self._simulated(trials)])
        trials = self._with_consent(trials)
        with signals_stop(self._interrupt):
            results = self._session.run(self._examination, trials, self._show_progress)
        if isinstance(results, Refused):
            return self._refuse(results.reason, EXIT_NOT_PROVEN)
        status, reason = exit_status(results, self._interrupted)
        self._output.show([(), *draw_results(results, self._output.width)])
        self._output.show([(), *wrapped(reason, self._output.width, Tone.TITLE)])
        self._output.show(wrapped(NOT_PROVEN, self._output.width))
        self._write(trials, results, status, reason)
        return EXIT_WRONG_USAGE if self._output.is_truncated else status

    def _planned(self) -> tuple[GpuTrial, ...] | Refused:
        gpu = self._options.gpu
        bdf = None if gpu is None else bdf_of(self._examination, gpu)
        if isinstance(bdf, Refused):
            return bdf
        return plan_registration(self._examination, bdf, self._options.nic)

    def _simulated(self, trials: Sequence[GpuTrial]) -> list[Line]:
        """Return what a real node would do first, on a simulated one."""
        if self._host.origin.source is not Source.SIMULATED:
            return []
        lines = wrapped(SIMULATED, self._output.width)
        used = next((trial for trial in trials if trial.users), None)
        if used is None:
            return lines
        text = f"on a real node, gdrtop would ask first: {used.label}: {used.users}"
        return [*lines, *wrapped(text, self._output.width, Tone.DIM)]

    def _with_consent(self, trials: tuple[GpuTrial, ...]) -> tuple[GpuTrial, ...]:
        """Return the trials without the GPUs in use, unless the user agrees; simulated jobs feel nothing."""
        used = [trial for trial in trials if trial.is_tried and trial.users]
        if not used or self._options.yes or self._host.origin.source is Source.SIMULATED:
            return trials
        lines = draw_users(used, self._output.width)
        (self._output.show_on_stderr if self._options.json else self._output.show)(lines)
        if self._output.ask(self._answers, lines, "Try these GPUs too?"):
            return trials
        return tuple(
            replace(trial, not_tried=f"in use ({trial.users}); --yes tries it too")
            if trial in used
            else trial
            for trial in trials
        )

    def _show_plan(self, trials: Sequence[GpuTrial]) -> int:
        if self._options.json:
            self._write(trials, (), 0, "")
            return 0
        lines = wrapped(NOTICE, self._output.width)
        for trial in trials:
            nics = [nic.name for nic in trial.nics if not nic.not_tried]
            text = trial.not_tried or f"with {', '.join(nics) or 'no NIC'}"
            lines += wrapped(f"{trial.label} ({trial.bdf}): {text}", self._output.width, hanging="  ")
        used = [trial for trial in trials if trial.users]
        lines += draw_users(used, self._output.width) if used else []
        if self._session.refusal:
            lines += [(), *wrapped(f"This cannot run here: {self._session.refusal}.", self._output.width)]
        self._output.show(lines)
        return 0

    def _show_progress(self, results: tuple[PairResult, ...]) -> None:
        text = gpu_line(results)
        if self._options.json:
            self._output.show_on_stderr([line(text)] if sys.stderr.isatty() else [])
            return
        self._output.show([line(text)])
        if self._output.lost is not None:
            self._interrupt("the output cannot be written")

    def _interrupt(self, why: str) -> None:
        self._interrupted = self._interrupted or why
        self._session.stop()

    def _refuse(self, reason: str, status: int) -> int:
        if self._options.json:
            self._write((), (), status, reason)
        else:
            self._output.warn(f"nothing was registered: {reason}")
        return status

    def _write(
        self, trials: Sequence[GpuTrial], results: Sequence[PairResult], status: int, reason: str
    ) -> None:
        if not self._options.json:
            return
        content: dict[str, Any] = {
            "gpus": [
                object_from(trial, _TRIAL, gpu=trial.label, nics=[nic.name for nic in trial.nics])
                for trial in trials
            ],
            "pairs": [object_from(each, _PAIR, doubt=each.doubt or None) for each in results],
            "exit_status": status,
            "exit_reason": reason,
        }
        node = self._examination.node
        at = self._host.wall_clock()
        self._output.write_json(node_document("prove", node, at, content))


def exit_status(results: Sequence[PairResult], interrupted: str) -> tuple[int, str]:
    """Return the exit status and its reason as a sentence."""
    total = plural(len(results), "GPU–NIC pair")
    found = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    text = f"{found[Outcome.REGISTERS]} of {total} register{'s' * (len(results) == 1)}"
    doubts = [result.doubt for result in results if result.outcome is Outcome.REGISTERS and result.doubt]
    over_c2c = doubts.count(OVER_C2C)  # by design of the machine: each GPU has EFAs at its own switch, too
    doubtful = len(doubts) - over_c2c
    notes = [f"{doubtful} of them may deliver wrong data"] if doubtful else []
    notes += [f"{over_c2c} of them only over C2C, where transfers may fail"] if over_c2c else []
    text += f" ({', '.join(notes)})" if notes else ""
    if interrupted:
        return EXIT_INTERRUPTED, sentence(f"{text}; {interrupted}")
    if found[Outcome.REFUSED]:
        return EXIT_REFUSED, sentence(f"{text}, {found[Outcome.REFUSED]} refused")
    left = found[Outcome.NOT_TRIED] + found[Outcome.NO_ANSWER]
    if left:
        return EXIT_NOT_PROVEN, sentence(f"{text}, {left} not tried or without an answer")
    return EXIT_NOT_PROVEN if doubtful else 0, sentence(text)
