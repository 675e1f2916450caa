"""No text of a user, a job or a peer holds gdrtop up: the time to read it grows with its length, not faster.

Each public parser is found by its signature, so that a new one is tested without being listed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import probes
from probes.bandwidth.model.expected import TableError
from probes.bandwidth.tools.tool import explain, tool_of
from probes.facts.system.tool_names import TOOL_OF
from probes.fleet.node_set import NodeSetError
from probes.nccl.log.reader import LogReader
from probes.read.text import TextReader
from probes.recording.format import RecordingError
from probes.recording.redaction.identifiers import COMMANDS, FILES
from probes.recording.redaction.tokens import Tokens
from tui.terminal.input_parser import InputParser

_SMALL, _LARGE = 16_000, 128_000  # characters: two lines, each about the longest that is kept
_TIMES = _LARGE // _SMALL
_LEAST_SECONDS = 0.04  # less is bounded, whatever the ratio
# The square of _TIMES is what a quadratic parser takes; a busy machine doubles a figure at most.
_MOST_TIMES = 3 * _TIMES
_TOKENS = (
    *" \t\n\r\0\x1b,;:=|/\\\"'`()[]{}<>#$%&*+-.@_~^!?",
    *("x", "0", "9", "a1", "\x1b[", "\x1b]", "${", "$(", "&&", "- ", ": ", "=1 ", "\\\n", "<a ", "</a>"),
    *("NCCL ", "NCCL INFO ", "NCCL WARN ", "Channel ", "NET/", "via ", "[0]", "0000:", "mlx5_0 ", "export "),
    *("options ", "install ", "NVRM: ", "Xid ", "menuentry '", "\udcff", "é", "中"),
)


_READERS = ("parse", "explain", "printable", "clean", "decoded", "text_of")  # how their names begin
Parse: TypeAlias = "Callable[[Any], object]"


def parsers() -> Iterator[tuple[str, Parse, type]]:
    """Yield each public function of probes that reads one text, and the type of the text."""
    seen = set()
    for module in pkgutil.walk_packages(probes.__path__, "probes."):
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            is_own = name.startswith(_READERS) and function.__module__ == module.name
            if not is_own or function in seen:
                continue
            seen.add(function)
            first, *others = inspect.signature(function).parameters.values()
            has_others = any(parameter.default is parameter.empty for parameter in others)
            if first.annotation in ("str", "bytes") and not has_others:
                yield f"{module.name}.{name}", function, {"str": str, "bytes": bytes}[first.annotation]


def _read_log(content: bytes) -> None:
    reader = LogReader()
    reader.begin("log")
    reader.feed(content)
    reader.end()
    reader.facts()


def _read_text(content: bytes) -> None:
    reader = TextReader()
    reader.begin("text")
    reader.feed(content)
    reader.end()
    reader.reading()


def _others() -> Iterator[tuple[str, Parse, type]]:
    yield "an NCCL log", _read_log, bytes
    yield "a pasted text", _read_text, bytes
    yield "what a terminal sends", lambda text: list(InputParser().feed(text, 0.0)), str
    for program in TOOL_OF:
        tool = tool_of(program)
        yield (
            f"a line of {program}",
            lambda text, tool=tool, program=program: tool.parser(program).feed(text),
            str,
        )
        yield f"the failure of {program}", lambda text, program=program: explain(program, [text], 1), str
    rules = {row.rule for row in FILES if row.rule is not None}
    for number, rule in enumerate(sorted(rules, key=repr)):
        yield f"redaction {number}", lambda content, rule=rule: rule(Tokens(), content), bytes
    for name, command in COMMANDS.items():
        yield f"redaction of {name}", lambda text, command=command: command(Tokens(), text), str


PARSERS = [*parsers(), *_others()]


def seconds(parse: Parse, text: str, kind: type) -> float:
    """Return the CPU time that this thread takes for a text."""
    content = text.encode("utf-8", "surrogateescape") if kind is bytes else text
    began = time.thread_time()
    with suppress(ValueError, TableError, RecordingError, NodeSetError):  # what is malformed
        parse(content)
    return time.thread_time() - began


units = st.lists(st.sampled_from(_TOKENS), min_size=1, max_size=4).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize(("parse", "kind"), [parser[1:] for parser in PARSERS], ids=[p[0] for p in PARSERS])
@settings(max_examples=20)
@given(before=units, unit=units, after=units)
@example(before="NCCL INFO ", unit="x", after="\n")
def test_the_time_grows_with_the_length_of_a_text(
    parse: Parse, kind: type, before: str, unit: str, after: str
) -> None:
    def cost(length: int) -> float:
        text = 2 * (before + unit * (length // len(unit) // 2) + after)
        return min(seconds(parse, text, kind) for _ in range(2))

    large = cost(_LARGE)
    if large > _LEAST_SECONDS:
        assert large < _MOST_TIMES * max(cost(_SMALL), _LEAST_SECONDS / _MOST_TIMES)


def test_a_new_parser_is_found() -> None:
    assert len(PARSERS) > 80
