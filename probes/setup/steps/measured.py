"""Steps that are bandwidth tests: done when this node has a good result of each test.

The staged path has no limit that it should reach, and only some tools measure it: its step is done when it is
measured, and skipped where it cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.expected import spark_least, spark_rates
from probes.bandwidth.model.request import MemoryPath, Mode, Request
from probes.bandwidth.model.result import Ending, Result, is_as_requested, mismatch_evidence, planned_key
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM
from probes.bandwidth.planning.node_settings import most_bytes
from probes.bandwidth.planning.series import plan_series
from probes.bandwidth.results.comparison import staging_figures
from probes.base.evidence import Evidence
from probes.base.text import plural
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath
from probes.facts.node import host_name
from probes.facts.system.tool_names import NCCL_TESTS
from probes.queries.pcie_paths import is_gb10
from probes.setup.step import SetupFacts, SetupStep, StepDefinition, StepState
from probes.snapshot.examination import Examination

_ANY_PORT = 18515  # only the keys of the planned tests are used here
_NO_VERBS = "perftest needs verbs, which Slingshot NICs do not have; use nccl-tests instead"

# The other path's test of a comparison: it fails where that path is not usable, and setup needs only one.
_NOT_NEEDED = {GdrPath.DMABUF: BY_PEERMEM, GdrPath.EFA: BY_PEERMEM, GdrPath.PEERMEM: BY_DMABUF}


@dataclass(frozen=True, kw_only=True)
class MeasuredStep(StepDefinition):
    """A step and its test."""

    is_possible_in_container: bool = True
    is_scripted: bool = False
    request: Request
    is_optional: bool = False  # skipped where no tool can run it, and not judged

    def build(self, facts: SetupFacts) -> SetupStep:
        """Return the step in the state that the newest results of its tests give it."""
        return self.measured(facts.examination, facts.results, facts.path)

    def measured(
        self, examination: Examination, results: Sequence[Result], path: GdrPath | None = None
    ) -> SetupStep:
        """Return the step of a node with these results; `path`: the node's."""
        if path is GdrPath.CXI and self.request.tool not in NCCL_TESTS:
            return self.step(StepState.SKIPPED, _NO_VERBS)
        series = plan_series(examination, self.request, _ANY_PORT)
        if isinstance(series, Refused):
            state = StepState.SKIPPED if self.is_optional else StepState.BLOCKED
            return self.step(state, series.reason)
        wants_gpus = self.request.memory is not MemoryPath.HOST
        if wants_gpus and series.left_out and not any(test.pair.gpu_label for test in series.tests):
            return self.step(StepState.BLOCKED, series.left_out[0].reason)
        newest = {result.key: result for result in results}
        is_comparison = self.request.memory is MemoryPath.COMPARE
        not_needed = _NOT_NEEDED.get(path) if is_comparison and path is not None else None
        tests = [test for test in series.tests if test.memory != not_needed]
        measured = [newest.get(planned_key(test)) for test in tests]
        done = [result for result in measured if result is not None]
        evidence = tuple(Evidence(result.title, result.judgment.words or result.failure) for result in done)
        state, reason = StepState.TO_DO, f"{plural(len(tests), 'test')} to run"
        if fault := _fault(done, not self.is_optional):
            reason = fault
        elif done and len(done) < len(tests):
            reason = f"{len(done)} of {plural(len(tests), 'test')} measured"
        elif done:
            state = StepState.DONE
            worst = min(done, key=lambda result: result.judgment.share or 0.0)
            day = datetime.fromtimestamp(max(result.taken_at for result in done)).astimezone()
            words = staging_figures(done) or worst.judgment.words
            reason = f"measured on {day:%Y-%m-%d}: {words}"
        return self.step(state, reason, evidence, test=self.request)


def _fault(done: Sequence[Result], is_judged: bool = True) -> str:
    """Return why results do not complete a step: one failed, used other memory, or is slow."""
    for result in done:
        if result.ending is not Ending.DONE:
            return f"{result.title} failed: {result.failure or result.ending.value}"
    for result in done:
        if result.memory and not is_as_requested(result):
            return f"{result.title}: {mismatch_evidence(result)}"
    slow = next((result for result in done if is_judged and result.judgment.is_slow), None)
    return "" if slow is None else f"{slow.title}: {slow.judgment.words}, {slow.judgment.reason}"


# The last steps, for which a second node is needed: they show what loopback cannot, cable, switch and peer.
#
# They are optional: a node is set up without them. nccl-tests' README has the options of all_reduce_perf.

_NEEDS_PEER = "optional; needs a second node like this one"
_LARGEST = 8 << 30


@dataclass(frozen=True, kw_only=True)
class CableStep(StepDefinition):
    """A test with a peer, of the pairs of its request."""

    is_possible_in_container: bool = True
    is_scripted: bool = False
    request: Request  # in loopback: it says which pairs
    command: str

    def build(self, facts: SetupFacts) -> SetupStep:
        """Return the step, done when every pair has a good result over the cable."""
        series = plan_series(facts.examination, self.request, _ANY_PORT)
        if isinstance(series, Refused):
            return self._made(StepState.SKIPPED, series.reason)
        is_staged = facts.choice.is_staged
        pairs = [(test.pair.gpu_label, test.pair.nic) for test in series.tests]
        newest = {
            (result.pair.gpu_label, result.pair.nic): result
            for result in facts.results  # with GPU memory, unless jobs use none; a node at the other end
            if result.setup in (Mode.CLIENT.value, Mode.BOTH_ENDS.value)
            and (is_staged or result.pair.gpu_label)
        }
        done = [newest[pair] for pair in pairs if pair in newest]
        evidence = tuple(Evidence(result.title, result.judgment.words or result.failure) for result in done)
        state, reason = StepState.TO_DO, f"{plural(len(pairs), 'pair')}; {_NEEDS_PEER}"
        if is_gb10(facts.examination):
            reason = f"{reason}; {spark_least('rail').least:.0f} Gb/s or more for each function is right"
        if fault := _fault(done):
            reason = fault
        elif pairs and len(done) == len(pairs):
            state, reason = StepState.DONE, f"{plural(len(done), 'pair')} measured with {done[0].pair.peer}"
        elif done:
            reason = f"{len(done)} of {plural(len(pairs), 'pair')} measured with {done[0].pair.peer}"
        made = self._made(state, reason, (*evidence, *_expected(facts.results, pairs)))
        if not is_gb10(facts.examination):
            return made
        here = known(host_name(facts.examination.node), "NODE1")
        both = f"then both functions at once: gdrtop fleet bench {here},NODE2 --memory host"
        return replace(made, command=f"{made.command.partition(' (')[0]}; {both}")

    def _made(self, state: StepState, reason: str, evidence: tuple[Evidence, ...] = ()) -> SetupStep:
        test = replace(self.request, setup=Mode.BOTH_ENDS)
        made = self.step(state, reason, evidence, test=test, command=self.command)
        return replace(made, is_optional=True)


def _expected(results: Sequence[Result], pairs: Sequence[tuple[str, str]]) -> tuple[Evidence, ...]:
    """Return the slowest of these pairs in loopback, and what the machine type should reach."""
    here = [
        result
        for result in results
        if result.setup == Mode.LOOPBACK.value
        and (result.pair.gpu_label, result.pair.nic) in pairs
        and result.gbps is not None
    ]
    if not here:
        return ()
    slowest = min(here, key=lambda result: result.gbps or 0.0)
    expected = slowest.expected_gbps
    wanted = "" if expected is None else f"; {slowest.expected_machine} should reach {expected:.0f} Gb/s"
    return (Evidence("In loopback", f"{slowest.path}: {slowest.judgment.words}{wanted}"),)


def two_node_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step for a job on two nodes, with srun where Slurm runs, else with mpirun."""
    node = facts.examination.node
    count = len(node.gpus.gpus) if isinstance(node.gpus, GpuFacts) else 0
    name = known(host_name(node), "NODE1")
    if not count:
        return replace(definition.step(StepState.SKIPPED, "the GPUs are unknown"), is_optional=True)
    start = (
        f"mpirun -np {2 * count} -N {count} -H {name}:{count},NODE2:{count} -x NCCL_DEBUG=INFO"
        if isinstance(facts.situation.slurm, Unknown)
        else f"NCCL_DEBUG=INFO srun -N 2 --ntasks-per-node {count} --gpus-per-node {count} --mpi pmix"
    )
    most = min(most_bytes(facts.examination) or _LARGEST, _LARGEST)
    tool = f"all_reduce_perf -b 8 -e {f'{most >> 30}G' if most >> 30 else most} -f 2 -g 1"
    command = f"{start} {tool} > nccl.log; gdrtop nccl-log nccl.log"
    expected = ""
    if is_gb10(facts.examination):
        row, *signs = (row for row in spark_rates() if row.measure == "busbw")
        less = (f"{row.least / 8:.0f} to {row.most / 8:.0f}: {row.means}" for row in signs)
        expected = f"; busbw of {row.least / 8:.0f} GB/s or more is right ({'; '.join(less)})"
    reason = f"{_NEEDS_PEER}, and nccl-tests on both{expected}"
    made = definition.step(StepState.TO_DO, reason, command=command)
    return replace(made, is_optional=True)
