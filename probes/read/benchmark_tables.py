"""Tables of benchmarks: the tests in a section, each with its rows and what the program said before them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from probes.bandwidth.model.rating import best_row, steady
from probes.bandwidth.model.samples import About, Fact, Sample
from probes.bandwidth.tools.failures import Output
from probes.bandwidth.tools.tool import Parser
from probes.read.findings import statement
from probes.read.reading import Parsed, Section, Statement

_MOST_TESTS = 50  # of one section
_MOST_ROWS = 100_000
_WORD = re.compile(r"\w")


@dataclass
class Test:
    """One table, with what the program said before it."""

    facts: dict[About, str] = field(default_factory=dict)
    ranks: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of their lines in the section, from 0

    @property
    def line(self) -> int:
        """The line of the row that stands for the test, in the section."""
        figure = self.figure
        rows = zip(self.numbers, self.samples, strict=True)
        return next((number for number, row in rows if figure is not None and row.raw == figure.raw), 0)

    @property
    def figure(self) -> Sample | None:
        """The row that stands for the test."""
        return steady(self.samples) if self.is_endless else best_row(self.samples)

    @property
    def is_endless(self) -> bool:
        """Whether it printed a row of the same size every few seconds."""
        return len(self.samples) > 1 and len({sample.size_bytes for sample in self.samples}) == 1


class TableReader:
    """Gathers what a parser reads in a section, test by test."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self.tests = [Test()]
        self.last = -1  # line that was understood
        self._rows = 0
        self._is_full = False

    def feed(self, number: int, line: str) -> None:
        """Read a line of the section, counted from 0."""
        for output in self._parser.feed(line):
            self.last = number
            if not self._is_full:
                self._take(number, output)

    def _take(self, number: int, output: Output) -> None:
        test = self.tests[-1]
        if isinstance(output, Sample) and self._rows < _MOST_ROWS:
            self._rows += 1
            test.samples.append(output)
            test.numbers.append(number)
        elif isinstance(output, Fact):
            # Old versions of nccl-tests print no title.
            begins = test.samples and output.about in (About.TEST, About.RANK)
            if begins or (output.about is About.TEST and About.TEST in test.facts):
                test = Test()
                self._is_full = len(self.tests) == _MOST_TESTS
                if self._is_full:
                    return
                self.tests.append(test)
            if output.about is About.RANK:
                test.ranks.append(output.value)
            test.facts[output.about] = output.value


def read_tables(section: Section, parser: Parser) -> TableReader:
    """Return what a parser reads in a section."""
    reader = TableReader(parser)
    for number, line in enumerate(section.lines):
        reader.feed(number, line)
    return reader


def parsed(section: Section, reader: TableReader, statements: Iterator[Statement]) -> Parsed:
    """Return the statements with the number of lines that were understood."""
    # Lines of NCCL count as such.
    own = [line for line in section.lines[: reader.last + 1] if _WORD.search(line) and "NCCL " not in line]
    return Parsed(len(own), tuple(statements))


def result_statement(section: Section, line: int, name: str, **texts: Any) -> Statement:
    """Return `statement()` of a result, with its line in the section."""
    # Channels of NCCL are left out of a section, so lines behind them have other numbers.
    number = 0 if any("NCCL " in before for before in section.lines[:line]) else line
    return statement(name, section.at(number), text=section.lines[number].strip(), **texts)
