"""When a job moves data, is silent or waits, and how long its steps take, on one node and on many."""

from __future__ import annotations

import time

from probes.base.evidence import Evidence, Severity
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.rdma.devices import ACTIVE
from probes.live.model.sample import JobStep, LiveJob, PortSample, Standstill, StepPart, UsualStep
from probes.snapshot.condition import STEP_LONGER, Condition

SILENT_SECONDS = 10.0
"""Without traffic on any port of a job; for a shorter time, a computation or a checkpoint looks the same."""
WAIT_SECONDS = 60.0
"""Without traffic while its ranks wait, before that is a finding. Ray warns after the same time."""
IDLE_PERCENT, BUSY_PERCENT = 10, 90
"""Utilization of the GPU of a rank that differs, and of those that wait: their kernels spin."""
LEAST_GBPS = 1.0
_NAMED = 3
_LEAST_SHARE = 0.01  # of the line rate, where that is less
_LEAST_SOFTWARE_GBPS = 0.005  # software RDMA, whose line rate says little


def least_gbps(port: PortSample) -> float:
    """Return the rate of a port below which its traffic is noise."""
    if port.rates_from:
        return _LEAST_SOFTWARE_GBPS
    line = port.line_rate_gbps
    return LEAST_GBPS if isinstance(line, Unknown) or line <= 0 else min(LEAST_GBPS, _LEAST_SHARE * line)


def moves_data(port: PortSample | None) -> bool | None:
    """Return whether a port moves data; None if a rate of it is unknown."""
    if port is None or isinstance(port.sent_gbps, Unknown) or isinstance(port.received_gbps, Unknown):
        return None
    return max(port.sent_gbps, port.received_gbps) >= least_gbps(port)


def rates_of(port: PortSample | None) -> tuple[float, float] | None:
    """Return what an active port sends and receives, in Gb/s; None if it is not active or that is unknown."""
    if port is None or port.state != ACTIVE:
        return None
    if isinstance(port.sent_gbps, Unknown) or isinstance(port.received_gbps, Unknown):
        return None
    return port.sent_gbps, port.received_gbps


def waiting_text(still: Standstill) -> str:
    """Return what ranks that wait do: "7 of its 8 GPUs are busy", "rank 3 is stopped or blocked"."""
    count = f"{'all ' * (1 < still.busy == still.gpus)}{still.busy} of its {plural(still.gpus, 'GPU')}"
    busy = f"{count} {'is' if still.busy == 1 else 'are'} busy" if still.gpus else ""
    if not still.blocked:
        return busy
    names = ", ".join(still.blocked[:_NAMED])
    more = f" and {len(still.blocked) - _NAMED} more ranks" if len(still.blocked) > _NAMED else ""
    verb = "is" if len(still.blocked) == 1 else "are"
    return f"{names}{more} {verb} stopped or blocked{', and ' * bool(busy)}{busy}"


# The sentences about a job's step: its parts, and since when it takes longer.

_PARTS = {
    StepPart.NETWORK: "the network part grew from {before} s to {now} s",
    StepPart.REST: "the network part did not grow: compute, data loading or the host takes longer",
    StepPart.BOTH: "the network part grew from {before} s to {now} s, and so did the rest",
    StepPart.UNCLEAR: "which part grew is unclear",
}
_DAY_HOURS = 24


def step_text(step: JobStep, at: float) -> str:
    """Return "a step takes 17.2 s, 4.1 s of it network", or how often bursts repeat; `at`: now."""
    if not step.is_steady:
        return f"bursts repeat every {seconds_text(step.seconds)} s, in {step.coverage:.0%} of the time"
    network, usual = seconds_text(step.network_seconds), step.longer_than
    longer = "" if usual is None else f"; {step.share_longer:.0%} longer than at {_clock(usual.until, at)}"
    return f"a step takes {seconds_text(step.seconds)} s, {network} s of it network{longer}"


def longer_step(job: LiveJob, at: float) -> Condition | None:
    """Return that a job's steps take longer than before, and what that costs; None: they do not."""
    step = job.step
    if isinstance(step, Unknown) or step.longer_than is None or not step.is_steady:
        return None
    usual = step.longer_than
    times = f"{seconds_text(step.seconds)} s, {step.share_longer:.0%} longer than the "
    text = f"a step of {job.name} takes {times}{seconds_text(usual.seconds)} s at {_clock(usual.until, at)}"
    counters = ", ".join(step.files) or step.device
    gigabytes = step.step_bytes / 1e9
    moved = f"{gigabytes:{'.0f' if gigabytes >= 100 else '.3g'}} GB a step in both directions, as before"
    evidence = [Evidence("step clock", _part_text(step, usual)), Evidence(counters, moved)]
    if job.gpus:
        lost = 1 - usual.seconds / step.seconds
        hours = lost * _DAY_HOURS * len(job.gpus)
        whom = f"{lost:.0%} of the time of {plural(len(job.gpus), 'GPU')} on this node"
        evidence.append(Evidence("cost", f"{whom}: {hours:.0f} GPU-hours a day at this pace"))
    text, shown = f"{text}; {_part_text(step, usual)}", tuple(evidence)
    about = ((), (), job.id, job.name, (job.subject,))
    return Condition(STEP_LONGER, job.id, text, at, Severity.WARNING, shown, *about, grown=usual.grown.value)


def _part_text(step: JobStep, usual: UsualStep) -> str:
    before, now = seconds_text(usual.network_seconds), seconds_text(step.network_seconds)
    return _PARTS[usual.grown].format(before=before, now=now)


def seconds_text(seconds: float) -> str:
    """Return seconds as precise as they are known: "0.61", "17.2"."""
    return f"{seconds:.2f}" if seconds < 2 else f"{seconds:.1f}"


def _clock(moment: float, at: float) -> str:
    """Return "14:00 EST", with the date if it is not the day of `at`."""
    then, now = time.localtime(moment), time.localtime(at)
    is_today = (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M %Z" if is_today else "%Y-%m-%d %H:%M %Z", then)
