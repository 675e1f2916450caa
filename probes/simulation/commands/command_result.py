"""A command on a simulated node, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from probes.base.frozen import frozen
from probes.host.protocol import Host
from probes.simulation.node.model.tree import Tree

BRIEFLY = 0.1
NOT_FOUND = 127  # the exit status of a shell


@frozen
class CommandResult:
    """What a command printed, and its exit status."""

    lines: tuple[str, ...]  # stdout and stderr as a terminal shows them, without line ends
    exit_status: int
    seconds: float  # rough duration on a real node


@frozen
class Invocation:
    """A command, `seconds` after the node started."""

    host: Host
    tree: Tree
    name: str  # without the directory
    args: tuple[str, ...]
    stdin: str
    seconds: float


Handler = Callable[[Invocation], CommandResult]


def done(*lines: str, seconds: float = BRIEFLY) -> CommandResult:
    """Return a success."""
    return CommandResult(lines, 0, seconds)


def failed(*lines: str, exit_status: int = 1, seconds: float = BRIEFLY) -> CommandResult:
    """Return a failure."""
    return CommandResult(lines, exit_status, seconds)


def unsupported(what: Invocation | str) -> CommandResult:
    """Return the failure of a command that the simulated node does not have."""
    command = what if isinstance(what, str) else " ".join((what.name, *what.args))
    error = f"{command}: not available on a simulated node. Nothing was changed."
    return failed(error, exit_status=NOT_FOUND)


def combine(results: Iterable[CommandResult]) -> CommandResult:
    """Combine results into one: all lines, the highest exit status."""
    results = tuple(results)
    return CommandResult(
        tuple(line for result in results for line in result.lines),
        max((result.exit_status for result in results), default=0),
        sum(result.seconds for result in results) or BRIEFLY,
    )


def split_options(words: Iterable[str], valued: str = "") -> tuple[dict[str, str], list[str]]:
    """Return the options before `--` by name, and the other words; `valued` are letters that take a value.

    Letters can be combined (-rf), and a long option can have a value after "=".
    """
    options: dict[str, str] = {}
    others: list[str] = []
    waiting = ""
    only_words = False
    for word in words:
        if waiting:
            options[waiting], waiting = word, ""
        elif only_words or not word.startswith("-") or word == "-":
            others.append(word)
        elif word == "--":
            only_words = True
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            options[name] = value
        else:
            for place, letter in enumerate(word[1:], 1):
                options[f"-{letter}"] = word[place + 1 :] if letter in valued else ""
                if letter in valued:
                    waiting = "" if word[place + 1 :] else f"-{letter}"
                    break
    return options, others
