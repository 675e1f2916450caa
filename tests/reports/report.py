"""A public report: a pasted text, the cause that was found, and how right gdrtop's answer is."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from probes.messages.message import Weight
from probes.read.reading import WITHOUT_GDR, Reading
from probes.read.text import TextReader

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
RIGHT, PARTLY, SILENT, WRONG = "right", "partly", "silent", "wrong"
_MINOR = ("harmless", "follows", "note")


@dataclass(frozen=True)
class Report:
    """A report of tests/reports, as README.md says."""

    name: str
    source: str
    cause: str
    text: str
    says: tuple[str, ...]
    never: tuple[str, ...]
    path: str
    severity: str
    aside: bool = False


@cache
def reports() -> tuple[Report, ...]:
    """Return all reports."""
    return tuple(_report(path) for path in sorted(HERE.glob("*.toml")))


def _report(path: Path) -> Report:
    content: dict[str, Any] = tomllib.loads(path.read_text())
    answer = content.pop("answer")
    says, never = tuple(answer.pop("says")), tuple(answer.pop("never", ()))
    return Report(path.stem, says=says, never=never, **content, **answer)


def read(report: Report) -> Reading:
    """Read the report's text as gdrtop read does."""
    reader = TextReader()
    reader.begin(report.name)
    reader.feed(report.text.encode())
    reader.end()
    return reader.reading()


def answer_of(reading: Reading) -> str:
    """Return what gdrtop says in its own words, without the lines that it quotes."""
    reasons = () if reading.log_verdict is None else reading.log_verdict.reasons
    words = [reading.proven.text, *reading.shown, *(reason.text for reason in reasons)]
    for statement in reading.statements:
        words += [statement.title, *statement.more, statement.cause, statement.fix]
    return "\n".join(words).casefold()


def judge(report: Report, reading: Reading) -> tuple[str, str]:
    """Return how right an answer is, and what is missing or wrong in it."""
    answer = answer_of(reading)
    wrong = [f"says {text!r}" for text in report.never if re.search(_word(text), answer)]
    path = reading.proven.path
    if path not in ("unknown", report.path) and not {path, report.path} <= set(WITHOUT_GDR):
        wrong.append(f"path {path}, not {report.path}")
    weights = {statement.weight for statement in reading.statements}
    if report.severity in _MINOR and Weight.CRITICAL in weights:
        wrong.append(f"critical, not {report.severity}")
    if wrong:
        return WRONG, "; ".join(wrong)
    missing = [
        text for text in report.says if not any(re.search(_word(part), answer) for part in text.split("|"))
    ]
    if path == "unknown" != report.path:
        missing.append(f"path {report.path}")
    if report.severity not in _MINOR and reading.exit_status not in (1, 2):
        missing.append("anything serious")
    if not missing:
        return RIGHT, ""
    is_silent = not reading.statements or len(missing) > len(report.says) - 1
    return SILENT if is_silent else PARTLY, f"misses {', '.join(missing)}"


def _word(text: str) -> str:
    """Return the pattern of whole words; their ends may differ, as in "cables"."""
    return rf"(?<!\w){re.escape(text.strip().casefold())}"
