"""`gdrtop fleet hang` on simulated nodes with one job over them."""

import argparse
import io
import threading
from typing import NoReturn

import pytest

from probes.host.protocol import Host
from probes.simulation.host import SimulatedHost, job_nodes
from tests.support.documents import valid
from tests.support.fleet_samples import HungHost
from tui.commands.fleet import hang


def fail() -> NoReturn:
    raise OSError("lost")


class Watched:
    """Two nodes whose clock goes on while either waits."""

    def __init__(self, fault: str = "job-hung") -> None:
        self.now = 5000.0
        self._lock = threading.Lock()
        self.hosts: dict[str, Host] = dict(job_nodes("hgx-h100", 2, {1: fault}, clock=lambda: self.now))

    def wait(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds / 2

    def run(self, *arguments: str, **unanswered: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--ascii", action="store_true")
        hang.add_options(parser)
        out = io.StringIO()
        status = hang.run(
            parser.parse_args(arguments), self.hosts, unanswered, out, lambda: self.now, self.wait
        )
        return status, out.getvalue()


def test_the_culprit_is_named_with_its_node_and_the_others_with_what_was_read() -> None:
    status, text = Watched().run("--job", "4711", gpu009="no route to host")
    assert status == 2
    assert "Suspect: rank 10 (gpu002, pid 41002, 0000:3a:00.0, mlx5_2)" in text
    assert "gpu002: py-spy dump --pid 41002" in text
    assert "16 ranks on 2 nodes" in text
    assert "gpu009: not read: no route to host" in text


@pytest.mark.slow
def test_json_is_that_of_hang_with_the_node_of_each_rank() -> None:
    status, text = Watched().run("--json")
    document = valid("hang", text)
    assert document["exit_status"] == status == 2
    assert document["node"] is None
    assert {row["node"] for row in document["jobs"][0]["ranks"]} == {"gpu001", "gpu002"}


def test_no_such_job_is_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a node that hangs keep the answer back."""
    released = threading.Event()
    monkeypatch.setattr(hang, "_FIRST_READING_SECONDS", -10.9)
    watched = Watched()
    watched.hosts = {"gpu001": HungHost(released)}
    status, text = watched.run("--job", "nosuchjob")
    _, json_text = watched.run("--json")
    released.set()
    assert status == 3
    assert "no NCCL job is 'nosuchjob'" in text
    assert "gpu001: no answer after" in text
    assert valid("hang", json_text)["unanswered"] == {"gpu001": "no answer after 0 s"}


def test_a_node_that_is_reached_late_is_watched_too() -> None:
    watched = Watched()
    late = watched.hosts.pop("gpu002")
    wait = watched.wait

    def reach(seconds: float) -> None:
        wait(seconds)
        watched.hosts["gpu002"] = late

    watched.wait = reach  # type: ignore[method-assign]
    status, text = watched.run(gpu002="still connecting")
    assert (status, "still connecting" in text) == (2, False)
    assert "16 ranks on 2 nodes" in text


def test_a_node_on_which_a_probe_fails_leaves_the_others_their_answer() -> None:
    """The search itself fails there, not one of its probes."""
    watched = Watched()
    assert isinstance(watched.hosts["gpu001"], SimulatedHost)
    watched.hosts["gpu001"].packet_numbers = fail  # type: ignore[method-assign]
    status, text = watched.run(gpu009="no route to host")
    assert status == 2
    assert "gpu001: not read: the probe failed: OSError: lost" in text
    assert "Suspect: rank 10" in text
