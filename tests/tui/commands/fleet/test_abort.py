"""Ctrl-C during `gdrtop fleet`: it waits for no node that hangs, and leaves nothing on any node."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.process_families import LONG, ROOT, wait_for
from tests.support.sshd import is_collector, is_running

# gdrtop, for which no node is ever too late.
GDRTOP = """
import sys
from probes.host.remote import connection
from tui.cli import main
connection.CONNECT_SECONDS = connection.ANSWER_SECONDS = 3600.0
sys.exit(main(sys.argv[1:]))
"""
# As with ssh, what runs on a node has a session of its own, and its input ends with the transport. One node
# hangs while it is being reached, and its transport ignores signals.
TRANSPORT = """
case "$1" in hung*) trap '' HUP INT TERM; sleep 3600; exit;; esac
shift
cat | setsid "$@" | cat
"""
_MARK = "GDRTOP_TEST_FLEET"


class Fleet:
    """gdrtop in a process group of its own, as a shell starts it, and all that it starts."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def start(self, command: str) -> None:
        """Start `gdrtop fleet`."""
        over = shlex.join(["sh", "-c", TRANSPORT, "sh", "{host}"])
        self.gdrtop = subprocess.Popen(
            [sys.executable, "-c", GDRTOP, "fleet", *shlex.split(command), "--over", over],
            cwd=ROOT,
            env={**os.environ, _MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self, name: str = "") -> list[psutil.Process]:
        """What it has started and still runs, here or on a node; `name`: only this program."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_own = process.environ().get(_MARK) == self._mark and is_running(process)
                if is_own and name in ("", process.name()):
                    found.append(process)
        return found

    def collectors(self) -> list[psutil.Process]:
        return [process for process in self.processes() if is_collector(process)]

    def hung(self) -> list[psutil.Process]:
        """The transports that never answer."""
        return self.processes("sleep")

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a moment of the run."""
        wait_for(lambda: condition() or self.gdrtop.poll() is not None)
        assert self.gdrtop.poll() is None, self.gdrtop.communicate()

    def interrupt(self) -> tuple[str, str]:
        """Press Ctrl-C, which a terminal sends to the whole group; return what was printed."""
        os.killpg(self.gdrtop.pid, signal.SIGINT)
        printed = self.gdrtop.communicate(timeout=LONG)
        assert self.gdrtop.returncode == 130
        return printed


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(str(tmp_path))
    yield started
    for process in started.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


COMMANDS = (
    "check --timeout 3600",
    pytest.param("live", marks=pytest.mark.slow),
    pytest.param("bench", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_nodes_that_hang_while_they_are_reached_delay_no_interrupt(fleet: Fleet, command: str) -> None:
    fleet.start(f"{command} -w hung[1-3]")
    fleet.until(fleet.hung)
    assert fleet.interrupt() == ("", "")
    wait_for(lambda: not fleet.processes())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check --timeout 3600", "live", "bench"])
def test_no_collector_is_left_when_some_nodes_have_answered(fleet: Fleet, command: str) -> None:
    fleet.start(f"{command} -w gpu[1-3],hung1")
    fleet.until(lambda: fleet.hung() and fleet.collectors())
    fleet.interrupt()
    wait_for(lambda: not fleet.processes())


@pytest.mark.slow
def test_a_check_that_waits_only_for_a_node_that_hangs_prints_the_others_and_leaves_nothing(
    fleet: Fleet,
) -> None:
    fleet.start("check --timeout 3600 -w gpu[1-2],hung1")
    fleet.until(fleet.collectors)
    fleet.until(lambda: not fleet.collectors())  # they are judged
    printed, errors = fleet.interrupt()
    assert "gpu[1-2]" in printed
    assert "hung1" in printed
    assert "the reading was stopped" in printed
    assert errors == ""
    wait_for(lambda: not fleet.processes())


@pytest.mark.slow
def test_an_interrupted_save_leaves_no_unfinished_file(fleet: Fleet, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    fleet.start(f"check --timeout 3600 -w gpu[1-3],hung1 --save {saved}")
    fleet.until(lambda: saved.exists() and any(saved.iterdir()))
    fleet.interrupt()
    wait_for(lambda: not fleet.processes())
    assert all(path.name.startswith("gpu") for path in saved.iterdir())


@pytest.mark.slow
def test_nodes_that_hang_while_they_are_watched_delay_no_interrupt(fleet: Fleet) -> None:
    fleet.start("live -w gpu[1-2] --json --follow")
    assert fleet.gdrtop.stdout is not None
    fleet.gdrtop.stdout.readline()
    collectors = fleet.collectors()
    assert len(collectors) == 2
    for collector in collectors:
        collector.suspend()
    fleet.gdrtop.stdout.readline()
    _, errors = fleet.interrupt()
    assert errors == ""
    for collector in collectors:  # the node goes on
        with contextlib.suppress(psutil.NoSuchProcess):
            collector.resume()
    wait_for(lambda: not fleet.processes())
