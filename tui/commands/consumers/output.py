"""Write what other programs read of a check: a contract, actions, a line, and saved files."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any, TextIO

from probes.base.origin import Origin
from probes.base.text import printable
from probes.checks.judgment import Judgment
from probes.checks.new_jobs import Action, rows_of, strongest
from tui.commands.consumers.checked_node import CheckedNode, in_short
from tui.runtime.json_values import write_json
from tui.runtime.printing import source_word
from widgets.base.lines import Line, line, plain
from widgets.node import verdict as verdict_drawing

ONE_LINE_BYTES = 80  # what Node Problem Detector and others keep of a line


def write_for(consumer: str, node: CheckedNode, out: TextIO) -> int:
    """Print what a consumer expects, and return the exit status that it expects."""
    from tui.commands.consumers.contracts import CONTRACTS

    answer = CONTRACTS[consumer](node)
    if answer.text:
        out.write(f"{answer.text}\n")
    return answer.status


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
    """Save the line, with its time, and the JSON of a check; return why that failed, or ""."""
    from tui.files.new_file import NotWritten
    from tui.files.verdict_file import save_verdict

    text = io.StringIO()
    write_json(content, text)
    when = time.strftime("%m-%d %H:%M", time.localtime(at))
    try:
        save_verdict(directory, plain(one_line(judgment, origin, f"gdrtop {when} ")), text.getvalue())
    except NotWritten as error:
        return str(error)
    return ""
