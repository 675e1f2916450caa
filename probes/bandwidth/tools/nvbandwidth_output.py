"""What nvbandwidth prints: matrices as text, or one JSON document (-j).

NVIDIA/nvbandwidth output.cpp, inline_common.h (the matrix), json_output.cpp; "GB/s" are 10^9 bytes
(memcpy.cpp, returnAppropriateMetric() * 1e-9). Rows and columns are CPUs and GPUs as the line above the
matrix says. A pair that was not measured is "N/A", and in old versions 0.00 on the diagonal. The tests named
host_to_device_bidirectional and the reverse print one way's bandwidth, measured while the other way is busy.
"""

from __future__ import annotations

import json
import re

from probes.bandwidth.tools.failure_patterns import SYMPTOM
from probes.bandwidth.tools.failures import Failure, Output, failure_in
from probes.bandwidth.tools.samples import (
    LINE_LIMIT,
    MEASURING,
    About,
    Fact,
    Latency,
    Sample,
    in_gbps,
    number_of,
    shown,
)

_RUNNING = re.compile(r"^Running (?P<name>\w{1,120})\.\s*$")
_DESCRIPTION = re.compile(
    r"(?:(?P<row>\w{1,20})\(row\) (?P<way><->|->|<-)|\blocal) (?P<column>\w{1,20})\(column\)"
    r".{0,60}\((?P<unit>GB/s|ns|us)\)\s*$"
)
_SUM = re.compile(r"^SUM (?P<name>\w{1,120}) (?P<number>\S{1,30})\s*$")
_STATUS = re.compile(r"^(?P<status>Waived|Error|Not Found|ERROR): ?(?P<why>.{0,300})$")
_VERSIONS = re.compile(
    r"^(?P<what>nvbandwidth Version|Driver Version|CUDA Runtime Version): (?P<version>\S{1,60})"
)
_DEVICE = re.compile(r"^Device (?P<number>\d{1,6}): (?P<name>.{1,200})$")
_WAYS = {"->": "→", "<-": "←", "<->": "↔"}
_MICROSECONDS = {"ns": 0.001, "us": 1.0}
_COLUMNS = 1024
_DOCUMENT_LIMIT = 4 << 20


class NvbandwidthOutput:
    """Reads text as it comes, and a JSON document when its last line has come."""

    def __init__(self) -> None:
        self._name = ""
        self._description: re.Match[str] | None = None
        self._columns: tuple[str, ...] = ()
        self._document: list[str] | None = None
        self._length = 0

    def feed(self, line: str) -> tuple[Output, ...]:
        """What a line tells; nothing for most lines."""
        if self._document is not None or (line.startswith("{") and not self._name):
            return self._of_document(line)
        line = line[:LINE_LIMIT].rstrip()
        fields = line.split()
        if fields and fields[0].isdigit():
            return self._of_matrix(line, fields)
        running = _RUNNING.match(line)
        if running:
            self._name, self._description, self._columns = running["name"], None, ()
            return Fact(About.TEST, self._name, shown(line)), Fact(About.PHASE, MEASURING, shown(line))
        description = _DESCRIPTION.search(line)
        if description:
            self._description, self._columns = description, ()
            return ()
        return self._sum(line) or self._of_run(line)

    def _sum(self, line: str) -> tuple[Output, ...]:
        found = _SUM.match(line)
        number = number_of(found["number"]) if found else None
        if found is None or number is None or self._description is None or found["name"] != self._name:
            return ()
        return (_sample(self._name, "sum", number, self._description, line),)

    def _of_run(self, line: str) -> tuple[Output, ...]:
        device = _DEVICE.match(line)
        if device:
            return (Fact(About.GPU, shown(f"{device['number']}: {device['name']}"), shown(line)),)
        version = _VERSIONS.match(line)
        if version:
            return (Fact(About.VERSION, shown(f"{version['what']} {version['version']}"), shown(line)),)
        status = _STATUS.match(line)
        if status and status["status"] == "Waived":
            return (Fact(About.WAIVED, shown(status["why"] or "a test"), shown(line)),)
        trouble = failure_in(line)
        if trouble is None and status:
            told = shown(f"nvbandwidth: {status['why'] or status['status']}")
            trouble = Failure(told, shown(line), SYMPTOM)
        return () if trouble is None else (trouble,)

    def _of_matrix(self, line: str, fields: list[str]) -> tuple[Output, ...]:
        """The row of column numbers, which alone holds whole numbers only, or a row of the matrix."""
        if self._description is None:
            return ()
        if all(field.isdecimal() and field.isascii() and len(field) < 6 for field in fields):
            self._columns = tuple(fields[:_COLUMNS])
            return ()
        if len(fields) != len(self._columns) + 1:
            return ()
        return _row(self._name, fields[0], fields[1:], self._columns, self._description, line)

    def _of_document(self, line: str) -> tuple[Output, ...]:
        if self._document is None:
            self._document, self._length = [], 0
        if self._length <= _DOCUMENT_LIMIT:
            self._document.append(line[:_DOCUMENT_LIMIT])
        self._length += len(line)
        # The styled document ends with a brace at the line's start; in one line, with a brace at its end.
        text = line.rstrip()
        if not (text.startswith("}") or (len(self._document) == 1 and text.endswith("}"))):
            return ()
        whole, self._document = "\n".join(self._document), None
        try:
            return _read_document(json.loads(whole))
        except (ValueError, RecursionError):
            return (Failure("nvbandwidth's JSON cannot be read", shown(whole[:LINE_LIMIT]), SYMPTOM),)


def _read_document(document: object) -> tuple[Output, ...]:
    root = document.get("nvbandwidth") if isinstance(document, dict) else None
    if not isinstance(root, dict):
        return ()
    told: list[Output] = []
    for name in ("version", "Driver Version", "CUDA Runtime Version"):
        if name in root:
            value = shown(str(root[name])[:LINE_LIMIT])
            told.append(Fact(About.VERSION, f"{name} {value}", f"{name}: {value}"))
    if isinstance(root.get("error"), str):
        error = root["error"][:LINE_LIMIT]
        told.append(Failure(shown(f"nvbandwidth: {error}"), shown(error), SYMPTOM))
    cases = root.get("testcases")
    for case in cases if isinstance(cases, list) else ():
        if isinstance(case, dict):
            told.extend(_read_case(case))
    return tuple(told)


def _read_case(case: dict[str, object]) -> list[Output]:
    name, status = shown(str(case.get("name", ""))[:LINE_LIMIT]), case.get("status")
    raw = f"{name}: {shown(str(status)[:LINE_LIMIT])}"
    if status == "Waived":
        return [Fact(About.WAIVED, name, raw)]
    if status != "Passed":
        why = case.get("error", status)
        return [Failure(shown(f"nvbandwidth: {name}: {str(why)[:LINE_LIMIT]}"), raw, SYMPTOM)]
    description = _DESCRIPTION.search(str(case.get("bandwidth_description", ""))[:LINE_LIMIT])
    matrix = case.get("bandwidth_matrix")
    if description is None or not isinstance(matrix, list):
        return []
    told: list[Output] = [Fact(About.TEST, name, raw)]
    for number, row in enumerate(matrix[:_COLUMNS]):
        cells = [str(cell)[:30] for cell in row[:_COLUMNS]] if isinstance(row, list) else []
        columns = tuple(str(column) for column in range(len(cells)))
        told.extend(_row(name, str(number), cells, columns, description, f"{name}: {' '.join(cells)}"))
    whole = number_of(str(case.get("sum"))[:30])
    if whole is not None:
        told.append(_sample(name, "sum", whole, description, f"{name}: sum {whole}"))
    return told


def _row(
    name: str, row: str, cells: list[str], columns: tuple[str, ...], description: re.Match[str], line: str
) -> tuple[Output, ...]:
    samples: list[Output] = []
    for column, cell in zip(columns, cells, strict=True):
        number = number_of(cell)
        itself = description["row"] == description["column"] and row == column
        if number is None or (itself and not number):
            continue
        pair = f"{description['column']} {column}"
        if description["way"]:  # device_local_copy has one row, of no meaning
            pair = f"{description['row']} {row} {_WAYS[description['way']]} {pair}"
        samples.append(_sample(name, shown(pair), number, description, line))
    return tuple(samples)


def _sample(name: str, variant: str, number: float, description: re.Match[str], line: str) -> Sample:
    unit = description["unit"]
    if unit in _MICROSECONDS:
        latency = Latency("sum" if variant == "sum" else "average", number * _MICROSECONDS[unit])
        return Sample(what=name, raw=shown(line), variant=variant, latencies=(latency,))
    return Sample(what=name, raw=shown(line), variant=variant, gbps=in_gbps(number, unit))
