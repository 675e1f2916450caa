"""The bandwidth of a PCIe link."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, first_unread
from probes.facts.pci.functions import PciLink

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# Share of the raw rate that is left for packets: 8b/10b, 128b/130b, and 236 of 256 bytes of a flit; the other
# 20 bytes are 6 of DLP, 8 of CRC and 6 of FEC (PCI Express Base Specification 6.0).
_ENCODING = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256}


def generation(speed_gtps: float) -> int | None:
    """Return the PCIe generation of a speed in GT/s per lane."""
    return _GENERATIONS.get(speed_gtps)


def link_gbps(speed_gtps: float, width: int) -> float:
    """Return the bandwidth per direction in Gb/s (10^9 bits), packet headers included."""
    return speed_gtps * width * _ENCODING.get(generation(speed_gtps) or 3, 128 / 130)


def _most(a: Maybe[float], b: Maybe[float]) -> Maybe[float]:
    unread = first_unread((a, b))  # that end may support less
    if unread is not None:
        return unread
    if isinstance(a, Unknown):
        return b
    return a if isinstance(b, Unknown) else min(a, b)


def most_of(lower: PciLink, upper: PciLink | None) -> tuple[Maybe[float], Maybe[float]]:
    """Return the highest speed (GT/s) and width that both ends support, or the one end that is known."""
    if upper is None:
        return lower.max_speed_gtps, lower.max_width
    return _most(lower.max_speed_gtps, upper.max_speed_gtps), _most(lower.max_width, upper.max_width)


def capacity(lower: PciLink, upper: PciLink | None) -> Maybe[float]:
    """Return the highest bandwidth per direction, in Gb/s (10^9 bits), that a link supports."""
    speed, width = most_of(lower, upper)
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return Unknown(Reason.NOT_THERE, "max_link_speed", "the link's speed or width is unknown")
    return link_gbps(speed, int(width))


def now_of(lower: PciLink, upper: PciLink | None, idles: bool) -> tuple[Maybe[float], Maybe[float]]:
    """Return the current speed (GT/s) and width; with `idles`, the highest speed.

    GPUs reduce their link speed when idle; other functions do not. No link reduces its width to save power.
    """
    speed, width = lower.speed_gtps, lower.width
    if upper is not None:
        speed = upper.speed_gtps if isinstance(speed, Unknown) else speed
        width = upper.width if isinstance(width, Unknown) else width
    best = most_of(lower, upper)[0] if idles else speed
    return (speed if isinstance(best, Unknown) else best), width


def carried(lower: PciLink, upper: PciLink | None, idles: bool) -> Maybe[float]:
    """Return the current bandwidth per direction in Gb/s (10^9 bits), or the highest if that is unknown."""
    speed, width = (
        _most(now, best) for now, best in zip(now_of(lower, upper, idles), most_of(lower, upper), strict=True)
    )
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return Unknown(Reason.NOT_THERE, "current_link_speed", "the link's speed or width is unknown")
    return link_gbps(speed, int(width))


def words(speed: Maybe[float], width: Maybe[float]) -> str:
    """Return "Gen5 x16"; "" if speed or width is unknown."""
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return ""
    number = generation(speed)
    return f"{f'Gen{number}' if number else f'{speed:g} GT/s'} x{int(width)}"


def describe(lower: PciLink, upper: PciLink | None) -> str:
    """Return "Gen5 x16", followed by "now Gen1 x16" if the link runs below that."""
    best = words(*most_of(lower, upper))
    now = words(lower.speed_gtps, lower.width)
    if not now and upper is not None:
        now = words(upper.speed_gtps, upper.width)
    if not best:
        return f"now {now}" if now else "link ?"
    return best if not now or now == best else f"{best}, now {now}"
