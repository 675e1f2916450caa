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
from tui.bandwidth.results_store import ResultsStore
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


def measured(
    host: Host, out: TextIO, options: BenchOptions, store: ResultsStore, read_only: bool
) -> Result | None:
    """Measure a pair as the node is now; None: that was not possible."""
    count = len(store.results())
    command(host, out, options, read_only=read_only, answers=sys.stdin, store=store)
    return next((result for result in reversed(store.results()[count:]) if is_measured(result)), None)


def difference(before: Result | None, after: Result | None) -> str:
    """Return what an action has changed between two measurements of a pair, as a sentence."""
    if after is None:
        return "The pair could not be measured after the action."
    words = after.judgment.words or "not judged"
    if before is None:
        return f"{after.path}: {words} after the action; it could not be measured before."
    return f"{after.path}: {change(after, before, 'before the action') or f'{words} after the action'}."
