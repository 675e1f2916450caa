"""How long a test measures, and how it is ended: by itself, or by us.

perftest prints a row a second only when it runs without end (--run_infinitely with -D 1), and never at a
server that is written to. The peer's server of a client here nobody here can end: one that is written to or
read from ends when its client has gone, one of ib_send_bw does not (src/perftest_resources.c,
run_iter_bw_infinitely_server), so that it gets a test that ends itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.planning.defaults import LARGE_BYTES
from probes.bandwidth.tools.perftest_command import PerftestSettings

ITERATIONS_OF_EACH_SIZE = 1000
"""With all sizes: 16 GiB altogether, a third of a second at 400 Gb/s."""
_ALL_SIZES_SECONDS = 20.0
_LATENCY_SECONDS = 3.0
_START_SECONDS = 3.0  # until the ends have met: CUDA takes most of it
_TIME_LIMIT_SECONDS = 300.0
_PATIENCE_FOR_A_PEER_SECONDS = 600.0


@dataclass(frozen=True)
class Method:
    """Settings with size and duration, and what follows from them."""

    settings: PerftestSettings
    seconds: float
    time_limit_s: float
    end_after_s: float | None


def method_of(request: Request, settings: PerftestSettings) -> Method:
    """A latency test counts messages; a bandwidth test measures all sizes, or one for a time."""
    patience = _PATIENCE_FOR_A_PEER_SECONDS if request.setup is Mode.SERVER else 0.0
    if request.all_sizes:
        of_each = None if settings.is_latency else ITERATIONS_OF_EACH_SIZE
        settings = replace(settings, size_bytes=None, duration_s=None, all_sizes=True, iterations=of_each)
        return Method(settings, _ALL_SIZES_SECONDS, _TIME_LIMIT_SECONDS + patience, None)
    if settings.is_latency:
        settings = replace(settings, size_bytes=request.size_bytes, duration_s=None)
        return Method(settings, _LATENCY_SECONDS, _TIME_LIMIT_SECONDS + patience, None)
    seconds = request.duration_s + _START_SECONDS
    settings = replace(settings, size_bytes=request.size_bytes or LARGE_BYTES, duration_s=request.duration_s)
    limit = _TIME_LIMIT_SECONDS + request.duration_s + patience
    # In both directions perftest's ib_send_bw does not run without end.
    sends = settings.tool == "ib_send_bw" and (settings.is_bidirectional or request.setup is Mode.CLIENT)
    if request.setup is Mode.SERVER or sends:
        return Method(settings, seconds, limit, None)
    return Method(replace(settings, is_endless=True, duration_s=1), seconds, limit, float(request.duration_s))
