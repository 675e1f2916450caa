"""Prove a fix: measure the affected pair before an action and after it, and say what it changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from probes.bandwidth.model.request import Request
from probes.bandwidth.model.result import Result, is_measured
from probes.bandwidth.results.against_earlier import change
from probes.base.plan import Plan
from probes.base.text import BDF
from probes.facts.pci.functions import PciFacts
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from tui.bandwidth.results_store import open_results_store
from tui.commands.bench.options import BenchOptions
from tui.commands.bench.run import command


def affected_pair(examination: Examination, plan: Plan, devices: Iterable[str]) -> Request:
    """Return the test of the first GPU and its NIC whose path has one of these devices, or one in the plan.

    Without such a pair, the test of the first GPU and its nearest NIC.
    """
    words = " ".join(word for step in plan.steps for word in step.argv)
    wanted = {*devices, *BDF.findall(words)}
    topology = examination.topology
    for gpu, nics in topology.best_nics.items():
        for nic in nics[:1]:
            names = {gpu, nic, *(hop.id for hop in topology.paths[gpu, nic].hops)}
            if wanted & names and isinstance(examination.node.pci, PciFacts):
                bdf = next((hop.id for hop in topology.paths[gpu, nic].hops if hop.kind == "GPU"), None)
                return Request(gpu=bdf, nic=nic)
    return Request()


class Proof:
    """The results of one pair, around an action; `yes`: tests may affect running jobs, without a question."""

    def __init__(
        self, host: Host, out: TextIO, request: Request, *, yes: bool, ascii_only: bool, read_only: bool
    ) -> None:
        self._host, self._out, self._request = host, out, request
        self._yes, self._ascii, self._read_only = yes, ascii_only, read_only
        self._store = open_results_store(host.origin)
        self._before: Result | None = None

    def measure_before(self) -> None:
        """Measure as the node is now."""
        self._before = self._measured()

    def conclude(self) -> str:
        """Measure again, and return what the action changed, as a sentence."""
        before, after = self._before, self._measured()
        if after is None:
            return "The pair could not be measured after the action."
        words = after.judgment.words or "not judged"
        if before is None:
            return f"{after.path}: {words} after the action; it could not be measured before."
        difference = change(after, before, "before the action")
        return f"{after.path}: {difference or f'{words} after the action'}."

    def _measured(self) -> Result | None:
        count = len(self._store.results())
        command(
            self._host,
            self._out,
            BenchOptions(ascii=self._ascii, request=self._request, yes=self._yes),
            read_only=self._read_only,
            answers=sys.stdin,
            store=self._store,
        )
        new = self._store.results()[count:]
        return next((result for result in reversed(new) if is_measured(result)), None)
