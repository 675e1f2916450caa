"""What the commands of slurmd share: the log, the time limit, and the state of the node in Slurm.

slurmd drains a node whose Prolog or Epilog exits with anything but 0, and kills a HealthCheckProgram after
60 s (slurm.conf(5)). So none of these fails because of gdrtop itself: what goes wrong is logged.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import syslog
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from probes.base.origin import Source
from probes.base.plan import Plan
from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.host.protocol import Host
from probes.plans.catalogue import Offer
from probes.queries.finding import Finding
from probes.slurm.slurm_node import LEADER, PROLOG_ERROR, SlurmNode, is_node_name, read_node
from probes.snapshot.examination import Examination
from tui.actions.dispatcher import Dispatcher
from tui.command_line.arguments import add_arguments, whole_number
from tui.files.job_file import JobFileError, UndoneDrain
from tui.launch import write_syslog

_NAMED = 3  # findings in a line of the log


def add_common_options(parser: argparse.ArgumentParser, seconds: int) -> None:
    """Add the options of all three."""
    add_arguments(
        parser,
        {
            "--dry-run": "say what would be done, change nothing and exit with 0",
            "--limit SECONDS": f"give up and exit with 0 after this time (default: {seconds})",
        },
        limit={"type": whole_number(1, 300, "seconds"), "default": seconds},
    )


class Session:
    """One run for slurmd, on one node."""

    def __init__(self, host: Host, name: str, options: argparse.Namespace) -> None:
        """`name`: what the log calls it, "prolog, job 4711"."""
        self.host, self._name = host, name
        self.dry_run, self._seconds = bool(options.dry_run), float(options.limit)
        self._dispatcher = Dispatcher(host, options.read_only)

    def say(self, text: str, priority: int = syslog.LOG_NOTICE) -> None:
        """Write a line to the system log, and then to stderr, which slurmd logs if the command fails."""
        source = self.host.origin.source
        marked = f"SIMULATED {self._name}" if source is Source.SIMULATED else self._name
        line = printable(f"{marked}: {text}", 1000)
        if source is Source.LIVE and not self.dry_run:
            write_syslog(line, priority)
        print(f"gdrtop {line}", file=sys.stderr, flush=True)

    @contextmanager
    def time_limit(self) -> Iterator[None]:
        """End the process with 0 if the node does not answer in time; not while something is changed.

        The time may run already, since gdrtop was started.
        """
        before = signal.signal(signal.SIGALRM, self._expire)
        left = signal.getitimer(signal.ITIMER_REAL)[0] or self._seconds
        signal.setitimer(signal.ITIMER_REAL, min(left, self._seconds))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.say(f"no result within {self._seconds:.0f} s", syslog.LOG_WARNING)
        os._exit(0)  # a probe may hang in the kernel, and a thread that hangs keeps Python from ending

    def slurm_node(self) -> SlurmNode | None:
        """Return this node's state in Slurm, or say why it is unknown."""
        name = os.environ.get("SLURMD_NODENAME", "")
        if not is_node_name(name):
            self.say("SLURMD_NODENAME is not set, so its state in Slurm is unknown; slurmd sets it")
            return None
        node = read_node(self.host, name)
        if isinstance(node, Unknown):
            self.say(f"the state of {name} in Slurm is unknown: sinfo: {node}", syslog.LOG_WARNING)
            return None
        return node

    def own_slurm_node(self) -> SlurmNode | None:
        """Return the state; the reason of slurmd is gdrtop's where gdrtop's prolog could not give its own."""
        node, note = self.slurm_node(), UndoneDrain()
        if node is None or self.host.origin.source is not Source.LIVE or not note.exists():
            return node
        if node.reason == PROLOG_ERROR:
            return replace(node, reason=f"{LEADER} {PROLOG_ERROR}")
        if not self.dry_run:
            note.delete()
        return node

    def note_undone_drain(self) -> None:
        """Let the health check know that slurmd drains the node because of gdrtop, or say why it will not."""
        if self.dry_run or self.host.origin.source is not Source.LIVE:
            return
        try:
            UndoneDrain().save()
        except JobFileError as error:
            self.say(f"gdrtop health-check will not resume this node: {error}", syslog.LOG_WARNING)

    @contextmanager
    def nothing_fails(self) -> Iterator[None]:
        """Log an error in gdrtop itself, and go on: what was decided stays."""
        try:
            yield
        except Exception as error:
            with suppress(Exception):
                self.say(f"an error in gdrtop: {type(error).__name__}: {error}", syslog.LOG_ERR)

    def carry_out(self, examination: Examination, name: str, plan: Plan | str) -> bool:
        """Run a plan that affects no job, or say why it is not run; return whether it is done."""
        if isinstance(plan, str):
            self.say(plan)
            return False
        prepared = self._dispatcher.prepared(Offer(name, plan.title, plan), examination)
        if isinstance(prepared, str):
            self.say(f"{plan.title}: {prepared}", syslog.LOG_WARNING)
            return False
        clearance = prepared.clearance
        if clearance.refused or clearance.word:
            affected = next(iter((*clearance.affected, *clearance.cuts)), "")
            why = clearance.refused or f"jobs or the network would be affected ({affected})"
            self.say(f"{plan.title} was not done: {why}", syslog.LOG_WARNING)
            return False
        if self.dry_run:
            self.say(f"would do: {plan.title}")
            return False
        ended = self._dispatcher.run(prepared, "", lambda _: None)
        is_done = ended.outcome.is_success
        why = f" ({ended.why})" if ended.why else ""
        self.say(f"{plan.title}: {ended.summary}{why}", syslog.LOG_NOTICE if is_done else syslog.LOG_ERR)
        return is_done

    def load_modules(self, examination: Examination, findings: Sequence[Finding]) -> bool:
        """Load the modules that are missing; return whether something was loaded."""
        offers = self._dispatcher.offers(examination, findings)
        plan = next((offer.plan for offer in offers if offer.id == "load-modules"), None)
        return plan is not None and self.carry_out(examination, "load-modules", plan)


def described(findings: Sequence[Finding]) -> str:
    """Return the findings in a line: "port-down: mlx5_3 has no link; +2"."""
    texts = [f"{finding.id}: {finding.cause}" for finding in findings[:_NAMED]]
    more = len(findings) - len(texts)
    return "; ".join((*texts, *((f"{more} more",) if more else ())))
