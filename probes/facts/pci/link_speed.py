"""What a PCIe link carries."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci.functions import PciLink

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
# Share of the raw rate that is left for packets: 8b/10b, 128b/130b, and 236 of 256 bytes of a flit,
# the others being 6 of DLP, 8 of CRC and 6 of FEC (PCI Express Base Specification 6.0).
_ENCODING = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256}


def generation(speed_gtps: float) -> int | None:
    """Return the PCIe generation of a speed in GT/s a lane."""
    return _GENERATIONS.get(speed_gtps)


def link_gbps(speed_gtps: float, width: int) -> float:
    """Return 10^9 bits a second each way that a link of `width` lanes carries, packet headers included."""
    return speed_gtps * width * _ENCODING.get(generation(speed_gtps) or 3, 128 / 130)


def _most(a: Maybe[float], b: Maybe[float]) -> Maybe[float]:
    if isinstance(a, Unknown):
        return b
    return a if isinstance(b, Unknown) else min(a, b)


def most_of(lower: PciLink, upper: PciLink | None) -> tuple[Maybe[float], Maybe[float]]:
    """Return greatest speed (GT/s) and width that both ends of a link can do; of one end where only one says."""
    if upper is None:
        return lower.max_speed_gtps, lower.max_width
    return _most(lower.max_speed_gtps, upper.max_speed_gtps), _most(lower.max_width, upper.max_width)


def capacity(lower: PciLink, upper: PciLink | None) -> Maybe[float]:
    """Return 10^9 bits a second each way that the link between two functions can carry at its best."""
    speed, width = most_of(lower, upper)
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return Unknown(Reason.NOT_THERE, "max_link_speed", "the link's speed or width is not given")
    return link_gbps(speed, int(width))


def now_of(lower: PciLink, upper: PciLink | None, idles: bool) -> tuple[Maybe[float], Maybe[float]]:
    """Return speed (GT/s) and width as a link is now; the best speed where its lower end slows down when idle.

    GPUs do so, other functions do not, and no link changes its width to save power.
    """
    speed, width = lower.speed_gtps, lower.width
    if upper is not None:
        speed = upper.speed_gtps if isinstance(speed, Unknown) else speed
        width = upper.width if isinstance(width, Unknown) else width
    best = most_of(lower, upper)[0] if idles else speed
    return (speed if isinstance(best, Unknown) else best), width


def carried(lower: PciLink, upper: PciLink | None, idles: bool) -> Maybe[float]:
    """Return 10^9 bits a second each way that a link carries as it is; at its best where that is not told."""
    speed, width = (
        _most(*one) for one in zip(now_of(lower, upper, idles), most_of(lower, upper), strict=True)
    )
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return Unknown(Reason.NOT_THERE, "current_link_speed", "the link's speed or width is not given")
    return link_gbps(speed, int(width))


def words(speed: Maybe[float], width: Maybe[float]) -> str:
    """As "Gen5 x16"; "" where either is unknown."""
    if isinstance(speed, Unknown) or isinstance(width, Unknown):
        return ""
    number = generation(speed)
    return f"{f'Gen{number}' if number else f'{speed:g} GT/s'} x{int(width)}"


def describe(lower: PciLink, upper: PciLink | None) -> str:
    """As "Gen5 x16", with "now Gen1 x16" behind where the link runs below its best."""
    best = words(*most_of(lower, upper))
    now = words(lower.speed_gtps, lower.width)
    if not now and upper is not None:
        now = words(upper.speed_gtps, upper.width)
    if not best:
        return f"now {now}" if now else "link ?"
    return best if not now or now == best else f"{best}, now {now}"
