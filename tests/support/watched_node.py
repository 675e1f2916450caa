"""A simulated node that `gdrtop watch` watches, and the files that it leaves."""

import io
from pathlib import Path

from probes.recording.archive import Recording, read_archive
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tui.command_line.options import OutputOptions
from tui.commands.watch.ring_directory import RingDirectory
from tui.commands.watch.ring_recorder import Limits
from tui.commands.watch.watch import Output, Watcher
from tui.files.new_file import chunks_of

SMALL = Limits(keep_seconds=600, max_bytes=16 << 20, before_seconds=20, after_seconds=10)


class Watched:
    """A simulated node that is watched under a clock that steps."""

    def __init__(
        self,
        path: Path,
        limits: Limits = SMALL,
        as_json: bool = False,
        begin: float = 1000.0,
        name: str = "cloud-vm",
    ) -> None:
        self.clock = SteppedClock()
        self.clock.now = begin
        self.out = io.StringIO()
        self.directory = RingDirectory(str(path))
        self.host = SimulatedHost(name, clock=self.clock)
        self.limits = limits
        self.watcher = Watcher(self.host, self.directory, limits, Output(self.out, OutputOptions(as_json)))

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.watcher.step()
            self.clock.now += 1.0

    def end(self) -> str:
        self.watcher.close("")
        self.directory.close()
        return self.out.getvalue()

    def kill(self) -> None:
        """End as SIGKILL does: nothing is closed but by the kernel."""
        self.directory.close()

    def start_again(self) -> None:
        """Watch the same node with a new process."""
        self.directory = RingDirectory(self.directory.path)
        self.watcher = Watcher(self.host, self.directory, self.limits, Output(self.out, OutputOptions()))


def rings(path: Path) -> list[Path]:
    return sorted(path.glob("ring-*"))


def saved(path: Path) -> list[Path]:
    return sorted(path.glob("event-*"))


def recording(path: Path) -> Recording:
    return read_archive(chunks_of(str(path)))
