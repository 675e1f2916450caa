"""What gdrcopy's tests print: copybw, copylat, sanity, pplat; old names and forms as well.

NVIDIA/gdrcopy tests/copybw.cpp: "MB/s" is MiB/s (/1024/1024), and the whole buffer is copied unless -c is
given; tests/copylat.cpp: one row a size, an average time in old versions, median and least in newer ones;
tests/testsuites/testsuite.cpp: counts, then the names of what failed and what was waived.
"""

from __future__ import annotations

import re

from probes.bandwidth.tools.failure_patterns import SYMPTOM
from probes.bandwidth.tools.failures import Failure, Output, failures_in
from probes.bandwidth.tools.samples import (
    DONE,
    LINE_LIMIT,
    MEASURING,
    About,
    Fact,
    Latency,
    Sample,
    in_gbps,
    number_of,
    shown,
    whole_of,
)

_GPU = re.compile(r"^GPU id:(?P<number>\d{1,6})[; ] ?name: ?(?P<rest>.{1,200})$")
_SELECTS = re.compile(r"^selecting device (?P<number>\d{1,6})\s*$")
_BUFFER = re.compile(r"^testing size: (?P<size>\d{1,18})\s*$")
_TEST = re.compile(
    r"^(?:BAR )?(?P<what>writing|reading) test"
    r"(?:, size=(?P<size>\d{1,18}) offset=\d{1,18} num_iters=(?P<count>\d{1,18}))?"
)
_BANDWIDTH = re.compile(r"^(?:BAR1 )?(?P<what>write|read) BW: (?P<number>\S{1,30}?)(?P<unit>MB/s)\s*$")
_COUNT = re.compile(r"^(?P<what>\w{1,60}) num iters for each size: (?P<count>\d{1,18})\s*$")
_COLUMNS = re.compile(r"(?P<of>Avg|Median|Min)\. ?Time\(us\)|(?P<median>Median) Time\(us\)")
_OF = {"Avg": "average", "Median": "median", "Min": "min"}
_ROW = re.compile(
    r"^(?P<what>gdr_copy_\w{2,40}|cuMemcpy_\w{2,40})\s{1,20}(?P<size>\d{1,18})\s(?P<numbers>.{1,200})$"
)
_ROUND_TRIP = re.compile(r"^Round-trip latency per iteration is (?P<us>\S{1,30}) us")
_TOTAL = re.compile(
    r"^Total: (?P<total>\d{1,9}), Passed: (?P<passed>\d{1,9})"
    r", Failed: (?P<failed>\d{1,9}), Waived: (?P<waived>\d{1,9})"
)
_LIST = re.compile(r"^List of (?P<of>passed|failed|waived) tests:")
_NAME = re.compile(r"^\s{1,8}(?P<name>\w{1,120})\s*$")
_VERBOSE = re.compile(r"^&&&& (?P<of>PASSED|FAILED|WAIVED) (?P<name>\w{1,120})")


class GdrcopyOutput:
    """Reads the output of any of gdrcopy's tests."""

    def __init__(self) -> None:
        self._buffer: int | None = None
        self._sizes: dict[str, int | None] = {}
        self._counts: dict[str, int | None] = {}
        self._latencies: tuple[str, ...] = ()
        self._list: About | None = None
        self._gpus: dict[str, str] = {}

    def feed(self, line: str) -> tuple[Output, ...]:
        """What a line tells; nothing for most lines."""
        line = line[:LINE_LIMIT].rstrip()
        if self._list is not None:
            name = _NAME.match(line)
            if name:
                # Of what passed the count is enough.
                passed = self._list is About.PASSED
                return () if passed else (Fact(self._list, name["name"], shown(line)),)
            self._list = self._list if not line else None
        return self._of_suite(line) or self._of_copies(line) or self._of_gpu(line) or failures_in(line)

    def _of_gpu(self, line: str) -> tuple[Output, ...]:
        gpu = _GPU.match(line)
        if gpu and len(self._gpus) < 64:
            self._gpus[gpu["number"]] = gpu["rest"]
            return ()
        selected = _SELECTS.match(line)
        if selected:
            name = self._gpus.get(selected["number"], "")
            return (Fact(About.GPU, shown(f"{selected['number']} {name}"), shown(line)),)
        buffer = _BUFFER.match(line)
        if buffer:
            self._buffer = whole_of(buffer["size"])
        if line == "closing gdrdrv":
            return (Fact(About.PHASE, DONE, shown(line)),)
        return ()

    def _of_copies(self, line: str) -> tuple[Output, ...]:
        test = _TEST.match(line)
        if test:
            what = "write" if test["what"] == "writing" else "read"
            self._sizes[what] = whole_of(test["size"]) if test["size"] else self._buffer
            self._counts[what] = whole_of(test["count"] or "")
            return (Fact(About.PHASE, MEASURING, shown(line)),)
        bandwidth = _BANDWIDTH.match(line)
        if bandwidth:
            number, what = number_of(bandwidth["number"]), bandwidth["what"]
            if number is None:
                return ()
            return (
                Sample(
                    what=f"CPU {what}s GPU memory",
                    raw=shown(line),
                    size_bytes=self._sizes.get(what),
                    gbps=in_gbps(number, bandwidth["unit"]),
                    iterations=self._counts.get(what),
                ),
            )
        count = _COUNT.match(line)
        if count:
            self._counts = {count["what"]: whole_of(count["count"])}
            self._latencies = ()
            return (Fact(About.PHASE, MEASURING, shown(line)),)
        if line.startswith("Test") and "Size(B)" in line:
            self._latencies = tuple(_OF[one["of"] or one["median"]] for one in _COLUMNS.finditer(line))
            return ()
        return self._latency(line)

    def _latency(self, line: str) -> tuple[Output, ...]:
        row = _ROW.match(line)
        if row:
            found = [number_of(field) for field in row["numbers"].split()]
            times = [number for number in found if number is not None]
            if len(times) != len(found) or len(times) != len(self._latencies):
                return ()
            latencies = tuple(Latency(of, us) for us, of in zip(times, self._latencies, strict=True))
            return (
                Sample(
                    what=row["what"],
                    raw=shown(line),
                    size_bytes=whole_of(row["size"]),
                    iterations=self._counts.get(row["what"]),
                    latencies=latencies,
                ),
            )
        trip = _ROUND_TRIP.match(line)
        us = number_of(trip["us"]) if trip else None
        if us is None:
            return ()
        return (Sample(what="round trip CPU–GPU", raw=shown(line), latencies=(Latency("average", us),)),)

    def _of_suite(self, line: str) -> tuple[Output, ...]:
        total = _TOTAL.match(line)
        if total:
            told: list[Output] = [
                Fact(about, total[about.value], shown(line))
                for about in (About.TOTAL, About.PASSED, About.FAILED, About.WAIVED)
            ]
            if int(total["failed"]):
                failed = f"{total['failed']} of {total['total']} tests of CPU access to GPU memory failed"
                told.append(Failure(failed, shown(line), SYMPTOM))
            return tuple(told)
        listed = _LIST.match(line)
        if listed:
            self._list = About(listed["of"])
        verbose = _VERBOSE.match(line)
        if verbose and verbose["of"] != "PASSED":
            return (Fact(About(verbose["of"].lower()), verbose["name"], shown(line)),)
        return ()
