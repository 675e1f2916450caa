"""The two nodes that tests run on: a simulated node and its peer, TCP between them, the start of a test."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from probes.bandwidth.tools.nccl_tests import RANK_PROGRAM
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.facts.system.tool_names import TEST_TOOLS, TOOL_OF
from probes.facts.system.tools import DIRECTORIES
from probes.host.protocol import Host
from probes.host.values import HOSTNAME
from probes.simulation.bandwidth.playback import NEVER, Script, SimulatedTest, ended
from probes.simulation.bandwidth.speeds import Traffic
from probes.simulation.commands.command_result import NOT_FOUND, CommandResult, failed, unsupported
from probes.simulation.node.devices.network import listening
from probes.simulation.node.model.tree import Content, Tree
from probes.simulation.node.model.workload import angle_of
from probes.snapshot.examination import Examination, examine

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


def parse_variables(argv: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that `env` sets, and the command behind it."""
    words, environment = list(argv), {}
    if words[:1] == ["env"]:
        words.pop(0)
        while words and (variable := _VARIABLE.match(words[0])):
            environment[variable[1]] = variable[2]
            words.pop(0)
    return environment, tuple(words)


def program_bytes(tree: Tree, program: str) -> bytes:
    """Return the content of an installed program."""
    content = tree.files.get(_path(tree, program) or "", b"")
    return content if isinstance(content, bytes) else b""


def _path(tree: Tree, name: str) -> str | None:
    paths = (f"{directory}/{name}" for directory in DIRECTORIES)
    return next((path for path in paths if path in tree.files), None)


HERE, PEER = "here", "peer"
PEER_NAMES = (PEER, "node2")  # node2: in the examples of `gdrtop bench --help`
NodeParts = tuple[Host, Tree, Callable[[], float]]
_LOCAL = ("127.0.0.1", "localhost", "::1")
_SOCKET_TABLE = "/proc/net/tcp"
_FAILS_SECONDS = 0.02
_SSH_SECONDS = 0.35
_SSH_FAILED = 255


@dataclass
class Listener:
    """A server that waits on a port of a node for its one client."""

    node: str
    port: int
    since: float
    accept: Callable[[object, float], None]  # called with the client and the moment
    until: float = NEVER


class Sockets:
    """The listeners of both nodes, and the connections that are due later."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._listeners: list[Listener] = []
        self._due: list[tuple[float, Callable[[float], None]]] = []
        self._lock = threading.RLock()

    def listen(self, node: str, port: int, since: float, accept: Callable[[object, float], None]) -> Listener:
        """Add a server that waits from a moment on."""
        now = self._clock()
        listener = Listener(node, port, since, accept)
        self._listeners = [*(each for each in self._listeners if each.until > now), listener]
        return listener

    def connect_at(self, at: float, connect: Callable[[float], None]) -> None:
        """Let a client look for its server at a moment."""
        with self._lock:
            self._due.append((at, connect))

    def advance(self) -> None:
        """Make the connections that are due, in their order."""
        with self._lock:
            now = self._clock()
            due = sorted((each for each in self._due if each[0] <= now), key=lambda each: each[0])
            self._due = [each for each in self._due if each[0] > now]
            for at, connect in due:
                connect(at)

    def listeners(self, node: str, at: float) -> list[Listener]:
        """Return the servers that wait on a node at a moment."""
        return [each for each in self._listeners if each.node == node and each.since <= at < each.until]

    def show(self, tree: Tree, node: str) -> None:
        """Add the node's listeners to its /proc/net/tcp, after those that are there."""
        before = tree.files.get(_SOCKET_TABLE, "")

        def table(seconds: float) -> str:
            self.advance()
            ports = (each.port for each in self.listeners(node, self._clock()))
            return f"{_text(before, seconds)}{''.join(map(listening, ports))}"

        tree.add(_SOCKET_TABLE, table)


def is_taken(tree: Tree, port: int, seconds: float) -> bool:
    """Return whether a socket of the node listens on a port, as its /proc/net/tcp shows."""
    table = _text(tree.files.get(_SOCKET_TABLE, ""), seconds)
    return re.search(rf"^ *\d+: [0-9A-F]{{8}}:{port:04X} 00000000:0000 0A ", table, re.M) is not None


def _text(content: Content, seconds: float) -> str:
    text = content(seconds) if callable(content) else content
    return text if isinstance(text, str) else text.decode()


class SimulatedNode:
    """One of the two nodes: its tree, its clock, its sockets and its ports' counters."""

    def __init__(
        self,
        parts: NodeParts,
        seed: int,
        make_peer: Callable[[], NodeParts],
        near: SimulatedNode | None = None,
        name: str = HERE,
        sockets: Sockets | None = None,
    ) -> None:
        """`parts`: host, tree, and the seconds since the node started, which its files are read with."""
        self.host, self.tree, self._seconds = parts
        self.name = name if near is None else PEER
        self.seed, self.clock = seed, self.host.monotonic
        self._make_peer, self._far = make_peer, near
        self.sockets: Sockets = near.sockets if near else sockets or Sockets(self.clock)
        self.traffic = Traffic(self.tree, self.sockets.advance)
        self.sockets.show(self.tree, self.name)

    @property
    def network(self) -> SimulatedNetwork | None:
        """The network of many nodes that it belongs to."""
        return None

    @property
    def far(self) -> SimulatedNode:
        """The other node, built when it is first needed."""
        if self._far is None:
            parts = self._make_peer()
            parts[1].add(HOSTNAME, f"{PEER}\n")
            self._far = SimulatedNode(parts, self.seed + 1, self._make_peer, self)
        return self._far

    def named(self, server: str) -> SimulatedNode | None:
        """Return the node of a name or address; None if the name is unknown."""
        here = (self.tree.description.hostname, "10.0.0.1")
        name = HERE if server in here else PEER if server in (*PEER_NAMES, "10.0.0.2") else None
        if server in _LOCAL or name == self.name:
            return self
        return None if name is None else self.far

    def seconds(self, at: float) -> float:
        """Return a moment of the clock as the node's files count it."""
        return self._seconds() + at - self.clock()

    def examine(self) -> Examination:
        """Probe the node as it is now; 20 to 70 ms."""
        return examine(self.host)

    def run(self, script: Script) -> SimulatedTest:
        """Run a program on this node."""
        return SimulatedTest(self.clock, script, self.sockets.advance)

    def number(self, what: str, at: float, most: int) -> int:
        """Return a number below `most` that belongs to a process started at a moment."""
        return int(angle_of(self.seed, f"{what} {at:.4f}") / 6.2832 * most)

    def hostname(self) -> str:
        """Return the node's host name."""
        return self.tree.text(HOSTNAME).strip()


def start(node: SimulatedNode, argv: Sequence[str], at: float | None = None) -> SimulatedTest:
    """Start a command at a moment of the clock: now, if none is given."""
    at = node.clock() if at is None else at
    if argv and argv[0].rpartition("/")[2] == "ssh":
        return _start_by_ssh(node, argv[1:], at)
    if RANK_PROGRAM in argv or {"mpirun", "srun"} & set(argv):
        test = import_module("probes.simulation.bandwidth.nccl_ranks").start(node, argv, at)
        assert isinstance(test, SimulatedTest)
        return test
    command = parse_command(node.tree, argv)
    if isinstance(command, CommandResult):
        lines = (printable(line) for line in command.lines)
        return node.run(ended(at + _FAILS_SECONDS, command.exit_status, *lines))
    module = f"probes.simulation.bandwidth.{TOOL_OF[command.program].replace('-', '_')}"
    test = import_module(module).start(node, command, at)
    assert isinstance(test, SimulatedTest)
    return test


def _start_by_ssh(node: SimulatedNode, words: Sequence[str], at: float) -> SimulatedTest:
    remote = split_ssh(words)
    if remote is None:
        return node.run(ended(at, _SSH_FAILED, "usage: ssh [-46AaCfGgKkMNnqsTtVvXxYy] destination"))
    host, command = remote
    far, at = node.named(host), at + _SSH_SECONDS
    if far is None:
        unknown = f"ssh: Could not resolve hostname {printable(host, 253)}: Name or service not known"
        hint = f"(simulated: the other node is {' or '.join(PEER_NAMES)})"
        return node.run(ended(at, _SSH_FAILED, f"{unknown} {hint}"))
    return node.run(Script((), at)) if command == ("true",) else start(far, command, at)


class SimulatedNetwork:
    """The nodes by name, with one clock and common sockets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self._sockets = Sockets(clock)
        self._examinations: dict[str, Examination] = {}
        self.waiting: dict[str, list[object]] = {}
        """Ranks of a collective that wait for the others, by NCCL's unique id."""

    def connect(self, name: str, parts: NodeParts, seed: int) -> SimulatedNode:
        """Add a node, which gets this host name."""
        node = _NetworkNode(self, name, parts, seed, self._sockets)
        self.nodes[name] = node
        return node

    def examination(self, node: SimulatedNode) -> Examination:
        """Probe a node once for all nodes with the same description and faults."""
        label = node.host.origin.label
        if label not in self._examinations:
            self._examinations[label] = SimulatedNode.examine(node)
        return self._examinations[label]


class _NetworkNode(SimulatedNode):
    """A node of a network."""

    def __init__(
        self, network: SimulatedNetwork, name: str, parts: NodeParts, seed: int, sockets: Sockets
    ) -> None:
        self._network = network
        parts[1].add(HOSTNAME, f"{name}\n")
        super().__init__(parts, seed, lambda: parts, name=name, sockets=sockets)

    @property
    def network(self) -> SimulatedNetwork:
        return self._network

    def named(self, server: str) -> SimulatedNode | None:
        return self._network.nodes.get(server)

    def examine(self) -> Examination:
        return self._network.examination(self)
