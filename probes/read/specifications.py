"""Scripts, pods and other files that say how a job starts, judged as env --lint does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from probes.base.evidence import Severity
from probes.base.text import plural
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.reading import Statement
from probes.setup.env.assignments import LIMIT_BYTES, FileKind
from probes.setup.env.lint import FileReport, judge_text
from probes.snapshot.examination import Examination

NAMES = {
    FileKind.SBATCH: "sbatch script",
    FileKind.SHELL: "shell script",
    FileKind.POD: "YAML",
    FileKind.NCCL_CONF: "nccl.conf",
}
_MOST_BLOCKS = 64


@dataclass
class Block:
    """Lines that are of no log and of no table, and may be a file."""

    name: str  # of the text
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    unread: int = 0  # lines that nothing else has explained
    size: int = 0

    def add(self, line: str, number: int, is_unread: bool) -> None:
        """Add a line; of a text that is too long to be judged, only the length is kept."""
        self.size += len(line) + 1
        if self.size > LIMIT_BYTES:
            self.lines.clear()
            self.numbers.clear()
            return
        self.lines.append(line)
        self.numbers.append(number)
        self.unread += is_unread


class Specifications:
    """The blocks of all texts."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def end(self, block: Block) -> None:
        """End a block."""
        if any(block.lines) and len(self._blocks) < _MOST_BLOCKS:
            self._blocks.append(block)

    def judged(self, node: Examination | None) -> list[tuple[Block, FileReport]]:
        """Return what the blocks are that are files."""
        reports = ((block, judge_text("\n".join(block.lines), node)) for block in self._blocks)
        return [(block, report) for block, report in reports if report is not None]


_LINE = re.compile(r"\bline (\d{1,6})\b")


def statements_of(block: Block, report: FileReport) -> list[Statement]:
    """Return what is wrong in a file."""

    def line_of(match: re.Match[str]) -> str:  # in the text
        number = int(match[1])
        return f"line {block.numbers[number - 1]}" if 0 < number <= len(block.numbers) else match[0]

    return [
        Statement(
            problem.variable or "specification",
            NAMES[report.kind],
            Weight(problem.severity.value),
            problem.title,
            _LINE.sub(line_of, problem.detail),
            _LINE.sub(line_of, problem.fix),
            text=block.lines[problem.line - 1].strip() if 0 < problem.line <= len(block.lines) else "",
            place=Place(block.name, block.numbers[problem.line - 1])
            if 0 < problem.line <= len(block.numbers)
            else None,
        )
        for problem in report.problems
    ]


def shown(report: FileReport) -> str:
    """Return one sentence about a file without a problem; "" where there is one."""
    if any(problem.severity is not Severity.NOTE for problem in report.problems):
        return ""
    checked = [
        plural(count, what)
        for count, what in (
            (report.count, "variable"),
            (report.containers, "container"),
            (report.objects, "object"),
        )
        if count
    ]
    return f"{NAMES[report.kind]}: {', '.join(checked)} checked, nothing wrong found" if checked else ""
