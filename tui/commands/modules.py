"""`gdrtop modules`: the kernel modules in load order, as text and as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypedDict

from probes.base.origin import Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel import log as kernel_log
from probes.facts.kernel.log import KernelLogFacts
from probes.facts.kernel.module_blockers import explain, refusal_of
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState, Rung, SymbolProvider
from probes.facts.node import Node, probe_node
from probes.host.probe_thread import ask_here
from probes.host.protocol import Host
from tui.command_line.arguments import add_table_options
from tui.command_line.options import TableOptions, parsed
from tui.runtime.json_values import Changed, node_document, object_from, object_of, write_json
from tui.runtime.open_host import open_host
from tui.runtime.printing import has_width, heading, print_lines, text_width
from widgets.base.columns import Column, draw_columns
from widgets.base.lines import Line, Run, line
from widgets.node import modules as modules_drawing

if TYPE_CHECKING:
    from typing_extensions import NotRequired


def add_options(parser: argparse.ArgumentParser) -> None:
    add_table_options(parser, "modules")


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print the modules of the node that the options name, and return the exit status."""
    return write_modules(open_host(options), out, parsed(TableOptions, options))


def write_modules(host: Host, out: TextIO, options: TableOptions) -> int:
    """Print the modules in load order, what is missing and why it matters."""
    node, log = probe_node(host), ask_here(host, "kernel log", lambda: kernel_log.probe(host))
    if options.json:
        write_json(modules_json(node, log, host.wall_clock()), out)
    elif options.rows:
        rows = () if isinstance(node.modules, Unknown) else _table(node, node.modules, has_all=True)[1:]
        print_lines(rows, out, options.ascii)
    else:
        width = text_width(out) if has_width(out) else sys.maxsize
        print_lines([heading(node), *_text(node, log, width)], out, options.ascii)
    return exit_status(node)


def exit_status(node: Node) -> int:
    """Return 0 if this node has all it needs, 1 if a module is missing, 3 if a state or need is unknown."""
    facts = node.modules
    if isinstance(facts, Unknown):
        return 3
    states = [(rung, facts.modules[rung.module].state) for rung in facts.ladder]
    absent = [rung for rung, state in states if state is ModuleState.NOT_LOADED]
    unclear = [rung for rung in absent if modules_drawing.may_be_needed(node, rung)]
    if not all(modules_drawing.not_needed(node, rung) for rung in absent if rung not in unclear):
        return 1
    return 3 if unclear or any(isinstance(state, Unknown) for _, state in states) else 0


def _text(node: Node, log: Maybe[KernelLogFacts], width: int) -> list[Line]:
    facts = node.modules
    if isinstance(facts, Unknown):
        return [(), line(f"The modules could not be read: {facts}")]
    states = {facts.modules[rung.module].state for rung in facts.ladder}
    (state,) = states if len(states) == 1 else (None,)
    if isinstance(state, Unknown):
        unread = f"The state of every module is unknown: {state.detail or state} ({state.source})"
        hint = [line("To try a simulated node: gdrtop modules --demo")]
        return [(), line(unread), *(hint if node.origin.source is Source.LIVE else [])]
    lines = [modules_drawing.summary(node, facts), (), *_table(node, facts, width < sys.maxsize, width)]
    for rung in facts.ladder:
        mark, _ = modules_drawing.mark_of(node, rung, facts.modules[rung.module])
        refusal = refusal_of(facts, log, rung.module)
        refused = [line(f"  the kernel refused it before: {refusal}")] if refusal else []
        if mark in "✗?":
            lines.extend([(), line(f"{mark} {rung.module}: {explain(facts, rung.module)}"), *refused])
            lines.append(line(f"  why it matters: {rung.why}"))
        elif refused:
            reason = modules_drawing.not_needed(node, rung)
            lines.extend([(), line(f"{mark} {rung.module}: {reason}"), *refused])
    if facts.rules_unread:
        lines.extend([(), line(modules_drawing.unread_rules(facts))])
    return lines


_NARROW = 7  # columns; the others with a heading are those of --rows and of a wide terminal
# The columns: heading ("": in JSON only), JSON key, and the value for a module.
_COLUMNS: tuple[tuple[str, str, Callable[[ModuleFacts, Rung], object]], ...] = (
    ("MODULE", "name", lambda facts, rung: rung.module),
    ("STATE", "state", lambda facts, rung: facts.modules[rung.module].state),
    ("REFCNT", "refcnt", lambda facts, rung: facts.modules[rung.module].refcnt),
    ("VERSION", "version", lambda facts, rung: facts.modules[rung.module].version),
    ("FROM", "origin", lambda facts, rung: facts.modules[rung.module].origin),
    ("NEEDS", "needs", lambda facts, rung: rung.needs),
    ("USED BY", "used_by", lambda facts, rung: facts.modules[rung.module].used_by),
    ("ON DISK", "on_disk", lambda facts, rung: facts.modules[rung.module].on_disk),
    ("SRCVERSION", "srcversion", lambda facts, rung: facts.modules[rung.module].srcversion),
    ("BLACKLISTED", "blacklisted", lambda facts, rung: facts.modules[rung.module].blacklisted),
    ("", "install_line", lambda facts, rung: (line := facts.modules[rung.module].install_line) and str(line)),
    ("LOADED AT BOOT", "persistent", lambda facts, rung: facts.modules[rung.module].persistent),
    ("", "parameters", lambda facts, rung: facts.modules[rung.module].parameters),
    ("", "core", lambda facts, rung: rung.core),
    ("", "why", lambda facts, rung: rung.why),
    ("", "explanation", lambda facts, rung: explain(facts, rung.module)),
)


def _cell(value: object) -> str:
    if isinstance(value, Unknown):
        return "-" if value.reason is Reason.NOT_THERE else f"? ({value.reason.value})"
    if value is None:
        return "-"
    if isinstance(value, Enum):
        return str(value.value)
    return ",".join(map(str, value)) or "-" if isinstance(value, tuple) else str(value)


def _table(node: Node, facts: ModuleFacts, has_all: bool, width: int = sys.maxsize) -> list[Line]:
    """Return a heading and a row a module, with the columns that fit; `has_all`: of all columns."""
    columns: list[Column] = []
    for place, (title, _, value) in enumerate(_COLUMNS):
        if title and (has_all or place < _NARROW):
            cells: list[Line] = [(Run(_cell(value(facts, rung))),) for rung in facts.ladder]
            columns.append(Column(title, cells, place + 1))
    marks = [Run(*modules_drawing.mark_of(node, rung, facts.modules[rung.module])) for rung in facts.ladder]
    names = [(mark, Run(" "), *name) for mark, name in zip(marks, columns[0].cells, strict=True)]
    columns[0] = Column(f"  {columns[0].title}", names, 1)
    return list(draw_columns(columns, [""] * len(names), width))


_MODULE = Annotated[
    KernelModule,
    Changed(
        without=("depends", "softdep", "taint", "kernel_forbids"),
        install_line=str | None,
        needs=tuple[str, ...],
        core=bool,
        why=str,
        explanation=str,
    ),
]
_SYMBOL = Annotated[SymbolProvider, Changed("symbol", "needed_by", "provider")]


class ModulesDocument(TypedDict):
    """`gdrtop modules --json`."""

    kernel_release: NotRequired[Maybe[str]]
    memory_peers: NotRequired[Maybe[tuple[str, ...]]]
    modules: Maybe[tuple[_MODULE, ...]]
    symbols: NotRequired[tuple[_SYMBOL, ...]]
    rules_unread: NotRequired[tuple[str, ...]]


def modules_json(node: Node, log: Maybe[KernelLogFacts], at: float) -> dict[str, Any]:
    """Return the JSON document; `at`: seconds since 1970."""
    facts = node.modules
    if isinstance(facts, Unknown):
        content = {"modules": None, "unknown": {"modules": str(facts)}}
        return node_document("modules", node, at, content)
    ladder = [object_of({key: value(facts, rung) for _, key, value in _COLUMNS}) for rung in facts.ladder]
    for rung, module in zip(facts.ladder, ladder, strict=True):
        if refusal := refusal_of(facts, log, rung.module):
            module["explanation"] = f"{module['explanation']}; the kernel refused it before: {refusal}"
    content = object_from(facts, ModulesDocument, modules=ladder)
    return node_document("modules", node, at, content)
