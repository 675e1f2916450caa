"""The parts of a test command: ssh, env, timeout and numactl in front, the program and its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import field

from probes.base.frozen import frozen
from probes.facts.system.tool_names import TEST_TOOLS
from probes.facts.system.tools import DIRECTORIES
from probes.simulation.commands.command_result import NOT_FOUND, CommandResult, failed, unsupported
from probes.simulation.node.model.tree import Tree

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_TIMEOUT = re.compile(r"--?[a-z-]{1,20}|\d{1,9}")  # its options and its seconds
_BIND = re.compile(r"--(?:cpunodebind|membind)=(\d{1,4})")
_NOT_THERE = {
    "timeout": "timeout: failed to run command ‘{}’: No such file or directory",
    "env": "env: ‘{}’: No such file or directory",
    "numactl": "numactl: execution of `{}': No such file or directory",
    "": "{}: command not found",
}
"""What the program in front prints about a missing program, or a shell."""


@frozen
class ParsedCommand:
    """A program and its arguments."""

    program: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    numa_node: int | None = None

    def option(self, name: str, default: str = "") -> str:
        """Return the word after an option."""
        return dict(zip(self.words, self.words[1:], strict=False)).get(name, default)


def split_ssh(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return host and command of `ssh OPTIONS -- [USER@]HOST COMMAND`, as gdrtop calls it, or None."""
    if "--" not in words or words[-1] == "--":
        return None
    peer, *command = words[words.index("--") + 1 :]
    try:  # ssh joins the words, and the shell on the peer splits them again
        split = shlex.split(" ".join(command))
    except ValueError:
        split = command
    return peer.rpartition("@")[2], tuple(split)


def parse_command(tree: Tree, argv: Sequence[str]) -> ParsedCommand | CommandResult:
    """Return the program, or the result of a command that fails before its program starts."""
    words, environment, numa_node, before = list(argv), {}, None, ""
    while words and (name := words[0].rpartition("/")[2]) in ("env", "timeout", "numactl"):
        words.pop(0)
        if name == "numactl" and _path(tree, name) is None:
            return failed(_NOT_THERE[before].format(name), exit_status=NOT_FOUND)
        while name == "env" and words and (variable := _VARIABLE.match(words[0])):
            environment[variable[1]] = variable[2]
            words.pop(0)
        while name == "timeout" and words and _TIMEOUT.fullmatch(words[0]):
            words.pop(0)
        while name == "numactl" and words and (bound := _BIND.fullmatch(words[0])):
            numa_node = int(bound[1])
            words.pop(0)
        before = name
    if numa_node is not None and numa_node >= len(tree.description.numa):
        out_of_range = f"libnuma: Warning: node argument {numa_node} is out of range"
        return failed(out_of_range, f"<{numa_node}> is invalid")
    if not words or words[0] not in TEST_TOOLS:
        return unsupported(words[0] if words else "a command without a program")
    if _path(tree, words[0]) is None:
        # numactl exits with 1 whatever fails.
        status = 1 if before == "numactl" else NOT_FOUND
        return failed(_NOT_THERE[before].format(words[0]), exit_status=status)
    return ParsedCommand(words[0], tuple(words[1:]), environment, numa_node)


def program_bytes(tree: Tree, program: str) -> bytes:
    """Return the content of an installed program."""
    content = tree.files.get(_path(tree, program) or "", b"")
    return content if isinstance(content, bytes) else b""


def _path(tree: Tree, name: str) -> str | None:
    paths = (f"{directory}/{name}" for directory in DIRECTORIES)
    return next((path for path in paths if path in tree.files), None)
