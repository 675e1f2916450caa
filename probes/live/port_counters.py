"""Which counters of a port the live view reads, and how much they rise between two readings."""

from __future__ import annotations

from functools import lru_cache

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.rdma.counters import ERROR_COUNTER_BITS, Place, sampled
from probes.host.values import Files, read_integer, read_telemetry

_TELEMETRY = f"/{Place.TELEMETRY.value}/"
_WRAP = 1 << 32
# At 100 million packets a second, a counter rises by less than this in two seconds.
_NEAR = 1 << 28


def names_to_read(hardware: Maybe[tuple[str, ...]], standard: Maybe[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the paths below a port, "hw_counters/NAME" and "counters/NAME", of the counters it has."""
    return tuple(
        f"{place.value}/{name}"
        for place, names in ((Place.HARDWARE, hardware), (Place.STANDARD, standard))
        for name in known(names, ())
        if name in sampled(place)
    )


def missing(place: Place, names: Maybe[tuple[str, ...]]) -> dict[str, Unknown]:
    """Return the counters that every sample has and this port does not, with the reason.

    `names`: those that it has in this place.
    """
    wanted = sampled(place, is_expected=True)
    if isinstance(names, Unknown) and names.reason is not Reason.NOT_THERE:
        return dict.fromkeys(wanted, names)
    has: tuple[str, ...] = () if isinstance(names, Unknown) else names
    return {
        name: Unknown(Reason.NOT_THERE, name, f"this NIC has no {name} counter")
        for name in wanted
        if name not in has
    }


def read_counter(host: Files, path: str) -> Maybe[int]:
    """Return a counter of a port, or of a Slingshot NIC."""
    return read_telemetry(host, path) if _TELEMETRY in path else read_integer(host, path)


def rise(name: str, before: int, after: int) -> Maybe[int]:
    """Return how much a counter has risen. A counter of 32 bits may have wrapped once.

    MALFORMED: it was reset, or it has stopped at its maximum (core/sysfs.c, PORT_PMA_ATTR).
    """
    bits = ERROR_COUNTER_BITS.get(name)
    if before == after and bits is not None and after == (1 << bits) - 1:
        return Unknown(Reason.MALFORMED, name, "the counter is full")
    if after >= before:
        return after - before
    if _WRAP - _NEAR <= before < _WRAP and after < _NEAR:
        return after + _WRAP - before
    return Unknown(Reason.MALFORMED, name, "the counter was reset")


def pause_percent(before: dict[str, int], after: dict[str, int], seconds: float) -> Maybe[float]:
    """Return the share of time that the port was paused: the priority and direction paused the longest.

    From mlx5's rx_prioN_pause_duration and tx_prioN_pause_duration, in µs
    (Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst).
    """
    names = _pause_durations(tuple(after))
    if not names:
        return Unknown(Reason.NOT_THERE, "ethtool -S", "this NIC does not count the duration of pauses")
    rises = [after[name] - before[name] for name in names if after[name] >= before.get(name, after[name] + 1)]
    if not rises or seconds <= 0:
        return Unknown(Reason.NOT_YET, "ethtool -S", "needs a second sample")
    return min(100.0, max(rises) / (seconds * 1e6) * 100)


@lru_cache(maxsize=64)
def _pause_durations(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name.endswith("_pause_duration"))


def pcie_stall_percent(now: dict[str, int]) -> Maybe[float]:
    """Return the share of the last second in which the NIC could not issue PCIe reads or writes.

    mlx5's outbound_pci_stalled_rd and _wr are percentages, not counters.
    """
    stalls = [now[name] for name in ("outbound_pci_stalled_rd", "outbound_pci_stalled_wr") if name in now]
    if not stalls:
        return Unknown(Reason.NOT_THERE, "ethtool -S", "this NIC does not report PCIe stalls")
    return float(min(100, max(stalls)))
