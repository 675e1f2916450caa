"""Bit errors of links: the counters that have them, rates from two readings, and their limits.

The counters are those of Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, or the
counts of ethtool -I --show-fec. They are the port's: all functions that share one show the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.fec import CORRECTED_BITS, FecState

CORRECTED = "rx_corrected_bits_phy"  # by FEC; with 50 Gb/s a lane and more (PAM4) it always rises
LOST = "rx_pcs_symbol_err_phy"  # what FEC could not repair
RECEIVED = "rx_bits_phy"  # NVIDIA's own driver has it, and Linux' has not


@frozen
class ErrorLimits:
    """Limits of an error rate: the share of bits that are wrong."""

    warning: float
    error: float


# NVIDIA, InfiniBand Cluster Bring-up, for NDR and cables below 100 m; it states none for XDR.
SYMBOL = ErrorLimits(5e-15, 1e-14)  # what neither FEC nor the link's own retry repairs
EFFECTIVE = ErrorLimits(5e-12, 1e-11)  # what FEC does not repair
NDR_GBPS, SETTLED_MINUTES = 400.0, 125.0  # they count once the link has been up for so long
# gdrtop's own: one and two orders of magnitude below what RS(544,514) can repair, about 2E-4.
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


@frozen
class BitErrors:
    """The counts of a link since its driver was loaded, or since they were cleared."""

    corrected: Maybe[int]  # bits that FEC has repaired
    received: Maybe[int]  # bits


def bit_errors(counters: Maybe[Mapping[str, int]], fec: Maybe[FecState]) -> BitErrors:
    """Return what the driver counts in `ethtool -S`, else with its FEC mode; unknown: it counts neither."""

    def count(name: str) -> Maybe[int]:
        absent = Unknown(Reason.NOT_THERE, "ethtool -S", f"this NIC has no {name} counter")
        return map_known(counters, lambda counts: counts.get(name, absent))

    corrected = count(CORRECTED)
    if isinstance(corrected, Unknown) and not isinstance(fec, Unknown):
        corrected = fec.counts.get(CORRECTED_BITS, corrected)
    return BitErrors(corrected, count(RECEIVED))


def rate_since(now: BitErrors, before: BitErrors, seconds: float, gbps: Maybe[float]) -> Maybe[float]:
    """Return the error rate before FEC in the `seconds` between two readings.

    An idle link sends idle symbols, so where bits received are not counted, there were as many as the line
    rate allows.
    """
    wrong = _risen(before.corrected, now.corrected)
    bits = _risen(before.received, now.received)
    if isinstance(bits, Unknown):
        bits = map_known(gbps, lambda rate: round(rate * 1e9 * seconds))
    return _rate(wrong, bits)


def rate_since_load(now: BitErrors) -> Maybe[float]:
    """Return the error rate before FEC since the counters began, where they have the bits received."""
    return _rate(now.corrected, now.received)


def _risen(before: Maybe[int], now: Maybe[int]) -> Maybe[int]:
    reset = Unknown(Reason.MALFORMED, "ethtool -S", "the counters were reset")
    return map_known(before, lambda was: map_known(now, lambda is_: is_ - was if is_ >= was else reset))


def _rate(wrong: Maybe[int], bits: Maybe[int]) -> Maybe[float]:
    nothing = Unknown(Reason.NOT_YET, "ethtool -S", "nothing was received")
    return map_known(wrong, lambda count: map_known(bits, lambda all_: count / all_ if all_ else nothing))
