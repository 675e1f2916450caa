"""The words of a command: the tool behind env, numactl and timeout, and whether the node has it at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from probes.facts.system.tool_names import TEST_TOOLS
from probes.facts.system.tools import DIRECTORIES
from probes.simulation.commands.command_result import NOT_FOUND, CommandResult, failed, unsupported
from probes.simulation.node.tree import Tree

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_TIMEOUT = re.compile(r"--?[a-z-]{1,20}|\d{1,9}")  # its options and its seconds
_BIND = re.compile(r"--(?:cpunodebind|membind)=(\d{1,4})")


@dataclass(frozen=True)
class Called:
    """A tool and what it is called with."""

    tool: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    numa_node: int | None = None


def read(tree: Tree, argv: Sequence[str]) -> Called | CommandResult:
    """The tool that is meant, or how the command ends before any tool has begun."""
    words = list(argv)
    environment: dict[str, str] = {}
    numa_node: int | None = None
    before = ""
    while words:
        name = words[0].rpartition("/")[2]
        if name == "env":
            del words[0]
            while words and _VARIABLE.match(words[0]):
                variable, _, value = words.pop(0).partition("=")
                environment[variable] = value
        elif name == "timeout":
            del words[0]
            while words and _TIMEOUT.fullmatch(words[0]):
                del words[0]
        elif name == "numactl":
            if _path(tree, "numactl") is None:
                return failed(_no_such(before, "numactl"), exit_status=NOT_FOUND)
            del words[0]
            while words and (bound := _BIND.fullmatch(words[0])):
                numa_node = int(bound[1])
                del words[0]
            if numa_node is not None and numa_node >= len(tree.description.numa):
                return failed(
                    f"libnuma: Warning: node argument {numa_node} is out of range",
                    f"<{numa_node}> is invalid",
                )
        else:
            break
        before = name
    return _tool(tree, words, environment, numa_node, before)


def _tool(
    tree: Tree, words: list[str], environment: dict[str, str], numa_node: int | None, before: str
) -> Called | CommandResult:
    if not words:
        return unsupported("a command without a program")
    directory, slash, name = words[0].rpartition("/")
    if name not in TEST_TOOLS or (slash and directory not in DIRECTORIES):
        return unsupported(words[0])
    path = _path(tree, name)
    if path is None or (slash and words[0] != path):
        # numactl ends with 1 whatever it is that fails.
        return failed(_no_such(before, words[0]), exit_status=1 if before == "numactl" else NOT_FOUND)
    return Called(name, tuple(words[1:]), environment, numa_node)


def program_of(tree: Tree, tool: str) -> bytes:
    """The bytes of an installed program."""
    content = tree.files.get(_path(tree, tool) or "", b"")
    return content if isinstance(content, bytes) else b""


def _path(tree: Tree, name: str) -> str | None:
    return next((path for one in DIRECTORIES if (path := f"{one}/{name}") in tree.files), None)


def _no_such(before: str, program: str) -> str:
    """What the program in front says, or a shell."""
    if before == "timeout":
        return f"timeout: failed to run command ‘{program}’: No such file or directory"
    if before == "env":
        return f"env: ‘{program}’: No such file or directory"
    if before == "numactl":
        return f"numactl: execution of `{program}': No such file or directory"
    return f"{program}: command not found"
