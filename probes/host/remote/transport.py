"""How a node is reached: a command such as ssh starts the collector there, whose source it gets as input."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shlex
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.host.remote import collector

LONGEST_SECONDS = 24 * 3600  # then the collector ends by itself
ROUNDS = 40  # of questions: a directory leads to files, these to others, and a long command needs several
MOST_NOISE_BYTES = 1 << 16  # what shells and banners print before the program there greets
MOST_ERRORS_BYTES = 4096  # kept of what a transport prints on its standard error
# zlib packs 1,000 bytes into one, and a value of three characters takes up to 232 bytes of memory, so what a
# node answers is limited by what it becomes here. A node with 1,000 PCI functions and 5,000 processes needs
# 66,000 answers, 3.6 MB of text and 22 MB of memory, 11 MB of it in one message; a usual one a tenth of that.
MOST_TEXT_BYTES = 8 << 20  # of one message
MOST_LINE_BYTES = 12 << 20  # of the same, as base64 of what cannot be compressed
MOST_MESSAGE_BYTES = 24 << 20  # of the memory that the values of a message take
MOST_READING_BYTES = 48 << 20  # the same of all messages of a reading
MOST_QUESTIONS = 100_000  # of a reading
_VALUE_BYTES = 100  # of memory, for each character that begins a value
SSH = (
    *("ssh", "-T", "-oBatchMode=yes", "-oConnectTimeout=10"),
    *("-oForwardAgent=no", "-oForwardX11=no", "--", "{host}"),
)
"""The admin's own ssh, with its configuration, keys and jump hosts; it asks for nothing."""
NODE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._:@-]{0,252}[A-Za-z0-9_])?")
"""Names of nodes: one that begins with "-" would be an option of ssh."""
_SYSTEM_PYTHON = "/usr/libexec/platform-python"
_IS_RECENT = "import sys;sys.exit(sys.version_info<(3,6))"
CLEAN = ("env", f"PATH={':'.join(collector.TRUSTED_PATH)}", "LC_ALL=C.UTF-8")
_START_PROGRAM = (
    "import os,shutil,sys;"
    f"e={{'PATH':'{':'.join(collector.TRUSTED_PATH)}','LC_ALL':'C.UTF-8'}};"
    "p=shutil.which(sys.argv[1],path=e['PATH']) or sys.exit(sys.argv[1]+' is not installed');"
    "os.execve(p,sys.argv[1:],e)"
)
_NO_PYTHON = "gdrtop: no Python"
_SUDO = "sudo needs a password there; allow `sudo -n`, or connect as root"
REFUSED = "its ssh server closes connections before login; check MaxStartups there, or who may connect"
# What ssh, sudo and the node's shell print, and what to do then.
_FAILURES = (
    (
        "IDENTIFICATION HAS CHANGED",
        "its host key has changed; find out why, then remove the old one with `ssh-keygen -R {host}`",
    ),
    ("Host key verification failed", "its host key is unknown; run `ssh {host}` once to check and accept it"),
    ("Permission denied (", "it accepts no key of yours; make `ssh {host} true` work without a password"),
    ("Could not resolve hostname", "no such host"),
    ("Connection refused", "it refuses connections to its ssh port"),
    ("Connection timed out", "it does not answer on its ssh port"),
    ("invalid format", "what listens on its ssh port is no ssh server"),
    ("stdio forwarding failed", "its jump host cannot reach its ssh port"),
    ("kex_exchange_identification: ", REFUSED),
    ("a password is required", _SUDO),
    ("interactive authentication is required", _SUDO),
    ("a terminal is required", _SUDO),
    ("is not in the sudoers file", "sudo is not allowed there; allow `sudo -n`, or connect as root"),
    ("sudo: not found", "sudo is not installed there; connect as root"),
    (_NO_PYTHON, "it has no Python 3.6 or newer; install python3 there, or use --root with a copy of /"),
    ("is too old for gdrtop", "its Python is older than 3.6; install a newer python3 there"),
)
_WIDE = re.compile(rb"\\u(?!00)")
GARBLED = "its answer is garbled"
SILENT = "it does not answer"
NOISY = "it prints something else than gdrtop's answers"
TOO_MUCH = "it sends more than gdrtop takes from a node"
TOO_MANY_FILES = "it has more files than gdrtop reads from a node"


class ConnectionFailed(Exception):
    """The node does not answer; the message says why, and what to do."""


@frozen
class Target:
    """A node, and how to reach it."""

    host: str
    transport: tuple[str, ...] = SSH  # argv, in which {host} stands for the node
    is_sudo: bool = False  # run the collector with sudo -n

    @property
    def argv(self) -> list[str]:
        """Return the command that starts the collector, which is on its standard input."""
        return self.python(len(collector_source()))

    def python(self, program_bytes: int) -> list[str]:
        """Return the command that starts a program of `program`, which comes on standard input."""
        start = (
            "import sys;"
            "sys.version_info>=(3,6) or sys.exit('Python %d.%d is too old for gdrtop'%sys.version_info[:2]);"
            f"import zlib;exec(zlib.decompress(sys.stdin.buffer.read({program_bytes})))"
        )
        return self.command(["sh", "-c", with_python(start, self.is_sudo)])

    def root_command(self, argv: Sequence[str]) -> list[str]:
        """Return what starts a program of the trusted path as root.

        sudoers may allow only Python, which reads the node as root, or only some commands, by their paths: so
        nothing else is between sudo and them.
        """
        if self.is_sudo:
            return self.command(["sh", "-c", with_python(_START_PROGRAM, True), "sh", *argv])
        return self.command([*CLEAN, "sudo", "-n", "--", *argv])

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return what starts a program on the node."""
        # ssh joins its arguments for the shell of the node; the others start a program.
        is_ssh = any(os.path.basename(word) == "ssh" for word in self.transport)
        started = [shlex.join(argv)] if is_ssh else list(argv)
        return [word.replace("{host}", self.host) for word in self.transport] + started


def with_python(start: str, is_sudo: bool = False) -> str:
    """Return the shell command that runs a line of Python with the first Python that works.

    One may be too old, or the shim of a version manager that finds none. If none works, the first says why.
    """
    run = f'exec {"sudo -n " if is_sudo else ""}"$p" -I -S -c {shlex.quote(start)}'
    works = f'"$p" -I -S -c {shlex.quote(_IS_RECENT)} </dev/null >/dev/null 2>&1'
    return (
        f'r() {{ {run} "$@"; }}; set -f; f=; i=$IFS; IFS=:;'
        # Not only the first of the PATH by its path: sudo looks for a bare name in a PATH of its own.
        f" for p in python3 $PATH {_SYSTEM_PYTHON}; do IFS=$i;"
        f" case $p in {_SYSTEM_PYTHON}|python3) ;; /*) p=$p/python3 ;; *) continue ;; esac;"
        f' command -v "$p" >/dev/null 2>&1 || continue; f=${{f:-$p}}; {works} && r "$@"; done;'
        f' p=$f; [ -z "$p" ] || r "$@"; echo {shlex.quote(_NO_PYTHON)} >&2; exit 127'
    )


@cache
def collector_source() -> bytes:
    """Return the compressed program."""
    path = Path(str(files(collector.__package__).joinpath("collector.py")))
    return zlib.compress(f"{plain_source(path)}\nmain({LONGEST_SECONDS})\n".encode())


def program(start: str, *modules: ModuleType) -> bytes:
    """Return modules as a compressed program that ends with the statement `start`.

    Each may import the ones before it, by their full names, and the standard library.
    """
    sources = [(module.__name__, plain_source(Path(str(module.__file__)))) for module in modules]
    load = (
        "import sys, types\n"
        f"for name, source in {sources!r}:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(source, name, 'exec'), module.__dict__)\n"
    )
    return zlib.compress(f"{load}{start}\n".encode())


@cache
def plain_source(file: Path) -> str:
    """Return a program of gdrtop's without its annotations, which Python 3.6 cannot all evaluate."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(tree)))


class _Plain(ast.NodeTransformer):
    """Drops annotations, and the import that defers them."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        for star in (node.args.vararg, node.args.kwarg):
            if star is not None:
                star.annotation = None
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        is_tuple = any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
        return node if is_tuple else self.generic_visit(node)  # its annotations are its fields

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if node.value is None else ast.Assign([node.target], node.value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as a line."""
    return base64.b64encode(zlib.compress(json.dumps(message).encode(), 1)) + b"\n"


def unpack(line: bytes) -> tuple[dict[str, Any], int]:
    """Return a node's message, and about how much memory it takes; ConnectionFailed: none, or too large."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(line, validate=True), MOST_TEXT_BYTES)
        if unpacker.unconsumed_tail:
            raise ConnectionFailed(TOO_MUCH)
        # A character beyond Latin-1, which JSON may write as \\uXXXX, makes all of its text wider.
        size = len(text) * (4 if not text.isascii() or _WIDE.search(text) else 1)
        size += _VALUE_BYTES * sum(map(text.count, (b",", b"[", b"{")))
        if size > MOST_MESSAGE_BYTES:
            raise ConnectionFailed(TOO_MUCH)
        message = json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        raise ConnectionFailed(GARBLED) from None
    if not isinstance(message, dict):
        raise ConnectionFailed(GARBLED)
    return message, size


def unpack_own(line: bytes) -> dict[str, Any]:
    """Return the message in a line that `pack` returned here."""
    message: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(line)))
    return message


def why_failed(errors: bytes, target: Target, noise: bytes = b"") -> str:
    """Return why a transport has ended, by what it printed, and what to do.

    `noise`: what came on standard output before the program there greeted, as from nologin(8).
    """
    text = errors.decode("utf-8", "replace")
    for sign, advice in _FAILURES:
        if sign in text:
            return advice.replace("{host}", target.host)
    if last := _last_line(text):
        return last
    closed = f"{printable(os.path.basename(target.transport[0]))} closed the connection"
    last = _last_line(noise.decode("utf-8", "replace"))
    return f"{closed}; the node printed: {last}" if last else closed


def _last_line(text: str) -> str:
    """Return the last line that has words, or ""."""
    lines = [line for line in map(printable, text.splitlines()) if line.strip()]
    return lines[-1][:200] if lines else ""
