"""JSON of benchmarks, read as the lines that the same program prints.

Sources: linux-rdma/perftest src/perftest_parameters.c (--out_json), NVIDIA/nvbandwidth json_output.cpp (-j),
NVIDIA/nccl-tests src/util.cu (-J).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from probes.bandwidth.model.samples import About
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.base.text import join_limited, printable
from probes.read.benchmarks import (
    A_GPU,
    NO_GPU,
    Test,
    of_perftest,
    read_nccl_tests,
    read_nvbandwidth,
    read_tables,
)
from probes.read.reading import Parsed, Section, Statement

PERFTEST_SIGN = r'\s*(?:\{\s*)?"test_info"\s*:\s*\{'
NVBANDWIDTH_SIGN = r'\s*(?:\{\s*)?"nvbandwidth"\s*:'
NCCL_TESTS_SIGN = r'\s*\{\s*"version"\s*:\s*\d+,\s*"start_time"\s*:'
_WORD = re.compile(r"\w")
_OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_UNITS = {"Gb/sec": 1e9 / 8, "MiB/sec": float(1 << 20)}  # bytes a second
_COLUMNS = {
    **{"MsgSize": "#bytes", "n_iterations": "#iterations", "MsgRate": "MsgRate[Mpps]"},
    **{f"BW_{name}": f"BW {name}[UNIT]" for name in ("peak", "average")},
    **{f"t_{name}": f"t_{name}[usec]" for name in ("min", "max", "typical", "avg", "stdev")},
    **{f"percentile_{share}": f"{share}% percentile[usec]" for share in ("99", "99.9")},
    **{"tps_average": "tps average", "CPU_util": "CPU_Util[%]"},
}


def _read(
    section: Section, lines_of: Callable[[Any], Iterable[str]], read: Callable[[Section], Parsed]
) -> Parsed:
    text = "\n".join(section.lines).lstrip()
    text = text if text.startswith("{") else f"{{{text}"  # the brace is alone on the line before
    try:
        content, end = json.JSONDecoder().raw_decode(text)
        lines = tuple(printable(line, 1 << 14) for line in lines_of(content))
    except _OTHER_FORM:
        shows = f"{section.kind} that is cut off or has another form: its figures could not be read."
        return Parsed(section.filled, shows=shows)
    parsed = read(replace(section, lines=lines))
    shows = parsed.shows or ("" if parsed.statements else f"{section.kind} without a figure to judge.")
    statements = tuple(replace(row, place=section.place, text="") for row in parsed.statements)
    own = sum(_WORD.search(line) is not None for line in text[:end].split("\n"))
    return replace(parsed, lines=own, statements=statements, shows=shows)


def read_perftest(section: Section) -> Parsed:
    """Read --out_json of perftest."""
    uses_gpu = False

    def lines_of(content: Any) -> Iterator[str]:
        nonlocal uses_gpu
        info, results = content["test_info"], content["results"]
        uses_gpu = "cuda_device" in info or info.get("Use_ROCm_memory") == "ON"
        title = re.fullmatch(r"((?:Send|RDMA_Write)(?:_imm)?|RDMA_Read|Atomic)_(\w{1,60}_Test)", info["test"])
        if title is not None:
            yield f"  {title[1]} {title[2].replace('_', ' ')}"
        yield from (f" {name.replace('_', ' ')} : {value}" for name, value in info.items())
        unit = _unit(results)
        named = {
            _COLUMNS[name].replace("UNIT", unit): value
            for name, value in results.items()
            if name in _COLUMNS and (unit or "UNIT" not in _COLUMNS[name])
        }
        yield " ".join(named)
        yield " ".join(map(str, named.values()))

    def explain(lines: Section, tests: Sequence[Test]) -> Iterator[Statement]:
        for test in tests:
            test.facts[About.MEMORY] = A_GPU if uses_gpu else NO_GPU
        return of_perftest(lines, tests)

    return _read(section, lines_of, lambda lines: read_tables(lines, PerftestOutput(), explain))


def _unit(results: Any) -> str:
    """Return the unit of the bandwidths, which only the rate of messages shows; "" if it does not."""
    average = results.get("BW_average") or 0.0
    rate = results.get("MsgRate", 0.0) * 1e6 * results.get("MsgSize", 0)
    fits = (unit for unit, size in _UNITS.items() if size * average / 2 < rate < size * average * 2)
    return next(fits, "")


def read_bandwidths(section: Section) -> Parsed:
    """Read -j of nvbandwidth."""
    others: list[str] = []

    def lines_of(content: Any) -> Iterator[str]:
        root = content["nvbandwidth"]
        if "error" in root:
            others.append(str(root["error"]))
        for test in root.get("testcases", ()):
            if test["status"] != "Passed":
                others.append(f"{test['name']} ({test.get('error', test['status'])})")
            rows = test.get("bandwidth_matrix", ())
            if not rows:
                continue
            yield f"Running {test['name']}."
            yield test["bandwidth_description"].rstrip()
            yield " ".join(map(str, range(len(rows[0]))))
            yield from (f"{number} {' '.join(map(str, row))}" for number, row in enumerate(rows))

    parsed = _read(section, lines_of, read_nvbandwidth)
    return replace(parsed, shows=f"Without a result: {join_limited(others)}.") if others else parsed


def read_collectives(section: Section) -> Parsed:
    """Read the file that -J of nccl-tests writes."""

    def lines_of(content: Any) -> Iterator[str]:
        config = content["config"]
        yield f"# Collective test starting: {content['args'][0].rpartition('/')[2]}"
        # Of each process, only the first GPU is listed.
        gpus = min(int(config["nthreads"]) * int(config["ngpus"]), 64)
        for device in config["devices"]:
            for number in range(gpus):
                yield (
                    f"#  Rank  {device['rank'] + number} Group  {device['group']} Pid  {device['pid']} on"
                    f" {device['hostname']} device  {device['device'] + number} [{device['device_hex']}]"
                    f" {device['device_info']}"
                )
        yield f"#  size count type redop root{' time algbw busbw #wrong' * 2}"
        for row in content["results"]:
            groups = [row[name] for name in ("out_of_place", "in_place") if row.get(name)]
            times = (
                f"{each.get('time', each.get('cpu_time'))} {each['alg_bw']} {each['bus_bw']}"
                f" {'N/A' if each['nwrong'] is None else each['nwrong']}"
                for each in groups
            )
            names = " ".join(str(row[name]) for name in ("size", "count", "type", "redop", "root"))
            yield f"{names} {' '.join(times)}"

    return _read(section, lines_of, read_nccl_tests)
