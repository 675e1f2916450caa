"""`gdrtop fleet live` on simulated nodes with one job over them."""

import argparse
import io
import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from probes.fleet.sampler import Begun
from probes.host.protocol import Host
from probes.simulation.host import job_nodes
from tests.support.documents import valid
from tests.support.fleet_samples import HungHost
from tui.cli import main
from tui.command_line.arguments import UsageError
from tui.commands.fleet import live
from tui.commands.fleet.nodes import opened_nodes
from tui.launch import EXIT_INTERRUPTED

NO_NODES: dict[str, str] = {}


class Watched:
    """Nodes whose clock steps by a second where the command waits."""

    def __init__(self, count: int = 3, faults: Mapping[int, str] | None = None) -> None:
        self.now = 5000.0
        self.hosts: dict[str, Host] = dict(job_nodes("hgx-h100", count, faults, clock=lambda: self.now))
        self.interrupt_at = float("inf")

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.interrupt_at:
            raise KeyboardInterrupt

    def run(self, *arguments: str, unanswered: Mapping[str, str] = NO_NODES) -> tuple[int, str]:
        out = io.StringIO()
        wall: Callable[[], float] = lambda: 1_700_000_000 + self.now - 5000.0  # noqa: E731
        status = live.run(options(*arguments), self.hosts, unanswered, out, lambda: self.now, self.wait, wall)
        return status, out.getvalue()


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ascii", action="store_true")
    live.add_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.slow
def test_a_job_on_three_nodes_has_24_ranks_and_none_differs() -> None:
    status, text = Watched().run()
    assert status == 0
    _, first, _, head, *rows = text.splitlines()
    assert first.startswith("train.py (alice, Slurm job 4711) - 24 ranks on 3 nodes - likely GDR (peermem)")
    assert head.split()[0] == "node"
    assert [row.split()[1] for row in rows] == [str(rank) for rank in range(24)]


@pytest.mark.parametrize(
    ("fault", "seconds", "said", "status"),
    [
        ("job-rank-staged", 2, "! Rank 13 on gpu002 copies through host memory (staged)", 1),
        ("nic-slow", 12, "! gpu002 mlx5_6 carries", 1),
        ("rank-stopped", 50, "! Rank 11 on gpu002 is stopped; the other 23 ranks of this job are running", 1),
        ("job-tcp", 2, "! All 8 ranks on gpu002 use TCP", 1),
    ],
)
def test_a_fault_on_one_node_is_named_with_its_node(fault: str, seconds: int, said: str, status: int) -> None:
    found, text = Watched(3, {1: fault}).run("--seconds", str(seconds))
    assert (found, said in text) == (status, True), text
    if fault == "rank-stopped":
        assert "No port of this job has moved data for" in text


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seconds"), [("job-hung", 62), ("rank-behind", 84)])
def test_a_job_that_hangs_is_a_problem_after_a_minute_seen_before_or_not(fault: str, seconds: int) -> None:
    early, text = Watched(2, {1: fault}).run("--seconds", str(seconds - 6))
    assert (early, "? No port of this job has moved data for" in text) == (0, True), text
    assert "problem" not in text.splitlines()[1]
    status, text = Watched(2, {1: fault}).run("--seconds", str(seconds))
    assert (status, text.splitlines()[1].endswith("2 problems")) == (1, True), text
    assert "while 15 of its 16 GPUs are busy" in " ".join(text.split())
    assert "! No port of this job has moved data for" in text
    assert "! Rank 10 on gpu002 has an idle GPU; the other 15 ranks of this job have busy GPUs" in text


@pytest.mark.slow
def test_each_json_line_is_as_the_schema_says() -> None:
    status, text = Watched(2, {1: "rank-stopped"}).run("--json", "--seconds", "48")
    documents = [valid("fleet-live", line) for line in text.splitlines()]
    assert len(documents) == 48
    assert documents[0]["ranks"][0]["unknown"]["gbps"]
    last = documents[-1]
    assert (status, last["exit_status"], last["node"], last["source"]) == (1, 1, None, "simulated")
    assert last["job"] == "slurm:4711"
    assert len(last["ranks"]) == 16
    assert last["silence"]["seconds"] >= 10
    assert last["differences"][0] == {
        "aspect": "state",
        "subject": "rank 11 on gpu002",
        "sentence": "rank 11 on gpu002 is stopped; the other 15 ranks of this job are running",
        "ranks": [{"node": "gpu002", "pid": 41003}],
    }


def test_nodes_that_could_not_be_reached_are_listed_and_make_the_answer_incomplete() -> None:
    status, text = Watched(2).run("--seconds", "2", unanswered={"gpu003": "ssh: no route to host"})
    assert status == 3
    assert "! 1 node does not answer: gpu003 (ssh: no route to host)" in text
    status, text = live_without_hosts()
    assert status == 3
    assert "No NCCL job runs on the nodes that answer (0)." in text


def live_without_hosts() -> tuple[int, str]:
    watched = Watched(1)
    watched.hosts = {}
    return watched.run(unanswered={"gpu001": "no answer"})


def test_a_node_that_is_reached_late_joins() -> None:
    watched = Watched(2)
    late = watched.hosts.pop("gpu002")
    unanswered = {"gpu002": "still connecting"}
    wait = watched.wait

    def reach(seconds: float) -> None:
        wait(seconds)
        watched.hosts["gpu002"] = late
        unanswered.clear()

    watched.wait = reach  # type: ignore[method-assign]
    _, text = watched.run("--seconds", "4", "--json", unanswered=unanswered)
    first, *_, last = map(json.loads, text.splitlines())
    assert (len(first["ranks"]), first["unanswered"]) == (8, {"gpu002": "still connecting"})
    assert (len(last["ranks"]), last["unanswered"]) == (16, {})


def test_a_node_that_hangs_while_it_is_reached_delays_no_other_one() -> None:
    over = shlex.join([sys.executable, "-m", "tests.support.stand_in", "hung=silent", "{host}"])
    asked = argparse.Namespace(
        node_set="gpu1,hung", nodes="", hosts="", slurm="", over=over, sudo=False, demo=None
    )
    begun = Begun()
    with opened_nodes(asked, begun, patience=0.0) as (reached, unanswered):
        assert (list(reached), unanswered) == (["gpu1"], {"hung": "still connecting"})
        rounds = reached["gpu1"].connection.rounds  # type: ignore[union-attr]
        assert len(begun["gpu1"].sample().sample.jobs) > 0
        assert reached["gpu1"].connection.rounds <= rounds + 1  # type: ignore[union-attr]


def test_another_job_is_not_found() -> None:
    status, text = Watched(2).run("--job", "99", "--seconds", "2")
    assert status == 3
    assert text.splitlines()[1] == "Job 99 has no process on the nodes that answer (2)."
    assert "Other jobs on these nodes: train.py (alice, Slurm job 4711)" in text


def test_ctrl_c_prints_what_was_seen() -> None:
    watched = Watched(2)
    watched.interrupt_at = 5003.0
    status, text = watched.run()
    assert status == EXIT_INTERRUPTED
    assert text.splitlines()[1].startswith("train.py (alice, Slurm job 4711) - 16 ranks on 2 nodes")


@pytest.mark.slow
def test_following_prints_the_job_again_only_when_something_changes() -> None:
    watched = Watched(2, {1: "rank-stopped"})
    watched.interrupt_at = 5060.0
    status, text = watched.run("--follow")
    assert status == EXIT_INTERRUPTED
    blocks = [line for line in text.splitlines() if line.startswith("train.py")]
    assert 2 < len(blocks) < 8
    assert "is stopped" in text


def test_an_unknown_simulated_node_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "live", "--demo", "no-such-node"]) == 3
    assert "--demo takes simulated nodes" in capsys.readouterr().err
    assert main(["fleet", "live", "--demo=no-such-node"]) == 3
    assert "unknown simulated node 'no-such-node'" in capsys.readouterr().err


def test_options_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(UsageError):
        Watched(1).run("--follow", "--seconds", "3")
    with pytest.raises(SystemExit):
        Watched(1).run("--job", "x" * 129)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_node_that_hangs_does_not_answer_and_the_command_ends(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(live, "_WAIT_SECONDS", 0.001)
    watched = Watched(1)
    watched.hosts = {"hung": HungHost(released)}
    status, text = watched.run("--json", "--seconds", "62")
    first, *_, last = (json.loads(line)["unanswered"] for line in text.splitlines())
    assert status == 3
    assert first == {"hung": "still reading the node"}
    assert last == {"hung": "no answer for 61 s"}


def test_demo_nodes_have_the_faults_on_the_second_node() -> None:
    hosts = live.demo_hosts("hgx-h100+nic-slow", 3)
    assert [host.origin.label for host in hosts.values()] == ["hgx-h100", "hgx-h100+nic-slow", "hgx-h100"]
    assert live.demo_hosts("hgx-h100+nic-slow", 1)["gpu001"].origin.label == "hgx-h100+nic-slow"
