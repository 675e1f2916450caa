"""Simulated nodes whose clock a test moves, and the programs that run on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probes.bandwidth.model.command import Command
from probes.bandwidth.model.request import DEFAULT_BYTES, Request
from probes.bandwidth.model.samples import About, Fact, Sample
from probes.bandwidth.planning.node_settings import perftest_defaults
from probes.bandwidth.tools.failures import Failure
from probes.bandwidth.tools.perftest import PerftestOutput
from probes.bandwidth.tools.perftest_command import PerftestSettings, loopback
from probes.facts.system.tools import ToolFacts
from probes.simulation.bandwidth.playback import SimulatedTest
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.failures import explain

LONGEST_SECONDS = 300.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A simulated node and its clock."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.clock = Clock()
        self.host = SimulatedHost(name, seed, self.clock)

    def examination(self) -> Examination:
        return examine(self.host)

    def tools(self) -> ToolFacts:
        tools = self.examination().tools
        assert isinstance(tools, ToolFacts)
        return tools

    def begin(self, argv: Sequence[str] | str) -> "Run":
        words = argv.split() if isinstance(argv, str) else argv
        return Run(self.host.begin_test(words))

    def wait(self, seconds: float, *runs: "Run", step: float = 0.05) -> None:
        """Advance the clock, and read the programs' lines all the while."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + step)
            for run in runs:
                run.read(self.clock.now)

    def finish(self, *runs: "Run", step: float = 0.05) -> None:
        """Advance the clock until all have ended."""
        begun = self.clock.now
        while any(run.status is None for run in runs):
            assert self.clock.now < begun + LONGEST_SECONDS, [run.lines[-3:] for run in runs]
            self.wait(step, *runs, step=step)


class Run:
    """One program: what it has printed, and when that was seen."""

    def __init__(self, test: SimulatedTest) -> None:
        self.test = test
        self.lines: list[str] = []
        self.seen: list[float] = []

    def read(self, now: float) -> None:
        for line in self.test.lines():
            assert "\n" not in line
            self.lines.append(line)
            self.seen.append(now)

    @property
    def status(self) -> int | None:
        return self.test.exit_status

    def failure(self, memory: str = "") -> Failure | None:
        return explain(self.lines, self.status, memory)

    def output(self) -> list[Sample | Fact | Failure]:
        output = PerftestOutput()
        return [message for line in self.lines for message in output.feed(line)]

    def samples(self) -> list[Sample]:
        return [sample for sample in self.output() if isinstance(sample, Sample)]

    def facts(self) -> dict[About, str]:
        return {fact.about: fact.value for fact in self.output() if isinstance(fact, Fact)}

    def rows_seen(self) -> list[float]:
        """When each line that begins with a number was seen."""
        rows = zip(self.lines, self.seen, strict=True)
        return [at for line, at in rows if line.strip()[:1].isdigit()]


@dataclass(frozen=True)
class Pair:
    """Both ends of a test on one node, which have ended."""

    node: Node
    settings: PerftestSettings
    server: Run
    client: Run


def settings_on(
    node: Node, gpu: int | None = 0, nic: str | None = None, dmabuf: bool | None = None, **changes: object
) -> PerftestSettings:
    """The settings that fit the node, and changes of them."""
    examination = node.examination()
    bdf = None if gpu is None else examination.topology.gpus[gpu].id
    if bdf is None and nic is None:
        nic = examination.topology.nics[0].id
    settings = perftest_defaults(examination, bdf, nic, dmabuf)
    assert isinstance(settings, PerftestSettings), settings
    settings = replace(settings, size_bytes=DEFAULT_BYTES, duration_s=Request.duration_s)
    return replace(settings, **changes)  # type: ignore[arg-type]


def both(
    node: Node, settings: PerftestSettings, far: PerftestSettings | None = None
) -> tuple[Command, Command]:
    """The commands of server and client."""
    commands = loopback(settings, node.tools(), far)
    assert isinstance(commands, tuple), commands
    return commands


def run_pair(
    name: str,
    settings: Callable[[Node], PerftestSettings] | None = None,
    far: Callable[[PerftestSettings], PerftestSettings] | None = None,
    seed: int = 0,
) -> Pair:
    """Run a loopback until both ends have ended."""
    node = Node(name, seed)
    chosen = settings_on(node) if settings is None else settings(node)
    waits, asks = both(node, chosen, None if far is None else far(chosen))
    server = node.begin(waits.argv)
    node.wait(0.3, server)
    client = node.begin(asks.argv)
    node.finish(server, client)
    return Pair(node, chosen, server, client)
