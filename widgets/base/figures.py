"""Figures as short text: an unknown figure is `?`, never 0."""

from __future__ import annotations

import time
from collections.abc import Sequence

from probes.base.unknown import Maybe, Unknown

UNKNOWN_MARK = "?"
BLOCKS = "▁▂▃▄▅▆▇█"


def short(value: Maybe[float]) -> str:
    """As short as an admin needs it: 0.04, 0.4, 4.2, 42, 421."""
    if isinstance(value, Unknown):
        return UNKNOWN_MARK
    if value >= 9.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 0.05 or value == 0 else f"{value:.2f}"


def gbps(value: Maybe[float]) -> str:
    """A rate in 10^9 bits a second, "372 Gb/s"; from 1000 on "2.97 Tb/s"."""
    if not isinstance(value, Unknown) and value >= 1000:
        return f"{value / 1000:.2f} Tb/s"
    return f"{short(value)} Gb/s"


def in_gbps(bytes_per_second: Maybe[float]) -> Maybe[float]:
    """NVML's PCIe rates in 10^9 bits a second, as NICs and links are told."""
    return bytes_per_second if isinstance(bytes_per_second, Unknown) else bytes_per_second * 8e-9


def gibibytes(value: Maybe[int]) -> str:
    """A size in GiB: "80 GiB"; small ones in MiB."""
    if isinstance(value, Unknown):
        return UNKNOWN_MARK
    if 0 < value < 1 << 30:
        return f"{value / (1 << 20):.0f} MiB"
    return f"{short(value / (1 << 30))} GiB"


def binary_size(size_bytes: int) -> str:
    """A message's size: "64 KiB"; what is no whole number of them in bytes."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} B"


def minutes(seconds: float) -> str:
    """A time to wait: "13 s", "2 min 5 s", "1 h 4 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def local_time(seconds: float, form: str = "%H:%M:%S %Z") -> str:
    """A time since 1970 as this machine's clock shows it, with its zone: "14:03:11 EST"."""
    return time.strftime(form, time.localtime(seconds))


def plural(count: int, noun: str) -> str:
    """As "1 test", "2 tests"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ago(seconds: float) -> str:
    """A time that has passed: "just now", "12 min ago", "2 h ago", "3 d ago"."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} ago"
    return "just now"


def share(value: Maybe[float], most: Maybe[float]) -> str:
    """A rate as a share of the line rate, "93%"; "" where either is unknown or the line rate is 0."""
    if isinstance(value, Unknown) or isinstance(most, Unknown) or most <= 0:
        return ""
    return f"{value / most * 100:.0f}%"


def used_of(used_bytes: Maybe[int], total_bytes: Maybe[int]) -> str:
    """Memory in use and in all, in GiB: "39/80G"."""
    used = UNKNOWN_MARK if isinstance(used_bytes, Unknown) else f"{used_bytes / (1 << 30):.0f}"
    return (
        f"{used}/{UNKNOWN_MARK}G"
        if isinstance(total_bytes, Unknown)
        else f"{used}/{total_bytes / (1 << 30):.0f}G"
    )


def percent(value: Maybe[int]) -> str:
    """As "92%"."""
    return f"{UNKNOWN_MARK}%" if isinstance(value, Unknown) else f"{value}%"


def sparkline(values: Sequence[float | None], top: float | None = None) -> str:
    """One block a value, scaled to the greatest (or `top`); a value that was not read is a dot."""
    highest = top if top is not None else max((value for value in values if value is not None), default=0.0)
    marks = []
    for value in values:
        if value is None:
            marks.append("·")
        elif highest <= 0:
            marks.append(BLOCKS[0])
        else:
            marks.append(BLOCKS[min(7, max(0, int(value / highest * 7.999)))])
    return "".join(marks)
