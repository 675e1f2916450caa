"""The boxes of dcgmi diag and dcgmi health: which tests of DCGM failed, and why.

Sources: NVIDIA/DCGM dcgmi/Diag.cpp, Health.cpp. DCGM 4 gives each GPU a line "GPU0: Pass"; before, a test has
"Pass - All", or "Fail - GPU: 0". What is wrong stands below, cut in cells.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from probes.base.text import join_limited, plural, printable
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.reading import Parsed, Section

SIGN = r"\|\s+(?:Diagnostic\s+\|\s+Result|Health Monitor Report)\s+\|"
_ROW = re.compile(r"\| {0,20}(?:-> )?([^|]{0,60})\| ([^|]{0,100})\|\s*$")
_RESULT = re.compile(
    r"(?:(\w{2,12} ?\d{1,4}): )?(Pass|Fail|Warn|Skip|Not Run|Healthy|Warning|Failure)(?: - (.{1,80}))?\s*$"
)
_TEXTS = ("Error", "Warning", "Info")
_BAD = {"Warn": Weight.NOTE, "Warning": Weight.NOTE, "Fail": Weight.WARNING, "Failure": Weight.WARNING}
_MOST_TEXT, _MOST_TESTS = 600, 1000


@dataclass
class _Test:
    """One test, with the results that are not good."""

    name: str
    place: Place
    state: str = ""
    bad: list[str] = field(default_factory=list)  # GPUs
    text: str = ""

    def add(self, result: re.Match[str], who: str) -> None:
        weight = _BAD.get(result[2])
        if not self.state or weight is Weight.WARNING:
            self.state = result[2]
        if weight is not None and (who := result[1] or result[3] or who):
            self.bad.append(who)


def read_box(section: Section) -> Parsed:
    """Read dcgmi diag or dcgmi health."""
    tests: list[_Test] = []
    values: dict[str, str] = {}
    who, gap, read = "", "", 0
    for number, line in enumerate(section.lines):
        match = _ROW.match(line)
        if match is None or len(tests) >= _MOST_TESTS:
            read += line.startswith(("|", "+"))
            continue
        read += 1
        name, cell = printable(match[1].strip(), 60), printable(match[2].rstrip(), 100)
        result = _RESULT.match(cell)
        if name.isdigit() and result:  # a GPU, in the tree of dcgmi health
            who = f"GPU {name}"
        elif result and name and not name.startswith(_TEXTS):
            values[name] = result[2]
            tests.append(_Test(name, section.at(number)))
            tests[-1].add(result, who)
        elif result and tests and not name:
            tests[-1].add(result, who)
        elif name and not name.startswith(_TEXTS):
            values[name] = cell
        elif cell and not name.startswith("Info"):
            if name.startswith("Error") and not (tests and tests[-1].state in _BAD):
                tests.append(_Test("Deployment", section.at(number), "Fail"))
            if not tests:
                continue
            gap = " " if name else gap
            tests[-1].text = f"{tests[-1].text}{gap}{cell}"[:_MOST_TEXT]
            gap = "" if len(cell) >= len(match[2]) - 2 else " "  # a full cell is cut within a word
    statements = tuple(
        statement(
            "dcgm-test-failed",
            test.place,
            weight=_BAD[test.state],
            test=test.name,
            verb="warns" if _BAD[test.state] is Weight.NOTE else "failed",
            which=f" ({join_limited(test.bad)})" if test.bad else "",
            cause=f"DCGM says: {' '.join(test.text.split())}" if test.text else "The text has no reason.",
        )
        for test in tests
        if test.state in _BAD and test.name != "Overall Health"
    )
    return Parsed(read, statements, shows=_shows(tests, values))


def _shows(tests: list[_Test], values: dict[str, str]) -> str:
    if health := values.get("Overall Health"):
        return f"DCGM's watches report: {health}."
    counts = Counter(test.state for test in tests)
    results = join_limited(f"{count} {state}" for state, count in counts.most_common())
    version = values.get("DCGM Version", "")
    return (
        f"{plural(len(tests), 'test')} of DCGM{f' {version}' if version else ''}: {results}. None uses a NIC."
    )
