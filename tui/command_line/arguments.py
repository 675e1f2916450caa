"""What the commands share of the command line: options, numbers, exit statuses, hints."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probes.base.data_files import read_toml
from probes.base.origin import Source
from probes.simulation.node.model.names import SIMULATED_NAMES
from tui.files.read_file import read_small
from tui.runtime.open_host import NoSuchHost
from tui.settings.current import current, is_configured

if TYPE_CHECKING:
    from probes.host.protocol import Host


# As monitoring plugins have it: 0 ok, 1 warning, 2 critical, 3 unknown. argparse's own 2 would mean critical.
EXIT_WRONG_USAGE = 3
EXIT_REFUSED = 2  # nothing was run: the action is not possible here, a guard, no confirmation
VERBOSE_HELP = (
    "after the output, print on stderr which sources were read, how long each took, and which failed; with "
    "--version: also print Python and Textual versions, and the dashboard's output driver"
)


_CONNECTION, _RECORDING = ("--host", "--over", "--sudo"), ("--replay", "--at")
# The options of the node with which a command never works; who gives them all the same reads why.
REFUSED = {
    **dict.fromkeys(("bench", "nccl-log", "reliability", "prolog", "epilog", "health-check"), _CONNECTION),
    "diff": (*_CONNECTION, "--root", *_RECORDING),
    **dict.fromkeys(("hang", "live", "setup"), ("--root",)),
    "fleet": ("--host", "--root", *_RECORDING),
    **dict.fromkeys(("prove", "watch"), (*_CONNECTION, "--root", *_RECORDING)),
    "ras": (*_CONNECTION, "--root"),
    "record": _RECORDING,
    "repair": ("--root", *_RECORDING),
}


_MOST_NAME = 128
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class UsageError(Exception):
    """The arguments do not fit together; the message says why."""


def add_arguments(parser: argparse._ActionsContainer, helps: Mapping[str, str], **given: Any) -> None:
    """Add arguments, in the words of their usage, with the help of each.

    "--yes" is a flag, "-o --output FILE" has a value, and in "--demo [NAME]" or "[STEP]" it may be missing;
    "FILE ..." stands for several. `given`: what else argparse takes, by name: yes={"default": True}.
    """
    for usage, text in helps.items():
        words = usage.split()
        names = [word for word in words if word.startswith("-")]
        value = " ".join(words[len(names) :])
        is_optional = value.startswith("[") and value.endswith("]")
        metavar, several, _ = (value[1:-1] if is_optional else value).partition(" ...")
        long = next((name for name in names if name.startswith("--")), metavar)
        key = long.lstrip("-").replace("-", "_").lower()
        keywords = {**given.get(key, given.get(f"{key}_", {})), "help": text}
        if metavar:
            keywords["metavar"] = metavar
        elif not keywords.keys() & {"action", "choices", "type"}:
            keywords["action"] = "store_true"
        if is_optional or several:
            keywords["nargs"] = "?" if not several else "*" if is_optional else "+"
        if not names:
            keywords.setdefault("dest", key)
        parser.add_argument(*names, **keywords)


_NODE_DEFAULTS: dict[str, Any] = {
    **{"root": "/", "host": "", "over": "", "sudo": False, "demo": None},
    **{"replay": None, "at": "", "seed": 0},
}


def add_node_options(parser: argparse.ArgumentParser, command: str = "", with_defaults: bool = False) -> None:
    """Add the options that choose the node; those that the command refuses are not in its help.

    They are accepted before and after a command, so only the main parser sets defaults.
    """
    helps = {
        "--root DIR": "read the node whose / is at DIR (default: /)",
        "--host NODE": "read this node over ssh; nothing is installed or written there",
        "--over COMMAND": "with --host or a fleet: use this command instead of ssh, for example "
        "'srun -w {host}'",
        "--sudo": "with --host or a fleet: read with sudo -n",
        "--demo [NAME]": "use a simulated node; --demo list shows them all",
        "--replay FILE": "use a file written by gdrtop record",
        "--at TIME": "with --replay: the moment, for example 14:03:11, 2026-11-23T14:03:11 or +90 (seconds "
        "after its start); default: the last one",
        "--seed N": "vary the values of a simulated node",
    }
    add_arguments(parser, helps, demo={"const": ""}, seed={"type": int})
    _set_defaults(parser, _NODE_DEFAULTS, with_defaults)
    for option in REFUSED.get(command, ()):
        parser._option_string_actions[option].help = argparse.SUPPRESS


def _set_defaults(parser: argparse.ArgumentParser, defaults: Mapping[str, Any], with_defaults: bool) -> None:
    for action in parser._actions:
        if action.dest in defaults:
            action.default = defaults[action.dest] if with_defaults else argparse.SUPPRESS


def add_output_options(parser: argparse.ArgumentParser, with_defaults: bool = False) -> None:
    """Add the options that every command has for what it prints; they have their defaults as above.

    A command that gives --verbose a further meaning has added it before.
    """
    helps = {
        "--ascii": "use ASCII characters only",
        "--color": "color text; auto: on a terminal, unless NO_COLOR is set or TERM is dumb (default: auto)",
        "-v --verbose": VERBOSE_HELP,
    }
    if "--verbose" in parser._option_string_actions:
        del helps["-v --verbose"]
    add_arguments(parser, helps, color={"choices": ("auto", "always", "never")})
    _set_defaults(parser, {"ascii": False, "color": "auto", "verbose": False}, with_defaults)


def add_table_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options of a command that prints a table; `kind`: its schema (gdrtop schema KIND)."""
    helps = {
        "--json": f"print JSON (gdrtop schema {kind})",
        "--rows": "print only the rows of a table with all columns, without a head, for scripts",
    }
    add_arguments(parser.add_mutually_exclusive_group(), helps)


def interval(text: str) -> float:
    """Parse the seconds between two samples, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 60")
    return seconds


def whole_number(least: int, most: int, what: str = "") -> Callable[[str], int]:
    """Return the type of an option that is a whole number; `what` it counts stands in the error."""

    def read(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) < 8 and least <= int(text) <= most:
            return int(text)
        meaning = f" ({what})" if what else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}{meaning}")

    return read


def duration(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option that is a time in whole seconds: "90", "90s", "5m", "6h" or "7d"."""

    def shown(seconds: int) -> str:
        unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _UNIT_SECONDS[unit] == 0)
        return f"{seconds // _UNIT_SECONDS[unit]}{unit}"

    def read(text: str) -> int:
        matched = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text, re.ASCII)
        seconds = int(matched[1]) * _UNIT_SECONDS[matched[2] or "s"] if matched else -1
        if not matched:
            raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90, 90s, 5m or 6h")
        if not least <= seconds <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a time from {shown(least)} to {shown(most)}")
        return seconds

    return read


def set_help(parser: argparse.ArgumentParser, command: str) -> None:
    """Set what the help of a command ends with, such as its exit statuses, and begins with."""
    texts = read_toml("tui.commands", "epilogs.toml")
    parser.description = texts["descriptions"].get(command, parser.description)
    parser.epilog = texts.get(command)


def set_configured_defaults(parser: argparse.ArgumentParser, command: str = "") -> None:
    """Give the options of a parser, and of the commands in it, the defaults of the configuration.

    Options whose default is suppressed stay as they are: the main parser has theirs.
    """
    if not is_configured():
        return
    from tui.settings.table import SETTINGS

    configured = {
        setting.option: current().values[name]
        for name, setting in SETTINGS.items()
        if setting.option and name in current().values and setting.command in ("", command)
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                set_configured_defaults(part, command)
        elif action.dest in configured and action.default is not argparse.SUPPRESS:
            default = configured[action.dest]
            action.default = default.value
            if action.help and "(default: " in action.help:
                head, _, tail = action.help.partition("(default: ")
                shown = f"{default.value}, from {default.origin}".replace("%", "%%")
                action.help = f"{head}(default: {shown}{tail[tail.find(')') :]}"


def add_job_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --job, the choice of a job by its number, its program or its whole name.

    `default`: what is shown without it.
    """
    help_ = f"the job: 4711, slurm:4711, train.py (default: {default})"
    add_arguments(parser, {"--job ID": help_}, job={"default": "", "type": _job})


def _job(text: str) -> str:
    if len(text) > _MOST_NAME:
        raise argparse.ArgumentTypeError(f"the job's name is longer than {_MOST_NAME} characters")
    return text


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return the summary and the parser of each command, with its options, which it adds when needed."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                fill: Any = getattr(command, "fill", None)
                if fill is not None:
                    command.fill = None
                    fill(command)
                found[name] = (summaries[name], command)
    return found


def require_running_node(host: Host, command: str) -> None:
    """Raise NoSuchHost if the host is a tree of files."""
    if host.origin.source is Source.TREE:
        raise NoSuchHost(f"gdrtop {command} needs a running node; --root is only a tree of files")


def named_text(name: str, most_bytes: int) -> tuple[str, str]:
    """Return how a file that an argument names is shown, and its text, or raise UsageError."""
    from tui.files.log_files import STDIN, UnreadableLog, chunks_of_log
    from tui.files.new_file import shown_path

    shown = "stdin" if name == STDIN else shown_path(name)
    content = b""
    try:
        for chunk in chunks_of_log(name):
            content += chunk
            if len(content) > most_bytes:
                raise UsageError(f"{shown_path(name)} is larger than {most_bytes >> 20} MiB")
    except UnreadableLog as error:
        raise UsageError(f"{shown_path(name)} cannot be read: {error}") from None
    return shown, content.decode("utf-8-sig", "replace")


# `gdrtop __complete KIND PREFIX`: words that the completion of a shell cannot know; it runs at each Tab.

_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")  # no pattern of ssh_config, and no hashed name


def words(kind: str, prefix: str = "") -> tuple[str, ...]:
    """Return the words that begin like this: "demos" or "hosts"; none of another kind."""
    kinds = {"demos": _demos, "hosts": _hosts}
    found = kinds[kind](prefix) if kind in kinds else ()
    return tuple(sorted({word for word in found if word.startswith(prefix)}))


def _demos(prefix: str) -> Iterable[str]:
    """Return simulated nodes; behind a "+" or a "," their faults."""
    match = re.fullmatch(r"(.*[+,])[^+,]*", prefix)
    if match is None:
        return ("list", *SIMULATED_NAMES)
    from probes.simulation.faults.catalogue import FAULTS

    return (match[1] + name for name in FAULTS)


def _hosts(prefix: str) -> Iterator[str]:
    """Yield the nodes that the user's own ssh knows by name; nothing is asked over the network."""
    for line in _lines("~/.ssh/config"):
        keyword, _, names = line.strip().replace("=", " ").partition(" ")
        if keyword.lower() == "host":
            yield from filter(_NAME.fullmatch, names.split())
    for line in _lines("~/.ssh/known_hosts"):
        names, _, _ = line.partition(" ")
        yield from filter(_NAME.fullmatch, names.split(","))


def _lines(path: str) -> list[str]:
    try:
        content = read_small(os.path.expanduser(path), _MOST_BYTES, "a file of ssh")
    except OSError:
        return []
    return content.decode("utf-8", "replace").splitlines()
