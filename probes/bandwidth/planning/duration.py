"""How long a test measures, and whether it ends by itself or is stopped by gdrtop.

perftest prints a row a second only if it runs endlessly (--run_infinitely with -D 1), and never at a server
that is written to. gdrtop cannot stop the peer's server of a client on this node: a server that is written to
or read from ends when its client has gone, but one of ib_send_bw does not (src/perftest_resources.c,
run_iter_bw_infinitely_server), so it gets a test that ends by itself.
"""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.request import Mode, Request
from probes.bandwidth.planning.defaults import LARGE_BYTES
from probes.bandwidth.tools.perftest_command import PerftestSettings
from probes.base.frozen import frozen

ITERATIONS_OF_EACH_SIZE = 1000
"""With all sizes: 16 GiB in total, a third of a second at 400 Gb/s."""
_ALL_SIZES_SECONDS = 20.0
_LATENCY_SECONDS = 3.0
_START_SECONDS = 3.0  # until the ends are connected; CUDA takes most of it
_TIME_LIMIT_SECONDS = 300.0
_WAIT_FOR_PEER_SECONDS = 600.0


@frozen
class TimedSettings:
    """Settings with size and duration, and the times that follow from them."""

    settings: PerftestSettings
    seconds: float
    time_limit_s: float
    end_after_s: float | None


def with_duration(request: Request, settings: PerftestSettings) -> TimedSettings:
    """Return how to measure: latency by messages, bandwidth over all sizes or one size for a time."""
    wait = _WAIT_FOR_PEER_SECONDS if request.setup is Mode.SERVER else 0.0
    if request.all_sizes:
        of_each = None if settings.is_latency else ITERATIONS_OF_EACH_SIZE
        settings = replace(settings, size_bytes=None, duration_s=None, all_sizes=True, iterations=of_each)
        return TimedSettings(settings, _ALL_SIZES_SECONDS, _TIME_LIMIT_SECONDS + wait, None)
    if settings.is_latency:
        settings = replace(settings, size_bytes=request.size_bytes, duration_s=None)
        return TimedSettings(settings, _LATENCY_SECONDS, _TIME_LIMIT_SECONDS + wait, None)
    seconds = request.duration_s + _START_SECONDS
    settings = replace(settings, size_bytes=request.size_bytes or LARGE_BYTES, duration_s=request.duration_s)
    limit = _TIME_LIMIT_SECONDS + request.duration_s + wait
    # perftest's ib_send_bw cannot run endlessly in both directions.
    sends = settings.tool == "ib_send_bw" and (settings.is_bidirectional or request.setup is Mode.CLIENT)
    if request.setup is Mode.SERVER or sends:
        return TimedSettings(settings, seconds, limit, None)
    endless = replace(settings, is_endless=True, duration_s=1)
    return TimedSettings(endless, seconds, limit, float(request.duration_s))
