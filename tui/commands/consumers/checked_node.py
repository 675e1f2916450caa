"""One judgment of one node, the texts that contracts share, and what is written without a contract."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO, TypeAlias

from probes.base.frozen import frozen
from probes.base.origin import Origin
from probes.base.text import plural, printable
from probes.checks.judgment import Judgment, degrading
from probes.checks.new_jobs import Action, rows_of, strongest
from probes.queries.finding import Finding
from probes.snapshot.verdict import Verdict
from tui.runtime.json_values import write_json
from tui.runtime.printing import ascii_text, source_word
from widgets.base.lines import Line, line, plain
from widgets.node import verdict as verdict_drawing
from widgets.node.verdict import path_name

ONE_LINE_BYTES = 80  # what Node Problem Detector and others keep of a line
ROOTS_DIRECTORY = "/run/gdrtop"
VERDICT_LINE, CHECK_JSON = "verdict", "check.json"  # the files of the last check that was saved
_MOST_DEVICES = 2
# A shell, a macro or a perfdata parser gives every other character a meaning of its own.
_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:;()+/_%=@#-]")
# What is said instead of them. "A GPU's processor" is "A GPU processor": the plural would be another thing.
_OWNER = re.compile(r"(?<=\w)['’]s\b")
_ACCENT = re.compile("[\u0300-\u036f]")
_INSTEAD = str.maketrans(
    {
        **dict.fromkeys("'\"`“”‘’$\\^~", ""),
        **dict.fromkeys("|", "/"),
        **dict.fromkeys("[{<‹", "("),
        **dict.fromkeys("]}>›", ")"),
        **dict.fromkeys("·•–—→⇄↔", "-"),
        **{"!": ".", "?": ".", "*": "x", "×": "x", "&": "and", "…": "...", "≥": "at least", "≤": "at most"},
    }
)


@frozen
class CheckedNode:
    """A judgment, and where it was made."""

    judgment: Judgment
    origin: Origin
    actions: Mapping[str, Action]  # of --severity-map

    @property
    def source(self) -> str:
        """Return "SIMULATED hgx-h100: "; "" for a node that is there now."""
        word = source_word(self.origin)
        return f"{word} {self.origin.label}: " if word else ""


@frozen
class Answer:
    """What a program prints for its consumer, and its exit status."""

    text: str  # without the last newline; "": nothing is printed
    status: int


Contract: TypeAlias = Callable[[CheckedNode], Answer]


def safe(text: str, limit: int) -> str:
    """Return at most `limit` ASCII characters, none of which a shell or a monitoring system interprets."""
    from unicodedata import normalize

    words = _OWNER.sub("", printable(text)).translate(_INSTEAD)
    letters = _ACCENT.sub("", normalize("NFKD", words))
    plain = _UNSAFE.sub("-", ascii_text(letters))
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def with_devices(finding: Finding) -> str:
    """Return "port-down mlx5_3, mlx5_4 +2": the id, the first devices, and how many more there are."""
    shown = ", ".join(finding.devices[:_MOST_DEVICES])
    more = len(finding.devices) - _MOST_DEVICES
    return f"{finding.id} {shown}{f' +{more}' if more > 0 else ''}".rstrip()


def counts_of(verdict: Verdict) -> str:
    """Return "1 critical, 2 warnings, 1 silenced"; "" if there are none."""
    critical = f"{verdict.critical} critical" if verdict.critical else ""
    warnings = plural(verdict.warnings, "warning") if verdict.warnings else ""
    silenced = f"{verdict.silenced} silenced" if verdict.silenced else ""
    return ", ".join(filter(None, (critical, warnings, silenced)))


def served(verdict: Verdict) -> str:
    """Return "via DMA-BUF, 8 of 8 GPUs, 8 NICs"; "" if there is no path."""
    if verdict.path is None or not verdict.state.has_counts:
        return ""
    gpus = f"{verdict.gpus_served} of {plural(verdict.gpus, 'GPU')}"
    return f"via {path_name(verdict.path)}, {gpus}, {plural(verdict.nics, 'NIC')}"


def first_problem(judgment: Judgment) -> str:
    """Return why the verdict is not green, or the first finding of a green node; "" if there is neither.

    The reason of a green verdict has figures that move, so it is not a problem and not in the text.
    """
    if not judgment.verdict.is_green:
        # Not "(+1 more)": the counts beside it are of all findings, and not only of the reasons.
        titles = (finding.title for finding in degrading(judgment.findings)[:1])
        reason = judgment.verdict.reason
        return next((title for title in titles if reason.startswith(f"{title} (+")), reason)
    return judgment.listed[0].title if judgment.listed else ""


def in_short(judgment: Judgment) -> str:
    """Return "DEGRADED (1 critical): A GPU has fallen off the bus", or "READY via DMA-BUF, 8 of 8 GPUs"."""
    verdict, problem = judgment.verdict, first_problem(judgment)
    counts = counts_of(verdict)
    if not problem:
        return ", ".join(filter(None, (f"{verdict.word} {served(verdict)}".rstrip(), counts)))
    return f"{verdict.word}{f' ({counts})' if counts else ''}: {problem}"


def write_actions(judgment: Judgment, chosen: Mapping[str, Action], out: TextIO) -> None:
    """Print the action for the node, then one line for each finding: action, check, devices."""
    rows = rows_of(judgment, chosen)
    out.write(f"{strongest(rows).value}\n")
    for row in rows:
        devices = "" if row.finding is None else ",".join(row.finding.devices)
        out.write(f"{printable(f'{row.action.value} {row.id} {devices}').rstrip()}\n")


def one_line(judgment: Judgment, origin: Origin, prefix: str = "") -> Line:
    """Return the state and its reason in at most ONE_LINE_BYTES bytes."""
    head = verdict_drawing.draw(judgment.verdict)[0]
    mark = head._replace(text=head.text.partition(" ")[0])
    word = source_word(origin)
    before = f"{prefix}{word} " if word else prefix
    room = ONE_LINE_BYTES - len(f"{before}{mark.text} ".encode())
    text = in_short(judgment).encode()
    if len(text) > room:
        text = text[: room - len("…".encode())].decode(errors="ignore").encode() + "…".encode()
    return line(before, mark, f" {text.decode()}")


def save_check(
    directory: str, content: Mapping[str, Any], judgment: Judgment, origin: Origin, at: float
) -> str:
    """Save the line, with its time, and the JSON of a check for every user; return why that failed, or ""."""
    from tui.files import NotWritten
    from tui.files.new_file import make_directory, replace_public, why_not_as_root

    text = io.StringIO()
    write_json(content, text)
    when = time.strftime("%m-%d %H:%M", time.localtime(at))
    shown = plain(one_line(judgment, origin, f"gdrtop {when} "))
    try:
        if others := why_not_as_root(directory):
            raise NotWritten(others)
        make_directory(directory, mode=0o755)
        replace_public(os.path.join(directory, CHECK_JSON), text.getvalue().encode())
        replace_public(os.path.join(directory, VERDICT_LINE), f"{shown}\n".encode("utf-8", "replace"))
    except NotWritten as error:
        return str(error)
    return ""
