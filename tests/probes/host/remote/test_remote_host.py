"""A node over a connection: round trips, a lost connection, and what is read again after a change."""

import threading
from collections.abc import Callable

import pytest

from probes.base.unknown import Reason, Unknown
from probes.facts.node import probe_node
from probes.host.probe_thread import begin_log, end_log, start_probe
from probes.host.protocol import Host
from probes.host.remote import remote_host, transport
from probes.host.remote.collector import UNFINISHED
from probes.host.remote.nvidia_smi import QUERY
from probes.host.remote.remote_host import QuestionLists, RemoteHost
from probes.host.remote.transport import ConnectionFailed, Target
from probes.live.job_examination import examine_with_jobs
from probes.live.live_sampler import LiveSampler
from probes.simulation.host import SimulatedHost
from probes.snapshot.node_reader import NodeReader
from tests.support.local_node import SimulatedConnection


class Clock:
    """The time of this machine, which the tests step."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Connected:
    """A remote node that is simulated in this process, and its connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "hgx-h100") -> None:
        self.clock = Clock()
        self.simulated = SimulatedHost(name, clock=self.clock.monotonic)
        self.connections: list[SimulatedConnection] = []
        self.failure = ""
        for module in (remote_host, "probes.host.remote.collected_host"):
            target = module if isinstance(module, str) else module.__name__
            monkeypatch.setattr(f"{target}.time", self.clock)
        monkeypatch.setattr(remote_host, "Connection", self._connect)
        self.host = RemoteHost(Target("node"))

    def _connect(self, target: Target, among: object, until: float) -> SimulatedConnection:
        if self.failure:
            raise ConnectionFailed(self.failure)
        self.connections.append(SimulatedConnection(self.simulated))
        return self.connections[-1]

    @property
    def connection(self) -> SimulatedConnection:
        return self.connections[-1]

    def rounds(self, read: Callable[[], object]) -> int:
        """The round trips of a reading."""
        before = self.connection.rounds
        read()
        return self.connection.rounds - before


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Connected:
    return Connected(monkeypatch)


@pytest.mark.slow
def test_round_trips_are_sources_and_a_lost_connection_is_why_one_failed(node: Connected) -> None:
    begin_log()
    node.host.read_ahead(probe_node)
    node.connection.failure = "it does not answer"
    node.host.forget()
    node.host.read("/proc/version")
    found = {source.name: source for source in end_log()}
    trips = [source for name, source in found.items() if name.startswith("round trip ")]
    assert len(trips) > 1
    assert "/proc/sys/kernel/osrelease" in [path for trip in trips for path in trip.questions]
    assert str(trips[-1].answer) == "I/O error: it does not answer"
    assert {"pci", "modules"} <= found.keys()
    assert str(node.host.rdma_resources()) == "I/O error: no connection to node: it does not answer"


@pytest.mark.slow
def test_a_whole_examination_takes_few_round_trips(node: Connected) -> None:
    assert node.rounds(lambda: node.host.read_ahead(examine_with_jobs)) <= 8
    assert node.rounds(lambda: examine_with_jobs(node.host)) == 0


def test_a_node_of_the_same_kind_is_asked_what_another_one_was(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = QuestionLists(60.0)
    first, second = Connected(monkeypatch), Connected(monkeypatch, "hgx-h100+acs-on")
    monkeypatch.setattr(remote_host, "Connection", first._connect)
    assert first.rounds(lambda: first.host.read_ahead(probe_node, lists)) > 2
    assert second.rounds(lambda: second.host.read_ahead(probe_node, lists)) == 1
    assert second.rounds(lambda: probe_node(second.host)) == 0


def test_a_node_that_fails_or_hangs_lets_the_next_one_of_its_kind_go_first() -> None:
    lists = QuestionLists(60.0)
    nothing = lists.first("a", "gpu1")
    lists.end("gpu1")
    assert lists.first("a", "gpu2") == nothing
    assert lists.first("b", "gpu3") == nothing
    lists.add("a", [("file", "/proc/version")])
    assert lists.first("a", "gpu4") != nothing
    impatient = QuestionLists(0.0)
    assert impatient.first("a", "gpu1") == impatient.first("a", "gpu2") == nothing
    lists.stop()
    assert lists.first("b", "gpu5") == nothing


@pytest.mark.slow
def test_a_slow_node_is_not_asked_one_by_one(node: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = node.connection.ask

    def slowly(questions: list[object], until: float) -> dict[str, object]:
        node.clock.now += 1.0
        return ask(questions, until)  # type: ignore[arg-type]

    monkeypatch.setattr(node.connection, "ask", slowly)
    node.host.read_ahead(examine_with_jobs)
    assert node.rounds(lambda: examine_with_jobs(node.host)) <= 4


@pytest.mark.slow
def test_a_long_command_holds_no_sample_and_is_waited_for_in_the_first_reading(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, left = node.connection.ask, [3]

    def slow_smi(questions: list[tuple[object, ...]], until: float) -> dict[str, list[object]]:
        message = ask(questions, until)
        for number, question in enumerate(questions):
            if question[2:] == QUERY and left[0] > 0:
                left[0] -= 1
                message["answers"][number] = {"errno": UNFINISHED, "detail": "still running after 3 s"}
        return message

    monkeypatch.setattr(node.connection, "ask", slow_smi)
    node.host.read_ahead(examine_with_jobs)
    assert left == [0]
    node.clock.now += 6.0
    left[0] = 1
    late = node.host.nvml_live()
    assert isinstance(late, Unknown)
    assert (late.reason, late.detail) == (Reason.TIMED_OUT, "still running after 3 s")
    node.clock.now += 1.0
    assert not isinstance(node.host.nvml_live(), Unknown)


@pytest.mark.slow
def test_a_second_of_the_live_screen_takes_at_most_two_round_trips(node: Connected) -> None:
    node.host.read_ahead(examine_with_jobs)
    reader, live = NodeReader(node.host), LiveSampler()
    probed = reader.probe()
    assert probed is not None
    counts = []
    for _ in range(20):
        node.clock.now += 1.0
        counts.append(node.rounds(lambda: live.sample(node.host, probed, reader.read())))
    assert sum(counts[4:]) <= 2 * len(counts[4:]), counts


@pytest.mark.slow
def test_what_is_read_is_what_the_node_has(node: Connected) -> None:
    node.host.read_ahead(examine_with_jobs)
    facts = probe_node(node.host)
    own = probe_node(node.simulated)
    assert facts.pci == own.pci
    assert node.host.monotonic() == node.simulated.monotonic()


def test_without_a_connection_all_is_unknown_and_later_it_is_there_again(node: Connected) -> None:
    assert node.host.size("/proc/version") is not None
    node.clock.now += 5.0
    node.connection.failure = node.failure = "it does not answer"
    for path in ("/proc/version", "/proc/cmdline", "/sys"):
        answer = node.host.names(path)
        assert isinstance(answer, Unknown)
        assert answer.reason is Reason.IO_ERROR
        assert answer.detail == "no connection to node: it does not answer"
    assert node.connection.is_closed
    assert len(node.connections) == 1
    examination = examine_with_jobs(node.host)  # no traceback either
    assert isinstance(examination.node.pci, Unknown)
    node.failure = ""
    assert isinstance(node.host.names("/sys/bus/pci/devices"), Unknown)  # it is not tried all the time
    node.clock.now += 11.0
    assert not isinstance(node.host.names("/sys/bus/pci/devices"), Unknown)
    assert len(node.connections) == 2


def test_garbled_answers_end_the_connection(node: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.connection, "ask", lambda questions, until: {"answers": [1, 2, 3]})
    assert "its answer is garbled" in str(node.host.size("/proc/version"))
    assert node.connection.is_closed


def test_a_change_is_seen_at_once(node: Connected) -> None:
    path = "/sys/bus/pci/devices"
    before = node.host.names(path)
    assert node.rounds(lambda: node.host.names(path)) == 0
    node.host.forget()
    assert node.rounds(lambda: node.host.names(path)) == 1
    assert node.host.names(path) == before


@pytest.mark.slow
def test_a_change_does_not_make_a_reading_ask_one_by_one(node: Connected) -> None:
    node.host.read_ahead(examine_with_jobs)
    examine_with_jobs(node.host)
    node.host.forget()
    assert node.rounds(lambda: examine_with_jobs(node.host)) <= 8


def test_slow_answers_do_not_turn_the_clock_back(node: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = node.connection.ask

    def slowly(questions: list[object], until: float) -> dict[str, object]:
        node.clock.now += 20.0
        return ask(questions, until)  # type: ignore[arg-type]

    times = [node.host.monotonic()]
    for _ in range(2):
        monkeypatch.setattr(node.connection, "ask", slowly)
        node.clock.now += 4.0
        node.host.size("/a")
        times.append(node.host.monotonic())
        monkeypatch.setattr(node.connection, "ask", ask)
        node.clock.now += 4.0
        node.host.size("/a")
        times.append(node.host.monotonic())
    assert times == [1000.0, 1024.0, 1028.0, 1052.0, 1056.0]


def test_an_answer_that_is_there_does_not_wait_for_a_slow_one(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.host.size("/proc/version")
    ask, asked, go_on = node.connection.ask, threading.Event(), threading.Event()

    def hang(questions: list[object], until: float) -> dict[str, object]:
        asked.set()
        go_on.wait(30)
        return ask(questions, until)  # type: ignore[arg-type]

    monkeypatch.setattr(node.connection, "ask", hang)
    probe = start_probe(node.host, "slow", lambda: node.host.size("/proc/cmdline"))
    assert asked.wait(30)
    fast = start_probe(node.host, "fast", lambda: node.host.size("/proc/version"))
    assert fast.answer(30.0) is not None
    # A round trip may take longer than the time limit of a probe.
    assert not probe.wait(0.0)
    go_on.set()
    assert not (isinstance(answer := probe.answer(0.5), Unknown) and answer.reason is Reason.TIMED_OUT)


def late(node: Connected, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each round trip take so long, with a right answer at the end."""
    ask = node.connection.ask

    def ask_late(questions: list[object], until: float) -> dict[str, object]:
        if node.clock.now + seconds > until:
            node.clock.now = until
            raise ConnectionFailed("it does not answer")
        node.clock.now += seconds
        return ask(questions, until)  # type: ignore[arg-type]

    monkeypatch.setattr(node.connection, "ask", ask_late)


def test_a_reading_of_rounds_that_are_each_in_time_has_a_limit(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 rounds of 20 s each took as long as they liked."""
    late(node, monkeypatch, 20.0)
    with pytest.raises(ConnectionFailed, match="it did not answer within 60 s"):
        node.host.read_ahead(probe_node)
    assert node.clock.now == 1060.0
    assert node.connection.is_closed


def test_a_later_reading_has_the_same_limit(node: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    node.host.read_ahead(probe_node)
    late(node, monkeypatch, 20.0)
    answers = [node.host.size(f"/proc/{number}") for number in range(9)]
    failed = [answer for answer in answers if "did not answer within 60 s" in str(answer)]
    assert len(answers) - len(failed) == 3
    assert node.connection.is_closed


def test_a_node_that_is_late_now_and_then_stays_connected(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.host.read_ahead(probe_node)
    late(node, monkeypatch, 20.0)
    for number in range(9):
        node.host.size(f"/proc/{number}")
        node.clock.now += 21.0
    assert not node.connection.is_closed


def test_what_is_judged_here_counts_too(node: Connected) -> None:
    """A node may claim so many devices that judging them takes minutes."""
    seen = []

    def read(host: Host) -> None:
        seen.append(str(host.size("/proc/version")))
        node.clock.now += 70.0
        seen.append(str(host.size("/proc/cmdline")))

    with pytest.raises(ConnectionFailed, match="it did not answer within 60 s"):
        node.host.read_ahead(read)
    assert "did not answer within 60 s" in seen[1]


def test_more_questions_than_a_node_has_files_end_a_reading(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MOST_QUESTIONS", 50)
    rounds = iter(range(100))

    def read(host: Host) -> None:
        at = next(rounds)
        for number in range(at * 20, at * 20 + 20):
            host.size(f"/proc/{number}")

    with pytest.raises(ConnectionFailed, match="it has more files than gdrtop reads from a node"):
        node.host.read_ahead(read)
    assert next(rounds) == 3


def test_answers_of_changing_names_are_not_kept_for_ever(
    node: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MOST_READING_BYTES", 10_000)
    ask = node.connection.ask

    def ask_large(questions: list[object], until: float) -> dict[str, object]:
        node.connection.memory_bytes += 1000
        return ask(questions, until)  # type: ignore[arg-type]

    monkeypatch.setattr(node.connection, "ask", ask_large)
    for number in range(100):
        node.clock.now += 1.0
        node.host.size(f"/proc/{number}")
    assert len(node.host._fresh) <= 10
