"""Bit errors of links: the counters that have them, rates from two readings, and their limits.

The counters are those of Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, or the
counts of ethtool -I --show-fec. They are the port's: all functions that share one show the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.fec import CORRECTED_BITS

CORRECTED = "rx_corrected_bits_phy"  # by FEC; with 50 Gb/s a lane and more (PAM4), healthy links have some
LOST = "rx_pcs_symbol_err_phy"  # what FEC could not repair
RECEIVED = "rx_bits_phy"  # NVIDIA's own driver has it, and Linux' has not
_REPAIRED = CORRECTED, CORRECTED_BITS  # in `ethtool -S`, or beside the FEC mode
_SECOND_READING = Unknown(Reason.NOT_YET, "ethtool -S", "needs a second reading")
Counts = Maybe[Mapping[str, int]]
"""The counters of a link since its driver was loaded, or since they were cleared."""


@frozen
class ErrorLimits:
    """Limits of an error rate: the share of bits that are wrong."""

    warning: float
    error: float


# NVIDIA, InfiniBand Cluster Bring-up, for NDR and cables below 100 m; it states none for XDR.
SYMBOL = ErrorLimits(5e-15, 1e-14)  # what neither FEC nor the link's own retry repairs
EFFECTIVE = ErrorLimits(5e-12, 1e-11)  # what FEC does not repair
NDR_GBPS, SETTLED_MINUTES = 400.0, 125.0  # they count once the link has been up for so long
# gdrtop's own: one and two orders of magnitude below what RS(544,514) can repair (about 2E-4, from memory).
RAW = ErrorLimits(1e-6, 1e-5)  # before FEC
RAW_NOTE = 1e-7
# Healthy links of one node differ by two orders of magnitude, so a low rate is compared with no other.
RAW_HEALTHY, RAW_TIMES = 1e-8, 10.0
WINDOW_SECONDS = 60.0  # between two readings, at least


def per_hour(rate: float, gbps: float) -> float:
    """Return the errors an hour of an error rate."""
    return rate * gbps * 1e9 * 3600


def rate_text(rate: float) -> str:
    """Return an error rate as mlxlink writes it: "2.4E-10", "0"."""
    return f"{rate:.1E}".replace(".0E", "E").replace("E-0", "E-") if rate else "0"


def rate_since(now: Counts, before: Counts, seconds: float, gbps: Maybe[float]) -> Maybe[float]:
    """Return the error rate before FEC in the `seconds` between two readings.

    An idle link sends idle symbols, so where bits received are not counted, there were as many as the line
    rate allows.
    """
    bits = _risen(_count(before, RECEIVED), _count(now, RECEIVED))
    if isinstance(bits, Unknown):
        bits = map_known(gbps, lambda rate: round(rate * 1e9 * seconds))
    return _rate(_risen(_count(before, *_REPAIRED), _count(now, *_REPAIRED)), bits)


def rate_since_load(now: Counts) -> Maybe[float]:
    """Return the error rate before FEC since the counters began; NOT_YET: bits received are not counted."""
    bits = _count(now, RECEIVED)
    return _rate(_count(now, *_REPAIRED), _SECOND_READING if isinstance(bits, Unknown) else bits)


def _count(counts: Counts, *names: str) -> Maybe[int]:
    absent = Unknown(Reason.NOT_THERE, "ethtool -S", "this NIC does not count bit errors")
    return map_known(counts, lambda found: next((found[name] for name in names if name in found), absent))


def _risen(before: Maybe[int], now: Maybe[int]) -> Maybe[int]:
    reset = Unknown(Reason.MALFORMED, "ethtool -S", "the counters were reset")
    return map_known(before, lambda was: map_known(now, lambda is_: is_ - was if is_ >= was else reset))


def _rate(wrong: Maybe[int], bits: Maybe[int]) -> Maybe[float]:
    return map_known(
        wrong, lambda count: map_known(bits, lambda all_: count / all_ if all_ else _SECOND_READING)
    )
