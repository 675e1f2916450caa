"""When a job moves data, is silent or waits, on one node and on many."""

from __future__ import annotations

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.rdma.devices import ACTIVE
from probes.live.model.sample import PortSample, Standstill

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
