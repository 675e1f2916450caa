"""Scripted processes: each prints and ends as its script says, while the clock of its node advances."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from probes.bandwidth.model.planned_series import Series
from probes.bandwidth.model.request import Request
from probes.bandwidth.planning.series import plan_series
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tui.bandwidth.processes import ProcessExit, ToolProcess

BANNER = "* Waiting for client to connect... *"
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
SOCKETS = "  sl  local_address rem_address   st\n"
REFUSED = "Couldn't connect to node2:18515"


def row(gbps: float) -> str:
    return f" 1048576    2000             0.00               {gbps:.2f}             0.022900"


def rows(first: float, count: int, gbps: float = 380.0) -> tuple[tuple[float, str], ...]:
    """The heading and a row a second."""
    return ((first, HEADER), *((first + second, row(gbps + second)) for second in range(1, count + 1)))


@dataclass
class Play:
    """What one process does; seconds count from its start."""

    lines: Sequence[tuple[float, str]] = ()
    ends_at: float | None = None
    status: int | None = 0
    why: str = ""
    opens_port_at: float | None = None


SERVER = ((0.1, BANNER),)


@dataclass
class Scene:
    """A node, its clock, and the processes in the order in which they are expected."""

    plays: list[Play]
    log: list[str] = field(default_factory=list)
    now: float = 1000.0
    most_alive: int = 0
    node: str = "hgx-h100"

    def __post_init__(self) -> None:
        self.host = SimulatedHost(self.node, clock=lambda: self.now)
        self.running: list[_Played] = []
        self.started: list[tuple[str, ...]] = []
        self._left = list(self.plays)

    def start(self, argv: Sequence[str], seconds: float) -> ToolProcess:
        process = _Played(self, self._left.pop(0), len(self.started))
        self.started.append(tuple(argv))
        self.log.append(f"start {process.number}")
        self.running.append(process)
        return process

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        for test in self.running:
            test.look()

    @property
    def alive(self) -> list[int]:
        return [test.number for test in self.running if not test.is_over]

    def listen(self, port: int) -> None:
        line = f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n"
        self.host.tree.add("/proc/net/tcp", SOCKETS + line)

    def listen_no_more(self) -> None:
        self.host.tree.add("/proc/net/tcp", SOCKETS)

    def examination(self) -> Examination:
        return examine(self.host)

    def series(self, request: Request) -> Series:
        series = plan_series(self.examination(), request, 18515)
        assert isinstance(series, Series)
        return series


class _Played:
    def __init__(self, scene: Scene, play: Play, number: int) -> None:
        self.scene, self.play, self.number = scene, play, number
        self.began = scene.now
        self.is_over = False
        self._given = 0
        self._ended: ProcessExit | None = None

    def look(self) -> None:
        passed = self.scene.now - self.began
        if self.play.opens_port_at is not None and passed >= self.play.opens_port_at and not self.is_over:
            self.scene.listen(18515)
        if self.play.ends_at is not None and passed >= self.play.ends_at and not self.is_over:
            self._leave()
            self._ended = ProcessExit(self.play.status, self.play.ends_at, self.play.why)

    def _leave(self) -> None:
        self.is_over = True
        if self.play.opens_port_at is not None:
            self.scene.listen_no_more()

    def lines(self, seconds: float) -> list[str]:
        self.scene.go_on(seconds)
        passed = self.scene.now - self.began
        due = [line for at, line in self.play.lines if at <= passed]
        new = due[self._given :]
        self._given = len(due)
        return new

    @property
    def ended(self) -> ProcessExit | None:
        return self._ended

    def end(self) -> None:
        if not self.is_over:
            self._leave()
            self.scene.log.append(f"end {self.number}")
            self._ended = ProcessExit(-15, self.scene.now - self.began, "canceled")
