"""A whole run between pairs of nodes: read and guard the nodes, quick round, suspects again, all pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.perftest import key_notes
from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import join_limited
from probes.base.unknown import Maybe, Unknown
from probes.facts.network.routes import listening
from probes.facts.node import probe_node
from probes.facts.rdma.cable_ends import CableEnd
from probes.fleet.attribution import PairMemory, PairResult, suspects
from probes.fleet.pairs import (
    NodePair,
    NodeRail,
    PairSettings,
    Round,
    affected_on_node,
    all_rounds,
    count_rounds,
    node_rail,
    pair_test,
    quick_rounds,
    repeated_rounds,
    seconds_of,
)
from probes.fleet.rails import Rail, rails_of, read_leaves, with_equal_numbers
from probes.host.probe_thread import LONGEST_SECONDS, start_probe
from probes.host.protocol import Host
from probes.snapshot.examination import Examination, examine
from probes.snapshot.rates import Reading, read
from tui.bandwidth.impact_check import READ_INTERVAL_SECONDS, reread
from tui.bandwidth.pairs.pairs_runner import NodeProcesses, PairsRunner, PairTest
from tui.files import NotWritten
from tui.files.pair_results import PairResultsFile

T = TypeVar("T")
Nodes = Mapping[str, tuple[Host, NodeProcesses]]
_AT_ONCE = 64  # nodes that are read at the same time
_MOST_FAILED_ROUNDS = 2  # in a row, without any result: then a node takes part no longer


@frozen
class RoundStarted:
    """A round begins."""

    number: int
    title: str  # "quick round, host memory"
    pairs: int
    tests: int
    seconds: float


@frozen
class RoundEnded:
    """A round has ended."""

    results: tuple[PairResult, ...]


@frozen
class NodeLeftOut:
    """A node takes part no longer."""

    node: str
    reason: str


PairsEvent = RoundStarted | RoundEnded | NodeLeftOut


@frozen
class PairsPlan:
    """What a run will do."""

    nodes: tuple[str, ...]  # that take part
    rails: tuple[int, ...]
    quick_seconds: float
    repeat_seconds: float  # if nodes are measured again
    full_seconds: float  # for the rounds with all pairs
    notes: tuple[str, ...] = ()  # ends that are not measured as usual


class PairsSession:
    """One run. `read` and `run` block; `stop` can be called from a signal handler."""

    def __init__(
        self,
        nodes: Nodes,
        settings: PairSettings,
        on_event: Callable[[PairsEvent], object],
        results_file: PairResultsFile | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        guards_jobs: bool | None = None,
    ) -> None:
        """`guards_jobs`: leave out nodes with running jobs; by default all but simulated nodes."""
        self._nodes, self._settings, self._on_event = nodes, settings, on_event
        self._file, self._pause, self._guards_jobs = results_file, pause, guards_jobs
        self._runner = PairsRunner(nodes, settings, clock, pause)
        self._examinations: dict[str, Examination] = {}
        self._failed_rounds: dict[str, int] = {}
        self._round = 0
        self.ends: dict[tuple[str, int, PairMemory], NodeRail] = {}
        self.left_out: dict[str, str] = {}
        """Nodes that take no part, and why."""
        self.rails_left_out: dict[str, str] = {}
        """Rails of nodes that cannot be measured, "gpu3 rail 1, GPU memory", and why."""
        self.leaves: dict[str, dict[int, Maybe[CableEnd]]] = {}
        self.results: list[PairResult] = []
        self.not_saved = ""

    @property
    def left_behind(self) -> Sequence[str]:
        """What may still run on a node, a sentence each."""
        return self._runner.left_behind

    def stop(self) -> None:
        """Stop the running round, and start no other."""
        self._runner.stop()

    # Before the run

    def read(self) -> None:
        """Examine all nodes; leave out those that do not answer, cannot measure or are in use."""
        before = self._ask("readings", lambda _, host: read(host, probe_node(host)), self._nodes)
        self._pause(READ_INTERVAL_SECONDS)
        self._examinations = self._known(self._ask("examination", lambda _, host: examine(host), self._nodes))
        own = {name: rails_of(node.node, node.topology) for name, node in self._examinations.items()}
        for name, rails in with_equal_numbers(own).items():
            if isinstance(rails, Unknown):
                self._leave_out(name, f"NICs unknown: {rails}")
            else:
                self._plan_node(name, rails)
        for name in list(self._taking_part()):
            reading = before.get(name)
            self._guard(name, None if isinstance(reading, Unknown) else reading)
        self._read_leaves()

    def plan(self, full: bool) -> PairsPlan:
        """Return what a run will do; `full`: measure all pairs."""
        nodes = tuple(self._taking_part())
        rails = tuple(sorted({rail for node, rail, _ in self.ends if node in nodes}))
        groups = len(rails) if self._settings.one_rail_at_a_time else 1
        memories = len({memory for node, _, memory in self.ends if node in nodes})

        def seconds(rounds: int) -> float:
            return seconds_of(rounds, memories, groups, self._settings.seconds)

        quick = len(quick_rounds(nodes))
        all_seconds = seconds(count_rounds(len(nodes))) if full else 0.0
        ends = ((name, end.settings) for (name, *_), end in self.ends.items() if name in nodes)
        notes = dict.fromkeys(f"{name} {note}" for name, settings in ends for note in key_notes(settings))
        return PairsPlan(nodes, rails, seconds(quick), seconds(2), all_seconds, tuple(notes))

    def _plan_node(self, name: str, rails: Iterable[Rail]) -> None:
        wanted = self._settings.rails
        refused: list[str] = []
        found = 0
        for rail in rails:
            if wanted is not None and rail.number not in wanted:
                continue
            for memory in self._settings.memories:
                end = node_rail(name, self._examinations[name], rail, memory, self._settings)
                if isinstance(end, Refused):
                    refused.append(end.reason)
                    self.rails_left_out[f"{name} rail {rail.number}, {memory.words}"] = end.reason
                else:
                    self.ends[name, rail.number, memory] = end
                    found += 1
        if not found:
            self._leave_out(name, refused[0] if refused else "it has none of the chosen rails")

    def _guard(self, name: str, before: Reading | None) -> None:
        """Leave out a node whose ports are taken or whose jobs would be affected."""
        host, ends = self._nodes[name][0], [end for key, end in self.ends.items() if key[0] == name]
        taken = listening(host)
        ports = sorted({end.settings.tcp_port for end in ends})
        if not isinstance(taken, Unknown) and (port := next((port for port in ports if port in taken), None)):
            self._leave_out(name, f"TCP port {port} is in use there (choose another one with --port)")
            return
        if self._guards(name):
            affected = affected_on_node(self._examinations[name], ends, before, self._settings)
            if affected:
                self._leave_out(name, f"in use: {join_limited(affected, 1)}")

    def _guards(self, name: str) -> bool:
        is_simulated = self._nodes[name][0].origin.source is Source.SIMULATED
        return not is_simulated if self._guards_jobs is None else self._guards_jobs

    def _guard_again(self, names: Iterable[str]) -> None:
        """Check before a later round whether jobs have started on its nodes."""
        checked = {name: self._nodes[name] for name in names}
        answers = self._ask(
            "reading", lambda name, host: reread(host, self._examinations[name], self._pause), checked
        )
        for name, answer in self._known(answers).items():
            self._examinations[name], before = answer
            self._guard(name, before)

    def _read_leaves(self) -> None:
        rails = {
            name: {end.rail.number: end.rail for key, end in self.ends.items() if key[0] == name}
            for name in self._taking_part()
        }
        asked = {name: self._nodes[name] for name in rails}
        answers = self._ask("switches", lambda name, host: read_leaves(host, rails[name].values()), asked)
        for name, answer in answers.items():
            self.leaves[name] = {
                rail: answer if isinstance(answer, Unknown) else answer[rail] for rail in rails[name]
            }

    # The run

    def run(self, full: bool) -> None:
        """Measure; the results so far are in `results`, whatever happens."""
        self.results = list(self._file.unfinished()) if self._file else []
        quick = quick_rounds(list(self._taking_part()))
        self._run_rounds(quick, "quick round")
        # By the quick round alone: a partner of a slow node is no suspect, also in a run that goes on.
        met = {pair.key for pairs in quick for pair in pairs}
        first = [each for each in self.results if frozenset((each.server.node, each.client.node)) in met]
        bad = [name for name in suspects(first) if name in self._taking_part()]
        good = [name for name in self._taking_part() if name not in bad]
        self._run_rounds(repeated_rounds(bad, good, met), "suspects with other nodes")
        if full:
            self._run_rounds(all_rounds(list(self._taking_part())), "all pairs")
        if self._file and not self._runner.is_stopped:
            self._save(self._file.complete)

    def _run_rounds(self, rounds: Iterable[Round], title: str) -> None:
        for pairs in rounds:
            for memory in self._settings.memories:
                for tests in self._groups(pairs, memory):
                    if self._runner.is_stopped:
                        return
                    self._run_round(tests, f"{title}, {memory.words}")

    def _groups(self, pairs: Sequence[NodePair], memory: PairMemory) -> Iterator[list[PairTest]]:
        """Yield the tests of a round that run at the same time, without what is measured already."""
        of_memory = (result for result in self.results if result.memory is memory)
        done = {_key(each.server.node, each.client.node, each.rail, memory) for each in of_memory}
        tests = []
        for pair in pairs:
            for (name, _, each), server in list(self.ends.items()):
                if name != pair.server or each is not memory:
                    continue
                client = self.ends.get((pair.client, server.rail.number, memory))
                if client is None or _key(pair.server, pair.client, server.rail.number, memory) in done:
                    continue
                test = pair_test(server, client, self._settings)
                if isinstance(test, Refused):
                    where = f"{pair.client} with {pair.server}, rail {server.rail.number}, {memory.words}"
                    self.rails_left_out[where] = test.reason
                else:
                    tests.append(PairTest(server, client, test))
        if not self._settings.one_rail_at_a_time:
            yield tests
            return
        for number in sorted({test.client.rail.number for test in tests}):
            yield [test for test in tests if test.client.rail.number == number]

    def _run_round(self, tests: list[PairTest], title: str) -> None:
        if self._round and tests:
            self._guard_again({end.node for test in tests for end in (test.server, test.client)})
        present = set(self._taking_part())
        tests = [test for test in tests if {test.server.node, test.client.node} <= present]
        if not tests or self._runner.is_stopped:
            return
        self._round += 1
        pairs = {(test.server.node, test.client.node) for test in tests}
        seconds = self._settings.seconds
        self._on_event(RoundStarted(self._round, title, len(pairs), len(tests), seconds))
        results = self._runner.run(tests)
        self.results += results
        if self._file:
            self._save(partial(self._file.add, results))
        self._on_event(RoundEnded(results))
        if not self._runner.is_stopped:
            # Leave out a node that gives no result any more: each round with it takes its whole time limit.
            for node in {end.node for result in results for end in result.ends}:
                own = [result.gbps for result in results if node in (result.server.node, result.client.node)]
                failures = [gbps for gbps in own if isinstance(gbps, Unknown)]
                count = self._failed_rounds.get(node, 0) + 1 if len(failures) == len(own) else 0
                self._failed_rounds[node] = count
                if count >= _MOST_FAILED_ROUNDS * len(self._settings.memories):
                    self._leave_out(node, f"all of its tests fail: {failures[0].detail}")

    def _save(self, save: Callable[[], None]) -> None:
        try:
            save()
        except NotWritten as error:
            self.not_saved = str(error)

    # Nodes

    def _taking_part(self) -> dict[str, None]:
        return dict.fromkeys(name for name in self._nodes if name not in self.left_out)

    def _leave_out(self, name: str, reason: str) -> None:
        if name not in self.left_out:
            self.left_out[name] = reason
            self._on_event(NodeLeftOut(name, reason))

    def _known(self, answers: Mapping[str, Maybe[T]]) -> dict[str, T]:
        """Return the answers, and leave out the nodes without one."""
        for name, answer in answers.items():
            if isinstance(answer, Unknown):
                self._leave_out(name, f"it does not answer: {answer}")
        return {name: answer for name, answer in answers.items() if not isinstance(answer, Unknown)}

    def _ask(self, what: str, ask: Callable[[str, Host], T], nodes: Nodes) -> dict[str, Maybe[T]]:
        """Ask nodes at the same time, 64 at once; one that hangs or raises is unknown."""
        answers: dict[str, Maybe[T]] = {}
        names = list(nodes)
        for first in range(0, len(names), _AT_ONCE):
            running = {
                name: start_probe(nodes[name][0], f"{what} of {name}", partial(ask, name, nodes[name][0]))
                for name in names[first : first + _AT_ONCE]
            }
            answers |= {name: probe.answer(LONGEST_SECONDS) for name, probe in running.items()}
        return answers


def _key(a: str, b: str, rail: int, memory: PairMemory) -> tuple[frozenset[str], int, PairMemory]:
    return frozenset((a, b)), rail, memory
