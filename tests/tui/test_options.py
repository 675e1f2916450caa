"""The options of all commands: one name, one type and one unit for one idea."""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from probes.bandwidth.model.request import Request
from tui import cli
from tui.command_line.arguments import REFUSED, commands_of
from tui.command_line.options import OutputOptions, TableOptions, parsed
from tui.commands.bench.options import BenchOptions
from tui.commands.check import CheckOptions
from tui.commands.env import EnvOptions
from tui.commands.hang import HangOptions
from tui.commands.live.live import LiveOptions
from tui.commands.ras import RasOptions
from tui.commands.topo import TopologyOptions
from tui.launch import SLURMD_SECONDS
from tui.manual import page
from tui.settings.table import SETTINGS

# Times that are not read as durations: an interval may be a part of a second, and slurmd's own limit is known
# before the options are read.
OTHER_TIMES = {("", "--interval"), ("live", "--interval"), *((name, "--limit") for name in SLURMD_SECONDS)}
TIMES = {"--seconds", "--interval", "--timeout", "--wait", "--keep", "--before", "--after", "--limit"}

KINDS: dict[str, Any] = {
    "bench": BenchOptions,
    "check": CheckOptions,
    "env": EnvOptions,
    "hang": HangOptions,
    "live": LiveOptions,
    "modules": TableOptions,
    "nccl-log": OutputOptions,
    "ras": RasOptions,
    "topo": TopologyOptions,
}
"""A command → the dataclass of its options."""
CODE = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(cli.__file__).parent.rglob("*.py")]
CALLS = [node for tree in CODE for node in ast.walk(tree) if isinstance(node, ast.Call)]


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands with their options; "" is gdrtop itself."""
    pending: list[tuple[str, argparse.ArgumentParser]] = [("", cli.command_parser())]
    while pending:
        name, parser = pending.pop()
        yield name, parser
        pending += [(f"{name} {part}".strip(), inner) for part, (_, inner) in commands_of(parser).items()]


PARSERS = dict(parsers())


def is_duration(action: argparse.Action) -> bool:
    return getattr(action.type, "__qualname__", "").startswith("duration.")


def typed_commands() -> Iterator[tuple[str, str]]:
    """All commands of gdrtop in the manual and in texts of the program: its name and each option."""
    root = Path(cli.__file__).parents[1]
    paths = [root / "README.md", *(root / "tui/manual").glob("*.md")]
    paths += [path for part in ("probes", "tui", "widgets") for path in (root / part).rglob("*.py")]
    paths += (root / "probes").rglob("*.toml")
    for path in paths:
        for match in re.finditer(r"gdrtop((?: [^\s|>#;&`'\"]+)+)", path.read_text(encoding="utf-8")):
            name = ""
            for word in match[1].split():
                if option := re.match(r"--[a-z][a-z0-9-]*\w", word):
                    yield name, option[0]
                elif f"{name} {word}".strip() in PARSERS:
                    name = f"{name} {word}".strip()
                elif not name or word.endswith((".", ",", ":")):
                    break


def test_an_option_that_a_text_names_exists() -> None:
    own = {option for action in PARSERS[""]._actions for option in action.option_strings}
    options = {
        name: own | {option for action in parser._actions for option in action.option_strings}
        for name, parser in PARSERS.items()
    }
    options["fleet"] |= options["fleet check"]
    typed = set(typed_commands())
    assert ("ras", "--interval") in typed
    assert not {f"gdrtop {name} {option}" for name, option in typed if option not in options[name]}


@pytest.mark.parametrize("name", PARSERS)
def test_a_time_is_a_duration_everywhere(name: str) -> None:
    for action in PARSERS[name]._actions:
        wrong = [
            option
            for option in action.option_strings
            if option in TIMES
            and action.help != argparse.SUPPRESS
            and not is_duration(action)
            and (name, option) not in OTHER_TIMES
        ]
        assert not wrong, (name, wrong)
        assert not is_duration(action) or action.metavar == "TIME", (name, action.option_strings)


@pytest.mark.parametrize("name", PARSERS)
def test_json_is_a_switch(name: str) -> None:
    action = PARSERS[name]._option_string_actions.get("--json")
    assert action is None or action.nargs == 0


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_command_refuses_is_not_offered(command: str) -> None:
    for name, parser in PARSERS.items():
        if name == command or name.startswith(f"{command} "):
            text = parser.format_help()
            assert not [option for option in REFUSED[command] if re.search(rf"\n  {option}(?![\w-])", text)]


def named(text: str) -> set[str]:
    """The commands between backquotes, without their options."""
    words = (match.split(" -")[0] for match in re.findall(r"`([a-z][^`]*)`", text))
    return {word for word in words if word in PARSERS}


def test_the_manual_lists_the_commands_that_print_json() -> None:
    listed = page("json").partition("Every document begins")[0]
    have = {name for name, parser in PARSERS.items() if "--json" in parser._option_string_actions}
    assert named(listed) - {"report"} == have - {"report"}


def test_the_manual_lists_the_commands_with_exit_statuses_of_their_own() -> None:
    listed = page("json").partition("exit statuses of their own")[2].partition("\n## ")[0]
    have = {name for name, parser in PARSERS.items() if name and "exit status" in (parser.epilog or "")}
    always_0 = {*SLURMD_SECONDS, "watch"}
    assert named(listed) - always_0 == have - always_0


def test_the_manual_lists_the_commands_that_read_another_node() -> None:
    (line,) = re.findall(r"^    gdrtop check --host \w+ +also (.*)$", page("remote"), re.M)
    allowed = {
        name for name, parser in PARSERS.items() if name and " " not in name and is_offered(parser, "--host")
    }
    assert {*re.split(r", | and ", line)} | {"check"} == allowed - {"fleet"}


def test_a_setting_is_the_default_of_an_option_that_exists() -> None:
    for name, setting in SETTINGS.items():
        parsers = [parser for command, parser in PARSERS.items() if setting.command in command]
        dests = {action.dest for parser in parsers for action in parser._actions}
        assert not setting.option or setting.option in dests, (name, setting.option)


def is_offered(parser: argparse.ArgumentParser, option: str) -> bool:
    action = parser._option_string_actions.get(option)
    return action is not None and action.help != argparse.SUPPRESS


@pytest.mark.parametrize("command", KINDS)
def test_a_dataclass_of_options_has_the_names_and_defaults_of_the_arguments(command: str) -> None:
    words = [command, "x.log"] if command == "nccl-log" else [command]
    options = cli.command_parser().parse_args(words)
    options.request = Request()  # of bench, from several arguments
    assert parsed(KINDS[command], options) == KINDS[command]()


def test_every_dataclass_of_options_is_compared() -> None:
    used = {ast.unparse(call.args[0]) for call in CALLS if ast.unparse(call.func) == "parsed"}
    assert used == {kind.__name__ for kind in KINDS.values()}


def test_every_argument_is_read() -> None:
    read = {name.name for kind in KINDS.values() for name in fields(kind)}
    pairs = ((word.arg, word.value) for call in CALLS for word in call.keywords)
    tables = (node for tree in CODE for node in ast.walk(tree) if isinstance(node, ast.Dict))
    rows = (
        (key and ast.unparse(key), value)
        for table in tables
        for key, value in zip(table.keys, table.values, strict=True)
    )
    given = {id(value) for name, value in (*pairs, *rows) if name in ("dest", "'dest'")}
    for tree in CODE:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("options"):
                read.add(node.attr)
            elif isinstance(node, ast.Constant) and id(node) not in given:
                read.add(str(node.value))  # for getattr()
    for name, parser in PARSERS.items():
        unread = {action.dest for action in parser._actions} - read - {"help"}
        assert not unread, f"gdrtop {name} takes {unread}, which nothing reads"


def kind_of(dest: str) -> object:
    """What the argument holds: two of one kind could change places unseen."""
    actions = [each for parser in PARSERS.values() for each in parser._actions if each.dest == dest]
    is_switch = any(each.nargs == 0 and each.const is not None for each in actions)
    return bool if is_switch else next((each.type for each in actions if each.type), str if actions else dest)


def test_no_call_takes_two_switches_or_two_texts_by_their_place() -> None:
    for call in CALLS:
        taken = [
            node.attr
            for node in call.args
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "options"
        ]
        kinds = [kind_of(dest) for dest in taken]
        twice = {dest for dest, kind in zip(taken, kinds, strict=True) if kinds.count(kind) > 1}
        assert not twice, f"name {twice} in {ast.unparse(call)}, or use parsed()"
