"""Tests before they run: settings, what they show, their limits and commands, and the affected jobs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.cells import cell_len

from probes.bandwidth.model.command import Refused, is_host
from probes.bandwidth.model.planned_series import PlannedTest, Purpose, Series
from probes.bandwidth.model.request import Mode
from probes.bandwidth.planning.inventory import Available
from probes.base.frozen import frozen
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
from widgets.base.figures import gbps, minutes
from widgets.base.lines import Line, Run, Tone, folded, line, paragraphs, section, wrapped

_THIS_NODE = "THIS-NODE"


def draw_series(series: Series, width: int, node: str = "") -> list[Line]:
    """Return all tests of a series; `node` is the name of this node, as a peer calls it."""
    title = f"{series.title} · about {minutes(series.seconds)}"
    lines: list[Line] = wrapped(title, width, Tone.TITLE)
    last_purpose = None
    for test in series.tests:
        if len(series.tests) > 1:
            lines += [(), *wrapped(test.title, width, Tone.TITLE)]
        if test.purpose != last_purpose:
            lines += draw_purpose(test.purpose, width, "  ")
        last_purpose = test.purpose
        lines += draw_commands(test, node)
        lines += draw_limits([test], width, Tone.DIM, "  ")
        lines += draw_expected([test], width, "  ")
        lines += paragraphs(test.notes, width, Tone.WARNING, "  ")
    return [*lines, *draw_left_out(series, width)]


def draw_purpose(purpose: Purpose, width: int, indent: str = "") -> list[Line]:
    """Return what a test shows, and what it does not show."""
    shown = wrapped(f"shows: {purpose.proves}", width, Tone.DIM, indent)
    return [*shown, *wrapped(f"does not show: {purpose.not_proven}", width, Tone.DIM, indent)]


def draw_limits(
    tests: Sequence[PlannedTest], width: int, tone: Tone = Tone.TITLE, indent: str = ""
) -> list[Line]:
    """Return the limits of the tests, lowest first; nothing for unknown limits."""
    limits: dict[float, list[str]] = {}
    for test in tests:
        least = test.limit.least
        if least is not None and not isinstance(least.nominal_gbps, Unknown):
            limits.setdefault(least.nominal_gbps, []).append(f"{least.name} ({least.why})")
    lines: list[Line] = []
    for number, (nominal, names) in enumerate(sorted(limits.items())):
        count = f", in {plural(len(names), 'test')}" if len(limits) > 1 else ""
        others = len(set(names)) - 1
        more = f"; {others} more with the same limit" if others else ""
        text = f"{'' if number else 'at most '}{gbps(nominal)}{count}: {names[0]}{more}"
        lines += wrapped(text, width, tone, indent)
    return lines


def draw_expected(tests: Sequence[PlannedTest], width: int, indent: str = "") -> list[Line]:
    """Return what this machine type should reach, and who says so; nothing if that is not known."""
    expected = dict.fromkeys(test.expected for test in tests if test.expected is not None)
    texts = (f"{each.words}{f' ({each.source})' if each.source else ''}" for each in expected)
    return paragraphs(texts, width, Tone.DIM, indent)


def draw_left_out(series: Series, width: int) -> list[Line]:
    """Return the tests that cannot run on this node, and why."""
    texts = (f"{test.title}: {test.reason}" for test in series.left_out)
    return section("Left out:", paragraphs(texts, width, Tone.WARNING, "  "))


def draw_not_started(tests: Sequence[PlannedTest], width: int) -> list[Line]:
    """Return the first of the tests that a series has not started."""
    listed = join_limited(test.title for test in tests)
    return [(), *wrapped(f"Not started: {listed}", width, Tone.WARNING)] if listed else []


def draw_affected(affected: Sequence[str], width: int) -> list[Line]:
    """Return the jobs that the tests would affect."""
    head = line(Run("This would affect running jobs:", Tone.WARNING))
    return [head, *paragraphs((f"▲ {text}" for text in affected), width, Tone.WARNING, "  ")]


# Commands


def draw_commands(test: PlannedTest, node: str = "") -> list[Line]:
    """Return the command of each process, then the peer's; each in one line, so that it can be copied."""
    lines: list[Line] = []
    for process in test.processes:
        command = shlex.join(process.command.argv)
        lines.append(line(Run(f"  {process.name}: ", Tone.DIM), Run(command, Tone.GOOD)))
    if test.for_peer:
        lines.append(line(Run("  on the peer: ", Tone.DIM), Run(peer_command(test, node), Tone.GOOD)))
        when = "when the server here is waiting" if test.setup is Mode.SERVER else "before the test here"
        lines.extend((Run(f"  {note}", Tone.DIM),) for note in (f"start it {when}", *_peer_notes(test, node)))
    return lines


def draw_for_peer(test: PlannedTest, width: int, node: str) -> list[Line]:
    """Return the peer's command for a pane, in which a key copies it; nothing if none is needed."""
    if not test.for_peer:
        return []
    order = "THEN START THIS ON THE PEER" if test.setup is Mode.SERVER else "START THIS ON THE PEER FIRST"
    lines: list[Line] = [(), (Run(order, Tone.TITLE), Run("  c: copy", Tone.DIM))]
    lines += command_lines(peer_command(test, node), width)
    return lines + paragraphs(_peer_notes(test, node), width, Tone.DIM)


def peer_command(test: PlannedTest, node: str) -> str:
    """Return the command that must run on the peer, as a shell takes it; "" if none is needed.

    A client names its server: `node`, or a placeholder if that is not a valid host name.
    """
    if not test.for_peer:
        return ""
    return shlex.join((*test.for_peer, _server_name(node)) if test.setup is Mode.SERVER else test.for_peer)


def _server_name(node: str) -> str:
    return node if is_host(node) else _THIS_NODE


def _peer_notes(test: PlannedTest, node: str) -> list[str]:
    notes = ["assumes that the peer is like this node: its RDMA device (-d) and GPU may have other names"]
    if test.setup is Mode.SERVER:
        name = _server_name(node)
        other = "a" if name == _THIS_NODE else "or another"
        notes.append(f"{name}: {other} name or address of this node that the peer can reach")
    return notes


def command_lines(command: str, width: int, indent: str = "") -> list[Line]:
    """Break a command between its words, with the backslashes that a shell needs."""
    pieces = [indent]
    for word in command.split(" "):
        if pieces[-1].strip() and cell_len(pieces[-1]) + cell_len(word) + 3 > width:
            pieces[-1] += " \\"
            pieces.append(f"{indent}  ")
        pieces[-1] += f" {word}" if pieces[-1].strip() else word
    return [piece for text in pieces for piece in folded((Run(text),), width)]


# The available tools


def draw_inventory(available: Sequence[Available], width: int) -> list[Line]:
    """Return each tool with version and path, and what it shows; equal texts of a tool family only once."""
    lines: list[Line] = []
    cells = max((len(entry.tool) for entry in available), default=0)
    for entry, following in zip(available, [*available[1:], None], strict=True):
        lines += _tool(entry, cells, width)
        if entry.install_hint and (following is None or following.install_hint != entry.install_hint):
            lines += wrapped(f"to install: {entry.install_hint}", width, Tone.DIM, "    ")
        if following is None or following.purpose.proves != entry.purpose.proves:
            lines += draw_purpose(entry.purpose, width, "    ")
    return lines


def _tool(entry: Available, cells: int, width: int) -> list[Line]:
    if not entry.can_run:
        mark, facts = Run("–", Tone.DIM), []
    else:
        mark = Run("▲", Tone.WARNING) if entry.missing else Run("✓", Tone.GOOD)
        version = "version unknown" if isinstance(entry.version, Unknown) else f"version {entry.version}"
        facts = [str(entry.path), version]
        if entry.dmabuf is True:
            facts.append("GPU memory via DMA-BUF or nvidia-peermem")
    text = " · ".join(filter(None, [*facts, entry.missing]))
    first, *more = wrapped(text, width - cells - 3, Tone.PLAIN if entry.can_run else Tone.DIM)
    lines: list[Line] = [(mark, Run(" "), Run(f"{entry.tool:<{cells}}", Tone.TITLE), Run(" "), *first)]
    return [*lines, *((Run(" " * (cells + 3)), *rest) for rest in more)]


# The setup screen of bandwidth tests: the settings as rows, and the planned tests.

_LABEL_WIDTH = 14
_MOST_COMMANDS = 24


@frozen
class SettingRow:
    """A setting: its value, and a short note beside it."""

    name: str
    label: str
    value: str
    note: str = ""
    is_possible: bool = True
    is_typed: bool = False


def draw_settings(settings: Sequence[SettingRow], selected: str) -> list[Line]:
    """Return one line per setting; the selected value is between arrows."""
    lines: list[Line] = []
    for row in settings:
        is_selected = row.name == selected
        left, right = (("[", "]") if row.is_typed else ("‹", "›")) if is_selected else (" ", " ")
        tone = Tone.CURSOR if is_selected else Tone.PLAIN if row.is_possible else Tone.DIM
        label = Run(f"{row.label:<{_LABEL_WIDTH}}", Tone.TITLE if is_selected else Tone.PLAIN, row.name)
        note = Run(f"  {row.note}" if row.note else "", Tone.DIM)
        lines.append((label, Run(f"{left} "), Run(row.value, tone), Run(f" {right}"), note))
    return lines


def draw_planned(
    series: Series | Refused,
    width: int,
    node: str,
    affected: Sequence[str] = (),
    earlier: Sequence[Line] = (),
) -> list[Line]:
    """Return limit and duration of a series, the affected jobs, what it shows, and every command.

    `node` is the name of this node, as a peer calls it; `earlier` are lines about earlier results.
    """
    if isinstance(series, Refused):
        return wrapped(f"This cannot run: {series.reason}.", width, Tone.WARNING)
    first = series.tests[0]
    count = f"{len(series.tests)} tests, " if len(series.tests) > 1 else ""
    lines = draw_limits(series.tests, width)
    if not lines:
        lines += wrapped("path limit unknown", width, Tone.DIM)
    lines += draw_expected(series.tests, width)
    lines.append((Run(f"takes {count}about {minutes(series.seconds)}"),))
    if affected:
        lines.extend(draw_affected(affected, width))
    # In a sweep only the names of the NICs differ, so the first purpose of each memory stands for all.
    purposes: dict[str, Purpose] = {}
    for test in series.tests:
        purposes.setdefault(test.memory, test.purpose)
    for purpose in purposes.values():
        lines.extend(draw_purpose(purpose, width))
    lines += paragraphs(dict.fromkeys(f"note: {note}" for test in series.tests for note in test.notes), width)
    lines.extend([*earlier, *draw_for_peer(first, width, node)])
    lines.extend([(), (Run("COMMANDS" if len(series.tests) > 1 else first.title, Tone.TITLE),)])
    for test in series.tests[:_MOST_COMMANDS]:
        lines.extend(_commands(test, width, with_title=len(series.tests) > 1))
    if len(series.tests) > _MOST_COMMANDS:
        more = plural(len(series.tests) - _MOST_COMMANDS, "more test")
        lines.append((Run(f"and {more} like these", Tone.DIM),))
    return [*lines, *draw_left_out(series, width)]


def _commands(test: PlannedTest, width: int, with_title: bool) -> list[Line]:
    lines: list[Line] = [(Run(test.title, Tone.TITLE),)] if with_title else []
    for process in test.processes:
        where = f" on {process.host}" if process.host else ""
        lines.append((Run(f"{process.name}{where}:", Tone.DIM),))
        lines.extend(command_lines(shlex.join(process.command.argv), width, "  "))
    return lines
