"""A run of all-reduce over many nodes: all of them, then those that narrow a fault down.

gdrtop starts nccl_rank.py on each node through its own connections, or srun or mpirun on the first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from probes.bandwidth.model.limits import limit_of_pair
from probes.bandwidth.model.planned_series import Pair, PlannedTest
from probes.bandwidth.model.rating import best_row
from probes.bandwidth.model.request import Mode
from probes.bandwidth.model.samples import Sample
from probes.bandwidth.planning.affected_jobs import affected_by
from probes.bandwidth.planning.node_settings import most_bytes
from probes.bandwidth.tools.nccl_tests import NcclSettings, NcclTestsOutput
from probes.base.text import printable
from probes.base.unknown import Reason, Unknown
from probes.fleet.collective import (
    SIZES,
    Launch,
    Outcome,
    RingNode,
    RingResult,
    RingSettings,
    judge_ring,
    launcher_command,
    rank_commands,
    usual_node,
)
from probes.fleet.fault_search import Fault, Group, search_faults
from probes.fleet.node_set import fold_nodes
from probes.fleet.pairs import PairSettings
from probes.fleet.rails import Rail
from probes.host.remote.transport import plain_source, with_python
from probes.nccl.log.facts import LogFacts
from probes.nccl.log.reader import LogReader
from probes.queries.ports import other_key_index
from probes.snapshot.rates import Reading
from tui.bandwidth.pairs import nccl_rank
from tui.bandwidth.pairs.nccl_rank import FAILED_MARK, ID_MARK
from tui.bandwidth.pairs.pairs_runner import OVERDUE_SECONDS, STEP_SECONDS, UNCONFIRMED, end_together
from tui.bandwidth.pairs.pairs_session import Nodes, PairsEvent, PairsPlan, PairsSession, RoundStarted
from tui.bandwidth.processes import ToolProcess
from tui.bandwidth.supervisor import STILL_THERE
from tui.files.pair_results import RingResultsFile

_QUEUE_PAIRS = 8  # of the channels over one NIC: more than a bond has ports
_MOST_NAMED = 4  # groups
_NO_LIBRARY = "cannot load"
_MOST_REPEATED = 3  # runs without nodes that the run before has named


@cache
def rank_program() -> str:
    """Return the shell command that runs nccl_rank.py from memory."""
    return with_python(f"{plain_source(Path(nccl_rank.__file__))}")


class NcclSession(PairsSession):
    """One run; `read`, `plan` and `stop` are those of pairs."""

    def __init__(
        self,
        nodes: Nodes,
        settings: PairSettings,
        launch: Launch,
        on_event: Callable[[PairsEvent], object],
        results_file: RingResultsFile | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        guards_jobs: bool | None = None,
    ) -> None:
        super().__init__(nodes, settings, on_event, None, clock, pause, guards_jobs)
        self._clock, self._launch, self._ring_file = clock, launch, results_file
        self.ring_nodes: dict[str, RingNode] = {}
        self.ring_results: list[RingResult] = []
        self.whole: RingResult | None = None
        """The last result of all nodes that take part."""
        self.faults: tuple[Fault, ...] = ()
        self._earlier: dict[Group, RingResult] = {}

    @property
    def ring_settings(self) -> RingSettings:
        """The settings, with sizes that fit into the memory of every node."""
        least = min(
            (most_bytes(each) or SIZES[-1] for each in self._examinations.values()), default=SIZES[-1]
        )
        sizes = tuple(size for size in SIZES if size <= least)
        return RingSettings(self._settings.duration_s, self._launch, sizes or (least,))

    def members(self, group: Group) -> tuple[RingNode, ...]:
        """Return what each node of a group takes part with."""
        return tuple(self.ring_nodes[name] for name in group.nodes)

    def plan(self, full: bool) -> PairsPlan:
        """Return what a run will do."""
        del full
        nodes = tuple(self._taking_part())
        rails = sorted({rail.number for name in nodes for rail in self.ring_nodes[name].rails})
        seconds = self.ring_settings.seconds
        return PairsPlan(nodes, tuple(rails), seconds, 4 * seconds, 0.0)

    def _plan_node(self, name: str, rails: Iterable[Rail]) -> None:
        examination, wanted = self._examinations[name], self._settings.rails
        chosen = [rail for rail in rails if wanted is None or rail.number in wanted]
        for rail in chosen:
            if not rail.is_active:
                self.rails_left_out[f"{name} rail {rail.number}"] = f"no port of {rail.nic} is active"
        used = tuple(rail for rail in chosen if rail.is_active)
        indices = {gpu.bdf: gpu.index for gpu in examination.node.known_gpus}
        gpu_of = {rail.number: indices[rail.gpu] for rail in used if rail.gpu in indices}
        direct, gpus = examination.node.gpudirect, examination.node.gpus
        if isinstance(gpus, Unknown):
            self._leave_out(name, f"GPUs unknown: {gpus}")
        elif not used or not indices:
            why = "this node has no GPU" if used else "it has none of the chosen rails with an active port"
            self._leave_out(name, why)
        elif not isinstance(direct, Unknown) and direct.by_design:
            self._leave_out(name, f"no GPUDirect RDMA by design: {direct.by_design}")
        else:
            near = next(iter(indices))
            limits = {
                rail.number: limit_of_pair(
                    examination, rail.gpu or near, rail.nic, rail.port, queue_pairs=_QUEUE_PAIRS
                )
                for rail in used
            }
            numbers = tuple(sorted(indices.values() if wanted is None else set(gpu_of.values())))
            self.ring_nodes[name] = RingNode(
                name, numbers, used, gpu_of, limits, other_key_index(examination, [rail.nic for rail in used])
            )

    def _guard(self, name: str, before: Reading | None) -> None:
        """Leave out a node whose jobs would be affected."""
        if not self._guards(name):
            return
        node = self.ring_nodes[name]
        nics = tuple(rail.nic for rail in node.rails)
        settings = NcclSettings(node.gpus, over_network=True, devices=nics)
        test = PlannedTest(
            title=name,
            settings=settings,
            setup=Mode.BOTH_ENDS,
            pair=Pair(),
            memory="",
            processes=(),
            limit=next(iter(node.limits.values())),
            purpose=settings.purpose(),
            seconds=0.0,
            time_limit_s=0.0,
        )
        if affected := affected_by(self._examinations[name], (test,), before):
            self._leave_out(name, f"in use: {affected[0]}")

    def _read_leaves(self) -> None:
        return

    # The run

    def run(self, full: bool = False) -> None:
        """Measure all nodes, and narrow a fault down; the results so far are in `ring_results`."""
        del full
        self._earlier = self._ring_file.ring_results() if self._ring_file else {}
        self._measure()
        if self._ring_file and not self._has_stopped():
            self._save(self._ring_file.complete)

    def _measure(self) -> None:
        """Run all nodes, again without those that the run has named, and search what it does not name."""
        for _ in range(_MOST_REPEATED):
            nodes = tuple(name for name in self._taking_part() if not self._is_staged(name))
            if len(nodes) < 2 or (self.whole and self.whole.group.nodes == nodes):
                return
            self._usual = usual_node([self.ring_nodes[name] for name in nodes])
            results = self._run_groups([Group(nodes)], "all nodes")
            if results is None:
                return
            self.whole = results[0]
            if self.whole.outcome in (Outcome.PASSED, Outcome.NOT_TESTED):
                return
            if self.whole.outcome is Outcome.STAGED or self._leaves_out_node(self.whole):
                continue
            # The rails that every node has with a GPU of its own.
            rails = set.intersection(*(set(self.ring_nodes[name].gpu_of) for name in nodes))
            with suppress(_Stopped):
                own = self._launch is Launch.OWN
                self.faults = search_faults(nodes, sorted(rails) if own else (), self._passes)
            return

    def _has_stopped(self) -> bool:
        return self._runner.is_stopped

    def _is_staged(self, name: str) -> bool:
        return any(each.node == name for result in self.ring_results for each in result.staged)

    def _leaves_out_node(self, result: RingResult) -> bool:
        """Leave out the node that cannot start its ranks; return whether there is one."""
        why = result.bus_gbps.detail if isinstance(result.bus_gbps, Unknown) else ""
        if not result.failed_node or _NO_LIBRARY not in why:
            return False
        self._leave_out(result.failed_node, why)
        return True

    def _passes(self, groups: Sequence[Group]) -> list[bool]:
        results = self._run_groups(groups, "narrowing down")
        if results is None:
            raise _Stopped
        return [result.outcome is Outcome.PASSED for result in results]

    def _run_groups(self, groups: Sequence[Group], title: str) -> list[RingResult] | None:
        """Run groups without a common node at the same time; None: stopped, or a node is in use now."""
        wanted = [group for group in groups if group not in self._earlier]
        names = {name for group in wanted for name in group.nodes}
        if self._round and names:
            self._guard_again(names)
        if self._has_stopped() or names & set(self.left_out):
            return None
        self._round += 1
        if wanted:
            named = "; ".join(map(_words, wanted[:_MOST_NAMED])) + " …" * (len(wanted) > _MOST_NAMED)
            seconds = self.ring_settings.seconds
            self._on_event(RoundStarted(self._round, f"{title}: {named}", len(wanted), len(wanted), seconds))
        runs = {group: self._prepared(group) for group in wanted}
        try:
            for run in runs.values():
                run.start()
            while not self._has_stopped() and sum(run.step() for run in runs.values()):
                self._pause(STEP_SECONDS)
        finally:
            self._end([*runs.values()])
        if self._has_stopped():
            return None
        found = []
        for group in groups:
            result = runs[group].result() if group in runs else self._earlier[group]
            found.append(result)
            if self._ring_file and group in runs:
                self._save(partial(self._ring_file.add_ring, result))
        self.ring_results += found
        return found

    def _prepared(self, group: Group) -> _GroupRun:
        # Only once: each job waits for NCCL's diagnostics.
        members = self.members(group)
        settings = replace(self.ring_settings, diagnoses=self.whole is None)
        return _GroupRun(self._nodes, members, self._usual, group, settings, self._clock)

    def _end(self, runs: Sequence[_GroupRun]) -> None:
        processes = {name: process for run in runs for name, process in run.processes.items()}
        hung = end_together({name: partial(_ended, process) for name, process in processes.items()})
        for name, process in processes.items():
            why = UNCONFIRMED if name in hung else process.ended.why if process.ended else ""
            if STILL_THERE in why or UNCONFIRMED in why:
                self._runner.left_behind.append(f"{name}: {why}")


class _Stopped(Exception):
    """The run was stopped while a fault was searched."""


def _ended(process: ToolProcess) -> None:
    with suppress(OSError):
        process.end()


def _words(group: Group) -> str:
    rails = f" on rails {', '.join(map(str, group.rails))}" if group.rails else ""
    return f"{fold_nodes(group.nodes)}{rails}"


class _GroupRun:
    """One all-reduce over a group, from its first process to its result."""

    def __init__(
        self,
        nodes: Nodes,
        members: Sequence[RingNode],
        usual: RingNode,
        group: Group,
        settings: RingSettings,
        clock: Callable[[], float],
    ) -> None:
        self._nodes, self._members, self._usual = nodes, members, usual
        self._group, self._settings = group, settings
        self._clock = clock
        self._is_own = settings.launch is Launch.OWN
        self.processes: dict[str, ToolProcess] = {}
        self._readers: dict[str, LogReader] = {}
        self._output = NcclTestsOutput("all_reduce")
        self._samples: list[Sample] = []
        self._last: dict[str, str] = {}  # line that may say why a process has ended
        self._failure = self._failed_node = ""
        self._began = 0.0
        self._is_over = False

    def _commands(self, identity: str) -> Sequence[Sequence[str]]:
        """Return what runs on each node, with NCCL's unique id; a launcher on the first one."""
        rails, settings = self._group.rails, self._settings
        if self._is_own:
            return rank_commands(self._members, rails, settings, rank_program(), identity)
        return (launcher_command(self._members, rails, settings, settings.launch),)

    def start(self) -> None:
        """Start the first process, which the others wait for."""
        self._began = self._clock()
        self._start(self._members[0].name, self._commands("new")[0])

    def _start(self, name: str, argv: Sequence[str]) -> None:
        reader = self._readers[name] = LogReader()
        reader.begin(name)
        try:
            self.processes[name] = self._nodes[name][1].start(argv, self._settings.time_limit_s)
        except OSError as error:
            self._fail(name, f"connection lost: {error.strerror or error}")

    def step(self) -> bool:
        """Read what all processes have printed; return whether it goes on."""
        if self._is_over:
            return False
        for name, process in list(self.processes.items()):
            try:
                lines = process.lines(0.0)
            except OSError as error:
                self._fail(name, f"connection lost: {error.strerror or error}")
                break
            for line in lines:
                self._take(name, line)
        ended = {name: end for name, each in self.processes.items() if (end := each.ended) is not None}
        for name, end in ended.items():
            if end.exit_status != 0:
                status = f"its process exited with status {end.exit_status}: {self._last.get(name, '')}"
                self._fail(name, end.why or status.removesuffix(": "))
        if len(ended) == len(self.processes):
            self._is_over = True
            if self._is_own and len(self.processes) < len(self._members):
                self._fail(self._members[0].name, "it printed no unique id of NCCL")
        elif self._clock() - self._began > self._settings.time_limit_s + OVERDUE_SECONDS:
            self._fail(next(name for name in self.processes if name not in ended), "it does not answer")
        return not self._is_over

    def _take(self, name: str, line: str) -> None:
        if line.startswith(ID_MARK):
            if len(self.processes) == 1:
                identity = "".join(each for each in line[len(ID_MARK) :] if each in "0123456789abcdef")
                others = zip(self._members[1:], self._commands(identity)[1:], strict=True)
                for member, argv in others:
                    self._start(member.name, argv)
            return
        if line.startswith(FAILED_MARK):
            self._fail(name, printable(line[len(FAILED_MARK) :], 300))
            return
        if " NCCL INFO " not in line and not line.startswith("#"):
            self._last[name] = printable(line, 200)
        self._readers[name].feed(line.encode() + b"\n")
        if name == self._members[0].name:
            for each in self._output.feed(line):
                if isinstance(each, Sample) and each.size_bytes is not None:  # None: the average of all
                    self._samples.append(each)
                    if each.wrong:
                        self._fail(name, f"{each.wrong} elements were wrong: data was corrupted")

    def _fail(self, name: str, why: str) -> None:
        """Note the first failure: the others follow from it."""
        if not self._failure:
            self._failure, self._failed_node = why, name
        self._is_over = True

    def result(self) -> RingResult:
        """Return the result; only after the end."""
        logs: dict[str, LogFacts] = {}
        for name, reader in self._readers.items():
            reader.end()
            logs[name if self._is_own else ""] = reader.facts()
        sample = best_row(self._samples) if self._samples and not self._failure else None
        why = self._failure or "it printed no result"
        if problem := next((log.first_fatal for log in logs.values() if log.first_fatal), None):
            why = f"{why}: {problem.title}"
        failure = Unknown(Reason.IO_ERROR, self._failed_node, why)
        return judge_ring(self._members, self._usual, self._group, sample, logs, failure, self._failed_node)
