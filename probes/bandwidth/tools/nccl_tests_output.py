"""What the *_perf programs of nccl-tests print, of new and of old versions.

NVIDIA/nccl-tests src/common.cu: the header names the columns; a row holds size, count, type, then redop and
root where the collective has them, then one or two groups of time, algbw, busbw and #wrong ("error" in old
versions, a difference and not a count; more columns with -I). GB are 10^9 bytes. algbw is the size over the
time; busbw is what each GPU's link carries, whatever their number (doc/PERFORMANCE.md).
"""

from __future__ import annotations

import re

from probes.bandwidth.tools.failure_patterns import CAUSE
from probes.bandwidth.tools.failures import Failure, Output, failures_in
from probes.bandwidth.tools.samples import (
    DONE,
    LINE_LIMIT,
    MEASURING,
    About,
    Fact,
    Sample,
    in_gbps,
    number_of,
    shown,
    whole_of,
)

_STARTS = re.compile(r"^# Collective test (?P<what>starting|concluded): (?P<name>\w{1,60}?)(?:_perf)?\s*$")
_VERSION = re.compile(r"^# nccl-tests version (?P<version>.{1,100})$")
_LIBRARY = re.compile(r"^NCCL version (?P<version>\S{1,60})")
_RANK = re.compile(
    r"^#\s{1,8}Rank\s{1,8}(?P<rank>\d{1,9}) (?:Group\s{1,8}\d{1,9} )?Pid\s{1,8}\d{1,10}"
    r" on\s{1,64}(?P<host>\S{1,255}) device\s{1,8}(?P<device>\d{1,6})"
    r" \[(?P<bus>[0-9a-fx:.]{1,20})\] (?P<name>.{1,100})$"
)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s{0,8}: (?P<number>\S{1,30})")
# Names of plugins may have a blank: "NET/AWS Libfabric/0/GDRDMA".
_ROUTE = re.compile(
    r"NCCL INFO .{0,200} via (?P<route>NET/[\w.\- ]{1,40}/\d{1,4}(?:\(\d{1,6}\))?(?:/\w{1,20}|\(PCI\)){0,3}"
    r"|(?:NET|P2P|SHM|COLLNET|NVLS)[/\w.\-]{0,60})"
)
_ROUTES = 16
_GROUPS = ("out-of-place", "in-place")


class NcclTestsOutput:
    """Reads one run's output; NCCL's own lines (NCCL_DEBUG) may stand between."""

    def __init__(self, what: str = "") -> None:
        """`what` is the collective's name, "all_reduce": old versions do not print it."""
        self._what = what
        self._group: tuple[str, ...] = ()  # the columns of one group
        self._groups = 0
        self._routes: set[str] = set()

    def feed(self, line: str) -> tuple[Output, ...]:
        """What a line tells; nothing for most lines."""
        line = line[:LINE_LIMIT].rstrip()
        if line.startswith("#"):
            return self._comment(line)
        fields = line.split()
        if fields and whole_of(fields[0]) is not None:
            return self._row(line, fields)
        library = _LIBRARY.match(line)
        if library:
            return (Fact(About.VERSION, f"NCCL {shown(library['version'])}", shown(line)),)
        route = _ROUTE.search(line)
        if route:
            if route["route"] in self._routes or len(self._routes) >= _ROUTES:
                return ()
            self._routes.add(route["route"])
            return (Fact(About.ROUTE, shown(route["route"]), shown(line)),)
        return failures_in(line)

    def _comment(self, line: str) -> tuple[Output, ...]:
        names = line[1:].split()
        if names[:3] == ["size", "count", "type"]:
            return self._header(names, line)
        starts = _STARTS.match(line)
        if starts:
            if starts["what"] == "concluded":
                return (Fact(About.PHASE, DONE, shown(line)),)
            self._what = starts["name"]
            return (Fact(About.TEST, self._what, shown(line)),)
        version = _VERSION.match(line)
        if version:
            return (Fact(About.VERSION, f"nccl-tests {shown(version['version'])}", shown(line)),)
        rank = _RANK.match(line)
        if rank:
            place = f"{rank['rank']}: {rank['host']} device {rank['device']} {rank['bus']} {rank['name']}"
            return (Fact(About.RANK, shown(place), shown(line)),)
        average = _AVERAGE.match(line)
        number = number_of(average["number"]) if average else None
        if number is not None:
            return (
                Sample(what=self._what, raw=shown(line), variant="average", bus_gbps=in_gbps(number, "GB/s")),
            )
        return failures_in(line)

    def _header(self, names: list[str], line: str) -> tuple[Output, ...]:
        self._groups = min(names.count("time"), len(_GROUPS))
        if not self._groups:
            self._group = ()
            return ()
        first = names.index("time")
        rest = names[first:]
        length = len(rest) // names.count("time")
        group = tuple(rest[:length])
        self._group = group if "algbw" in group and "busbw" in group else ()
        return (Fact(About.PHASE, MEASURING, shown(line)),)

    def _row(self, line: str, fields: list[str]) -> tuple[Output, ...]:
        """The groups stand at the end; redop and root between them and the type may be missing."""
        length = len(self._group)
        if not length:
            return ()
        groups = self._groups
        while groups and not 3 <= len(fields) - groups * length <= 5:
            groups -= 1
        if not groups or whole_of(fields[1]) is None:
            return ()
        samples: list[Output] = []
        start = len(fields) - groups * length
        for number in range(groups):
            group = fields[start + number * length : start + (number + 1) * length]
            sample = self._sample(
                fields[0], dict(zip(self._group, group, strict=True)), _GROUPS[number], line
            )
            if sample is None:
                return ()
            samples.append(sample)
        wrong = [one.wrong for one in samples if isinstance(one, Sample) and one.wrong]
        if wrong:
            told = (
                f"{max(wrong)} elements of a message of {fields[0]} bytes came out wrong: data was corrupted"
            )
            samples.append(Failure(told, shown(line), CAUSE))
        return tuple(samples)

    def _sample(self, size: str, group: dict[str, str], variant: str, line: str) -> Sample | None:
        time, algorithm, bus = (number_of(group[name]) for name in ("time", "algbw", "busbw"))
        if time is None or algorithm is None or bus is None:
            return None
        wrong = number_of(group.get("#wrong", "N/A"))
        return Sample(
            what=self._what,
            raw=shown(line),
            variant=variant,
            size_bytes=whole_of(size),
            gbps=in_gbps(algorithm, "GB/s"),
            bus_gbps=in_gbps(bus, "GB/s"),
            time_us=time,
            wrong=None if wrong is None else int(wrong),
        )
