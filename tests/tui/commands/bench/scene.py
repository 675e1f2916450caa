"""A node on which `gdrtop bench` is used, and who sits before it."""

import io
import signal
from collections.abc import Sequence

from probes.base.origin import Origin, Source
from probes.simulation.host import SimulatedHost
from tui.bandwidth.processes import ProcessStarter, ToolProcess
from tui.bandwidth.results_store import MemoryResultsStore, ResultsStore
from tui.bandwidth.simulated_processes import SimulatedProcessStarter
from tui.cli import command_parser
from tui.commands.bench import run as bench_module
from tui.commands.bench.options import parse_options


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self) -> bool:
        return True


class Signals:
    """Starts processes; sends this one a signal when the last of some is started."""

    def __init__(self, inner: ProcessStarter, number: int, at: int) -> None:
        self.inner, self.number, self.left = inner, number, at
        self.started: list[ToolProcess] = []

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        self.started.append(self.inner.start(argv, seconds))
        self.left -= 1
        if not self.left:
            signal.raise_signal(self.number)
        return self.started[-1]


class Scene:
    """A simulated node whose clock goes on while one waits; `live`: one that is taken for a real one."""

    def __init__(self, name: str = "hgx-h100", live: bool = False, store: ResultsStore | None = None) -> None:
        self.now = 1000.0
        self.host = SimulatedHost(name, clock=lambda: self.now)
        if live:
            self.host.origin = Origin(Source.LIVE)
        self.store = MemoryResultsStore() if store is None else store
        self.starter: ProcessStarter = SimulatedProcessStarter(self.host, self.wait)
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def pause(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.wait(seconds)

    def run(
        self, *arguments: str, answers: io.StringIO | None = None, read_only: bool = False
    ) -> tuple[int, str]:
        out = Out()
        status = bench_module.command(
            self.host,
            out,
            parse_options(command_parser().parse_args(["bench", *arguments])),
            read_only=read_only,
            answers=answers,
            store=self.store,
            starter=self.starter,
            pause=self.pause,
        )
        return status, out.getvalue()


class Out(io.StringIO):
    """A pipe that takes UTF-8."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def words(text: str) -> str:
    return " ".join(text.split())
