"""`gdrtop fleet hang`: why a job hangs that runs on several nodes."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.fleet.hang import diagnose_nodes
from probes.fleet.job import key_of
from probes.host.probe_thread import RunningProbe, start_probe
from probes.host.protocol import Host
from probes.live.hang.diagnosis import Diagnosis, HangFacts
from probes.live.ras.targets import no_job
from tui.command_line.arguments import add_job_option
from tui.commands.fleet.output import NO_NODE, common_origin, fleet_heading
from tui.commands.hang import HangOptions, HangSearch, add_watch_options, hang_document
from tui.launch import EXIT_INTERRUPTED
from tui.runtime.json_values import write_json
from tui.runtime.printing import print_lines, text_width
from widgets.base.lines import Line, line, wrapped
from widgets.nccl.hang import draw_hang

EXIT_UNKNOWN = 3
_FIRST_READING_SECONDS = 60.0  # the first sample reads the whole node
_ROUND_SECONDS = 0.5  # between two looks for nodes that were reached late
_NO_RAS = "not queried on many nodes; run gdrtop ras on one of them"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job_option(parser, "the NCCL job with the most ranks")
    add_watch_options(parser)


def run(
    options: argparse.Namespace,
    hosts: Mapping[str, Host],
    unanswered: Mapping[str, str],
    out: TextIO,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Print why the job hangs, and return the exit status.

    `unanswered`: nodes not reached, and why. Other threads may move nodes from here to `hosts`.
    """
    asked = HangOptions(job=options.job, seconds=options.seconds)
    searches: dict[str, HangSearch] = {}
    before = dict(unanswered)

    def begin(name: str) -> RunningProbe[tuple[Diagnosis, ...]]:
        searches[name] = HangSearch(hosts[name], asked, _NO_RAS, clock=clock, wait=wait)
        return start_probe(hosts[name], "hang", searches[name].run)

    try:
        found, failed = _read_all(hosts, begin, options.seconds + _FIRST_READING_SECONDS)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    missing = {name: unanswered.get(name, why) for name, why in before.items() if name not in found} | failed
    facts = _of_largest_job(found)
    diagnosis = diagnose_nodes(facts, missing) if facts else None
    status = EXIT_UNKNOWN if diagnosis is None else diagnosis.exit_status
    origin = common_origin([host.origin for host in hosts.values()])
    if options.json:
        at = max((search.taken_at for search in searches.values()), default=0.0) or time.time()
        shown = [diagnosis] if diagnosis else []
        write_json(hang_document(NO_NODE, origin, at, shown, status, missing), out)
        return status
    width = text_width(out)
    if diagnosis is None:
        lines: list[Line] = [line(no_job(True, options.job))]
        for name, why in missing.items():
            lines += wrapped(f"{name}: {why}", width, indent="  ")
    else:
        lines = draw_hang(diagnosis, width)
        if absent := [name for name in found if name not in facts]:
            lines += wrapped(f"{plural(len(absent), 'node')} without this job: {', '.join(absent)}", width)
    print_lines([fleet_heading(len(hosts) + len(unanswered), origin), *lines], out, options.ascii)
    return status


def _read_all(
    hosts: Mapping[str, Host], begin: Callable[[str], RunningProbe[tuple[Diagnosis, ...]]], seconds: float
) -> tuple[dict[str, tuple[Diagnosis, ...]], dict[str, str]]:
    """Watch all nodes at once; return what was found on each, and why nothing was on others."""
    until = time.monotonic() + seconds
    probes: dict[str, RunningProbe[tuple[Diagnosis, ...]]] = {}
    found: dict[str, tuple[Diagnosis, ...]] = {}
    failed: dict[str, str] = {}
    while True:
        probes |= {name: begin(name) for name in list(hosts) if name not in probes}
        left = {name: probe for name, probe in probes.items() if name not in found and name not in failed}
        if not left:
            return found, failed
        next(iter(left.values())).wait(min(_ROUND_SECONDS, until - time.monotonic()))
        for name, probe in left.items():
            if probe.wait(0.0):
                answer = probe.answer(0.0)
                if isinstance(answer, Unknown):
                    failed[name] = answer.detail or answer.reason.value
                else:
                    found[name] = answer
            elif time.monotonic() >= until:
                failed[name] = f"no answer after {seconds:.0f} s"


def _of_largest_job(found: Mapping[str, Sequence[Diagnosis]]) -> dict[str, HangFacts]:
    """Return the facts of the job with the most ranks on these nodes, by node."""
    ranks: Counter[str] = Counter()
    for diagnoses in found.values():
        for diagnosis in diagnoses:
            ranks[key_of(diagnosis.facts.job)] += len(diagnosis.facts.ranks)
    wanted = max(sorted(ranks), key=lambda key: ranks[key], default="")
    facts = {
        name: next((each.facts for each in diagnoses if key_of(each.facts.job) == wanted), None)
        for name, diagnoses in found.items()
    }
    return {name: own for name, own in facts.items() if own is not None}
