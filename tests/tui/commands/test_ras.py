"""`gdrtop ras`: what it asks, when, and what it says; nothing is sent without the user's consent."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.ras import ANSWER_SECONDS, DIAGNOSTICS, MONITOR, STATUS, VERBOSE_STATUS
from probes.simulation.host import SimulatedHost
from probes.simulation.node.jobs.processes import end_program
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.commands.live.live import LiveOptions, follow_ras_events, write_live
from tui.commands.ras import Ras, RasOptions
from tui.runtime import lock
from tui.runtime.node_monitor import NodeMonitor

PORT = "[::1]:28028"


class Node(SimulatedHost):
    """A simulated node that counts what is sent and when; `instead` replaces its answers."""

    def __init__(self, name: str = "hgx-h100", instead: Sequence[Maybe[str]] = ()) -> None:
        self.clock = SteppedClock()
        super().__init__(name, clock=self.clock)
        self.sent: list[tuple[float, str, str]] = []
        self.ended: list[str] = []
        self.subscribed = 0
        self._instead = list(instead)

    def ras_answer(self, address: str, command: str, seconds: float = ANSWER_SECONDS) -> Maybe[str]:
        self.sent.append((self.clock(), address, command))
        return self._instead.pop(0) if self._instead else super().ras_answer(address, command, seconds)

    def ras_events(self, address: str, last: bool = False) -> Maybe[tuple[str, ...]]:
        if last:
            self.ended.append(address)
        else:
            self.subscribed += 1
        return super().ras_events(address, last)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def asked(node: Node, said: str | None = None, **options: Any) -> tuple[int, str, str]:
    """Run the command; return its status, its output and what it shows the user before asking.

    `said`: what the user types; None: there is no terminal.
    """
    out, answers, errors = io.StringIO(), io.StringIO(), io.StringIO()
    if said is not None:
        answers, errors = Terminal(said), Terminal()
    ras = Ras(node, out, RasOptions(**options), answers, errors, node.wait)
    status = ras.ask()
    return status, out.getvalue(), errors.getvalue()


def monitored(node: Node, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    status = Ras(
        node, out, RasOptions(yes=True, **options), io.StringIO(), io.StringIO(), node.wait
    ).monitor()
    return status, out.getvalue()


def test_one_question_is_sent_to_a_healthy_job() -> None:
    node = Node()
    status, text, shown = asked(node, yes=True)
    assert status == 0
    assert [command for _, _, command in node.sent] == [STATUS]
    assert "train.py (alice, Slurm job 4711)" in text
    assert "NCCL 2.27.7, 4 nodes, 32 processes, 32 GPUs" in text
    assert "gdrtop sends 'STATUS' to NCCL's RAS service on port 28028" in shown
    assert "can crash the job (nccl#1762" in shown


@pytest.mark.parametrize(
    ("said", "count"), [("y\n", 1), ("yes\n", 1), ("\n", 0), ("n\n", 0), ("", 0), (None, 0)]
)
def test_nothing_is_sent_without_consent(said: str | None, count: int) -> None:
    node = Node()
    status, text, shown = asked(node, said)
    assert len(node.sent) == count
    assert "gdrtop sends 'STATUS'" in shown
    if not count:
        assert status == 3
        assert "not confirmed" in text


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "runtime_directory", lambda: str(tmp_path / "run"))


def running(name: str = "hgx-h100") -> Node:
    """Return a node that is not simulated, to gdrtop."""
    node = Node(name)
    node.origin = Origin(Source.LIVE, "h100-07")
    node.clock.now = 5000.0
    return node


@pytest.mark.usefixtures("shared")
def test_two_gdrtops_ask_at_most_every_ten_seconds() -> None:
    first, second = running(), running()
    assert asked(first, yes=True)[0] == 0
    assert len(first.sent) == 1
    second.clock.now = first.clock.now + 3.0
    status, text, _ = asked(second, yes=True)
    assert (status, second.sent) == (3, [])
    assert "not queried: RAS was queried 3 s ago; gdrtop waits 10 s" in text
    second.clock.now = first.clock.now + 10.0
    assert asked(second, yes=True)[0] == 0
    assert len(second.sent) == 1


@pytest.mark.usefixtures("shared")
def test_a_question_of_before_the_last_boot_does_not_count() -> None:
    first, second = running(), running()
    asked(first, yes=True)
    second.clock.now = 300.0
    assert asked(second, yes=True)[0] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_only_one_gdrtop_is_connected_at_a_time() -> None:
    follower, second = running("hgx-h100+rank-stopped"), running("hgx-h100+rank-behind")
    refused: list[tuple[int, str, str]] = []
    seen: list[tuple[int, str]] = []

    def meanwhile(seconds: float) -> None:
        del seconds
        refused.append(asked(second, yes=True))
        seen.append(monitored(second, count=1))

    options = RasOptions(yes=True, count=1)
    Ras(follower, io.StringIO(), options, io.StringIO(), io.StringIO(), meanwhile).monitor()
    why = "another gdrtop is connected to RAS; gdrtop opens one connection at a time"
    assert refused[-1][0] == seen[-1][0] == 3
    assert f"not queried: {why}" in refused[-1][1]
    assert why in seen[-1][1]
    assert (second.sent, second.subscribed) == ([], 0)
    assert asked(second, yes=True)[0] == 0


def test_verbose_asks_for_more_names() -> None:
    node = Node()
    asked(node, yes=True, verbose=True)
    assert [command for _, _, command in node.sent] == [VERBOSE_STATUS]


@pytest.mark.slow
def test_an_address_on_which_nothing_listens_is_not_tried() -> None:
    gone = Unknown(Reason.NOT_THERE, "RAS")
    node = Node(instead=[gone])
    asked(node, yes=True)
    assert [address for _, address, _ in node.sent] == [PORT]
    node = Node(instead=[Unknown(Reason.TIMED_OUT, "RAS", "may be stopped")])
    status, text, _ = asked(node, yes=True)
    assert [address for _, address, _ in node.sent] == [PORT]
    assert status == 3
    assert "no response: timed out: may be stopped" in text


def test_repeated_questions_need_a_newer_nccl() -> None:
    node = Node()
    status, text, _ = asked(node, yes=True, watch=10, count=3)
    assert (status, node.sent) == (3, [])
    assert "repeated queries need 2.29.2" in text


def test_the_rank_that_launches_nothing_is_found_by_watching() -> None:
    node = Node("hgx-h100+rank-behind")
    status, text, shown = asked(node, yes=True, watch=12, count=9)
    assert status == 2
    assert "rank 2 (GPU2, mlx5_2) has launched 3 fewer collectives and nothing has moved for" in text
    times = [at for at, _, _ in node.sent]
    assert len(times) == 9
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(times))
    assert shown.count("gdrtop sends") == 1


def test_a_stopped_rank_is_silent_and_then_dead() -> None:
    node = Node("hgx-h100+rank-stopped")
    node.wait(50.0)
    status, text, _ = asked(node, yes=True)
    assert status == 2
    assert "rank 3 (GPU3, mlx5_3) does not respond to RAS; it is stopped" in text
    node.wait(60.0)
    _, text, _ = asked(node, yes=True)
    assert "rank 3 (GPU3, mlx5_3) is considered dead" in text


def test_the_port_of_two_users_belongs_to_the_first() -> None:
    node = Node("hgx-h100+two-jobs-two-users")
    status, text, _ = asked(node, yes=True)
    assert status == 0
    assert "One of the 2 jobs on this port has responded." in text
    assert "16 processes" in text


def test_a_node_without_jobs_has_nothing_to_ask() -> None:
    node = Node()
    for program in list(node.tree.programs):
        end_program(node.tree, program.pid)
    status, text, _ = asked(node, yes=True)
    assert (status, node.sent) == (3, [])
    assert "no NCCL job" in text


@pytest.mark.parametrize("text", ["", "{}", "\x1b[2J\n" * 50, "Warnings\n#0-0 (1) MISMATCH\n"])
def test_any_answer_can_be_shown(text: str) -> None:
    status, shown, _ = asked(Node(instead=[text]), yes=True)
    assert status == 3
    assert "The response is cut off." in shown
    assert "\x1b" not in shown


def test_events_of_a_rank_that_stops() -> None:
    node = Node("hgx-h100+rank-stopped")
    status, text = monitored(node, count=100)
    assert status == 0
    assert text.count("rank 3 (GPU3, mlx5_3)") == 3
    assert "rank 3 (GPU3, mlx5_3) is considered dead" in text
    assert node.ended == [PORT]
    assert node.sent == []


def test_events_need_a_newer_nccl() -> None:
    status, text = monitored(Node(), count=1)
    assert status == 3
    assert "has no MONITOR" in text


def test_the_connection_is_closed_after_an_interrupt() -> None:
    node = Node("hgx-h100+rank-stopped")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    ras = Ras(node, io.StringIO(), RasOptions(yes=True), io.StringIO(), io.StringIO(), interrupt)
    with pytest.raises(KeyboardInterrupt):
        ras.monitor()
    assert node.ended == [PORT]


def lived(node: Node, said: str | None = None, yes: bool = False, seconds: int = 60) -> tuple[str, str]:
    """Run gdrtop live --ras-events; return its output and what it shows before."""
    out, answers, errors = io.StringIO(), io.StringIO(), io.StringIO()
    if said is not None:
        answers, errors = Terminal(said), Terminal()
    monitor = NodeMonitor(node)
    follow_ras_events(node, monitor, yes, answers, errors, node.wait)
    try:
        write_live(node, out, LiveOptions(seconds=seconds), node.clock, node.wait, monitor)
    finally:
        monitor.ras.stop(node)
    return out.getvalue(), errors.getvalue()


@pytest.mark.slow
def test_live_lists_the_events_and_closes_the_connection() -> None:
    node = Node("hgx-h100+rank-stopped")
    text, shown = lived(node, yes=True)
    assert "gdrtop sends 'MONITOR all'" in shown
    assert "gdrtop now follows RAS events" in text
    assert "rank 3 (GPU3, mlx5_3) does not respond to RAS" in text
    assert node.ended == [PORT]
    assert node.sent == []


@pytest.mark.parametrize("said", ["n\n", "", None])
def test_live_follows_no_events_without_consent(said: str | None) -> None:
    node = Node("hgx-h100+rank-stopped")
    text, shown = lived(node, said, seconds=2)
    assert "not confirmed" in shown
    assert "train.py" in text
    assert (node.subscribed, node.ended) == (0, [])


def test_live_says_why_there_are_no_events() -> None:
    node = Node()
    _, shown = lived(node, yes=True, seconds=1)
    assert "no RAS events: train.py (alice, Slurm job 4711): NCCL 2.27.7 has no MONITOR" in shown
    assert node.subscribed == 0


def test_diagnostics_need_a_new_nccl() -> None:
    node = Node()
    status, text, _ = asked(node, yes=True, diagnostics=True)
    assert (status, node.sent) == (3, [])
    assert "has no DIAGNOSTICS (added in NCCL 2.31)" in text


@pytest.mark.parametrize(("said", "count"), [("y\n", 1), ("n\n", 0), (None, 0)])
def test_diagnostics_are_confirmed_each_time(
    said: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.simulation.faults.live.NCCL_WITH_MONITOR", "2.32.3")
    results = "h1:7 NCCL DIAG [OK] ATS: on in comm 0x1\nh1:8 NCCL DIAG [INFO] IOMMU: translates in comm 0x1\n"
    node = Node("hgx-h100+rank-behind", instead=[results])
    status, text, shown = asked(node, said, diagnostics=True)
    assert [command for _, _, command in node.sent] == [DIAGNOSTICS] * count
    assert "runs lspci -D -vvv and rdma_topo check" in shown
    if count:
        assert status == 1
        assert "1 result to review, 1 OK" in text
        assert text.index("IOMMU: translates") < text.index("ATS: on")


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-h100+rank-behind", "hgx-h100+rank-stopped"])
def test_json_is_what_the_schema_says(name: str) -> None:
    node = Node(name)
    node.wait(40.0)
    watch = {} if name == "hgx-h100" else {"watch": 10, "count": 4}
    _, text, _ = asked(node, yes=True, json=True, **watch)
    documents = [valid("ras", line) for line in text.splitlines()]
    assert len(documents) == len(node.sent)
    (answer,) = documents[-1]["answers"]
    assert (answer["address"], answer["sent"]) == (PORT, STATUS)
    assert answer["report"]["is_complete"]
    assert bool(answer["findings"]) == (name != "hgx-h100")


def test_json_of_a_refusal_and_of_events() -> None:
    _, text, _ = asked(Node(), json=True)
    document = valid("ras", text)
    assert document["exit_status"] == 3
    assert document["answers"][0]["report"] is None
    assert document["answers"][0]["refusals"]
    _, text = monitored(Node("hgx-h100+rank-stopped"), count=100, json=True)
    kinds = [
        event["kind"] for line in text.splitlines() for event in valid("ras", line)["answers"][0]["events"]
    ]
    assert kinds == ["PEER_UNRESPONSIVE", "PEER_KEEPALIVE_TIMEOUT", "PEER_DEAD"]
    assert json.loads(text.splitlines()[0])["answers"][0]["sent"] == MONITOR


@pytest.mark.parametrize(
    "wrong",
    [
        ["--interval", "9"],
        ["--interval", "ten"],
        ["--count", "3"],
        ["--follow", "--verbose"],
        ["--follow", "--interval", "10"],
        ["--diagnostics", "--interval", "10"],
        ["--nccl", "newest"],
    ],
)
def test_wrong_options(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ras", "--demo", "--yes", *wrong]) == 3
    assert "gdrtop" in capsys.readouterr().err


def test_a_tree_of_files_has_no_running_job(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ras", "--root", str(tmp_path)]) == 3
    assert "needs a running node" in capsys.readouterr().err


def test_a_port_on_which_another_user_listens_is_not_asked() -> None:
    node = Node()
    listener = node.tree.text("/proc/net/tcp6")
    assert " 00000000 0 0 1\n" in listener
    node.tree.add("/proc/net/tcp6", listener.replace(" 00000000 0 0 1\n", " 00000000 2002 0 1\n"))
    status, out, _ = asked(node, yes=True)
    assert status
    assert "user 2002 listens on port 28028, who is not the job's user" in out
    assert not node.sent
