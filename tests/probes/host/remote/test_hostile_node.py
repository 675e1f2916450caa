"""Answers of the wrong type, to every kind of question: facts or unknown, never an exception."""

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Unknown
from probes.host.protocol import Host
from probes.host.remote import remote_host
from probes.host.remote.collected_host import CollectedHost, Question
from probes.host.remote.collector import GREETING, QUESTIONS
from probes.host.remote.nvidia_smi import QUERY
from probes.host.remote.remote_host import Answers, BatchHost, Missing, RemoteHost, pack_questions
from probes.host.remote.transport import (
    MOST_MESSAGE_BYTES,
    MOST_QUESTIONS,
    MOST_READING_BYTES,
    ConnectionFailed,
    Target,
    pack,
    unpack,
)
from probes.live.job_examination import examine_with_jobs
from probes.simulation.host import SimulatedHost
from tests.support.crowded_node import add_processes
from tests.support.local_node import SimulatedConnection
from tests.support.process_families import ROOT

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["0", "/", "..", "a\0b", "\ud800", "\x1b[31m", "0000:01:00.0"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["value", "errno", "detail"]), inner)
    ),
    max_leaves=6,
)
TYPED = (
    st.tuples(st.integers(-(10**30), 10**30), st.text(max_size=9), st.text(max_size=9), st.integers())
    | st.tuples(st.text(max_size=9), st.integers(), st.text(max_size=9))
    | st.tuples(st.integers(), st.lists(st.text(max_size=9), max_size=3))
    | st.lists(st.tuples(st.text(max_size=40), st.booleans()), max_size=3)
)
ANSWERS = (
    JSON
    | st.fixed_dictionaries({"value": JSON | TYPED.map(lambda value: json.loads(json.dumps(value)))})
    | st.fixed_dictionaries({"errno": st.integers(), "detail": st.text(max_size=9)})
)


class HostileHost(CollectedHost):
    """A node that gives these answers in turn, to whatever it is asked."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__("node\x1b[31m", is_root=False)
        self._given, self.asked = answers, 0
        self.kinds: set[str] = set()

    def _answer_to(self, question: Question, source: str) -> Maybe[Any]:
        self.kinds.add(question[0])
        self.asked += 1
        assert self.asked < 10_000
        return self._given[self.asked % len(self._given)]


READS = {
    "file": lambda host: host.read_bytes("/x"),
    "file_range": lambda host: host.read_range("/x", 0, 9),
    "names": lambda host: host.names("/x"),
    "link": lambda host: host.link("/x"),
    "resolve": lambda host: host.resolve("/x"),
    "size": lambda host: host.size("/x"),
    "readable": lambda host: host.access("/x"),
    "writable": lambda host: host.access("/x", write=True),
    "environment": lambda host: host.environment("X"),
    "run": lambda host: host.run(("uname", "-r")),
    "program": lambda host: (
        host.dmabuf_errnos(["mlx5_0"]),
        host.data_direct_paths(["mlx5_0"]),
        host.cuda_gpus(),
    ),
    "netlink": lambda host: (
        host.rdma_resources(),
        host.rdma_statistics(["mlx5_0/1"]),
        host.fec_states(["eth0"]),
    ),
    "ethtool": lambda host: host.ethtool_counters(["eth0"]),
    "kernel_log": lambda host: host.kernel_messages(),
    "NVML": lambda host: (host.nvml(), host.nvml_live()),
    "collectives": lambda host: host.collectives("/x.prom", 0),
    "processes": lambda host: (host.process_usage([1]), host.thread_names([1])),
    "networks": lambda host: host.interface_counters(["eth0"]),
}


def test_every_kind_of_question_is_tried() -> None:
    host = HostileHost([{"value": 1}])
    for read in READS.values():
        read(host)
    assert host.kinds <= set(QUESTIONS)
    assert set(QUESTIONS) <= set(READS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", READS)
@given(st.lists(ANSWERS, min_size=1, max_size=3))
@settings(max_examples=40)
def test_no_answer_crashes_a_reading(kind: str, answers: list[Any]) -> None:
    host = HostileHost(answers)
    READS[kind](host)
    READS[kind](host)


@pytest.mark.parametrize(
    "given_answer",
    [
        {"value": 7},
        {"value": "\udcff"},
        {"value": [["x"]]},
        {"errno": 13, "detail": "Permission denied"},
        {"errno": 10**30, "detail": ""},
        "garbage",
    ],
)
def test_an_examination_of_a_hostile_node_ends(given_answer: object) -> None:
    examination = examine_with_jobs(HostileHost([given_answer]))
    assert isinstance(examination.node.pci, Unknown) or examination.node.pci is not None


CLOCKS = [float("nan"), float("inf"), -1.0, 1e300, 5, "5", None, [5.0]]


@pytest.mark.parametrize("clock", CLOCKS, ids=str)
@pytest.mark.parametrize("which", ["monotonic", "wall"])
def test_clocks_that_are_none_are_garbled(which: str, clock: object) -> None:
    line = pack({"answers": [], "monotonic": 5.0, "wall": 5.0, which: clock}).strip()
    with pytest.raises(ConnectionFailed, match="garbled"):
        BatchHost(Answers("node", False, [pack_questions([])], [line]))


def test_more_or_fewer_answers_than_questions_are_garbled() -> None:
    for answers in ([], [1, 2], {"value": 1}, None):
        line = pack({"answers": answers, "monotonic": 5.0, "wall": 5.0}).strip()
        with pytest.raises(ConnectionFailed, match="garbled"):
            BatchHost(Answers("node", False, [pack_questions([("size", "/")])], [line]))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check --host n1", "fleet -w n1"])
@pytest.mark.parametrize("what", ["objects", "names"])
def test_a_few_bytes_that_become_gigabytes_are_refused(what: str, command: str) -> None:
    """They took 1.6 GB; gdrtop needs 40 MB, and some address space for its threads."""
    over = shlex.join([sys.executable, "-m", "tests.support.stand_in", f"n1={what}", "{host}"])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    ended = subprocess.run(
        [sys.executable, "-m", "tui", *command.split(), "--over", over],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (600 << 20, hard)),
    )
    assert ended.returncode == 3, ended.stderr
    assert "it sends more than gdrtop takes from a node" in ended.stdout + ended.stderr


def test_the_messages_of_a_reading_are_limited_together() -> None:
    names = {"value": [f"n{number}" for number in range(65_536)]}
    asked = [pack_questions([("names", f"/{number}")]) for number in range(8)]
    line = pack({"answers": [names], "monotonic": 5.0, "wall": 5.0}).strip()
    BatchHost(Answers("node", False, asked[:6], [line] * 6))
    with pytest.raises(ConnectionFailed, match="it sends more than gdrtop takes from a node"):
        BatchHost(Answers("node", False, asked, [line] * 8))


def test_a_node_with_5000_processes_needs_half_of_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = SimulatedHost("hgx-h100")
    add_processes(simulated.tree, 5000)
    sizes, counts = [], []

    class Weighed(SimulatedConnection):
        def ask(self, questions: Sequence[Sequence[Any]], until: float = 0.0) -> dict[str, Any]:
            message, size = unpack(pack(super().ask(questions, until)).strip())
            sizes.append(size)
            counts.append(len(questions))
            return message

    monkeypatch.setattr(remote_host, "Connection", lambda *_: Weighed(simulated))
    RemoteHost(Target("node")).read_ahead(examine_with_jobs)
    assert max(sizes) < MOST_MESSAGE_BYTES / 2
    assert sum(sizes) < MOST_READING_BYTES / 2
    assert sum(counts) < MOST_QUESTIONS / 1.4


def test_what_has_not_been_asked_is_noted_once() -> None:
    line = pack({"answers": [{"value": 9}], "monotonic": 5.0, "wall": 7.0}).strip()
    node = BatchHost(Answers("node", True, [pack_questions([("size", "/known")])], [line]))
    host: Host = node
    assert (host.size("/known"), host.monotonic(), host.wall_clock(), host.is_root()) == (9, 5.0, 7.0, True)
    host.size("/other")
    host.size("/other")
    assert list(node.missing) == [("size", "/other")]
    assert Missing(list(node.missing)).failure == ""


def test_the_greeting_is_a_line_of_its_own() -> None:
    assert GREETING.isascii()
    assert "\n" not in GREETING
    assert QUERY[0] == "nvidia-smi"
