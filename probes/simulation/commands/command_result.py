"""A command given to a simulated node, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from probes.host.protocol import Host
from probes.simulation.node.tree import Tree

BRIEFLY = 0.1
NOT_FOUND = 127  # as a shell says it


@dataclass(frozen=True)
class Performed:
    """What a command on the simulated node printed, in order, and its exit status."""

    lines: tuple[str, ...]  # stdout and stderr as a terminal shows them, without line ends
    exit_status: int
    seconds: float  # how long such a command takes on a real node, roughly


@dataclass(frozen=True)
class Order:
    """A command for a simulated node, at so many seconds since it began."""

    host: Host
    tree: Tree
    name: str  # without the directory
    words: tuple[str, ...]  # the arguments
    given: str  # its standard input
    seconds: float


Obeyed = Callable[[Order], Performed]


def done(*lines: str, seconds: float = BRIEFLY) -> Performed:
    """It went well."""
    return Performed(lines, 0, seconds)


def failed(*lines: str, exit_status: int = 1, seconds: float = BRIEFLY) -> Performed:
    """It did not."""
    return Performed(lines, exit_status, seconds)


def not_obeyed(what: str) -> Performed:
    """A command that the simulated node does not have: it never pretends that something was done."""
    return failed(f"{what}: the simulated node has no such command; nothing was done", exit_status=NOT_FOUND)


def one_after_another(results: Iterable[Performed]) -> Performed:
    """All that they printed; the worst exit status."""
    all_of_them = tuple(results)
    return Performed(
        tuple(line for one in all_of_them for line in one.lines),
        max((one.exit_status for one in all_of_them), default=0),
        sum(one.seconds for one in all_of_them) or BRIEFLY,
    )


def split_options(words: Iterable[str], valued: str = "") -> tuple[dict[str, str], list[str]]:
    """The options before `--` by name, and the other words; `valued` are letters that take the next word.

    Letters may stand together (-rf), a long option may have its value behind a "=".
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
