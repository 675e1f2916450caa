"""Slow results: the newest ones of a node as its conditions, and the findings that explain one.

Slow is what the test's own rating calls slow (rating.py); no other threshold applies here.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.bandwidth.model.expected import SPARK, spark_rate
from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.rating import OpenFinding, Rating
from probes.bandwidth.model.result import Result, is_measured
from probes.bandwidth.model.samples import GPU_PATHS, HOST_MEMORY, STAGED, Sample
from probes.bandwidth.results.against_earlier import local_time
from probes.base.evidence import Evidence, Severity
from probes.base.origin import Origin, origin_word
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.node import host_name
from probes.facts.system.cpu import CpuFacts
from probes.queries.finding import Finding
from probes.queries.pcie_paths import functions_of
from probes.snapshot.condition import BELOW_LIMIT, SPARK_DEGRADED, Condition
from probes.snapshot.examination import Examination
from probes.topology.paths import Topology

MOST_FINDINGS = 4
_OF_CPUS = ("cpu-clocks", "numa-balancing-on")
_LATE = 2.0  # times the typical latency
_DEEP_US = 50  # to wake up; shallower states are usual where latency matters
_AREAS_OF_JOBS = ("nccl", "environment")  # of findings about jobs, which a benchmark tool does not share


def slow_results(
    results: Iterable[Result], topology: Topology, origin: Origin, booted_at: float
) -> tuple[Condition, ...]:
    """Return the newest result of each test of GPU memory over a near NIC, if it is slow.

    On DGX Spark, whose jobs use host memory, it is that of host memory to another node.

    Results of other nodes, of other origins and from before the boot do not count, nor do pairs that NCCL
    does not use: a path through the CPU is slow by design. `origin`: of the
    host, which a redacted node does not have; `booted_at`: seconds since 1970.
    """
    own = known(host_name(topology.node), ""), origin_word(origin)
    newest: dict[tuple[object, ...], Result] = {}
    for result in results:
        pair = result.pair
        is_own = (result.node, result.origin) == own and result.taken_at >= booted_at
        is_of_gpu = bool(pair.gpu and pair.nic) and result.memory in GPU_PATHS
        is_judged = is_of_gpu or result.expected_machine == SPARK
        if not is_own or not is_judged or not is_measured(result):
            continue
        if result.judgment.verdict is Rating.UNKNOWN:
            continue
        ends = pair.gpu, pair.nic, pair.port, pair.far_nic
        key = *ends, result.setup, result.tool, result.is_bidirectional, result.memory
        if key not in newest or newest[key].taken_at <= result.taken_at:
            newest[key] = result
    slow = [result for result in newest.values() if result.judgment.is_slow]
    return tuple(
        _condition(result)
        for result in slow
        if not result.pair.gpu or result.pair.nic in topology.near_nics.get(result.pair.gpu, {})
    )


def _condition(result: Result) -> Condition:
    pair, judgment = result.pair, result.judgment
    reached, _, share = judgment.words.rpartition(", ")
    far = pair.far_nic if not pair.peer else ""  # a peer's NIC is not a device of this node
    between = f"{pair.gpu_label} to {pair.nic}" if pair.gpu else f"{pair.nic} to {pair.peer or 'its peer'}"
    between += f" and {far}" if far else ""
    source = f"{result.tool}, {local_time(result.taken_at)}"
    figure = "; ".join(filter(None, (judgment.words, judgment.why)))
    subject, shown = f"{between} {result.tool} {result.memory}", (Evidence(source, figure),)
    text = f"{between} reached {reached} ({share} of the limit) with {result.memory}"
    devices = tuple(filter(None, (pair.gpu, pair.nic, far)))
    row = spark_rate("rail", result.gbps or 0.0) if result.expected_machine == SPARK else None
    check = row.check if row is not None and row.check else BELOW_LIMIT
    return Condition(check, subject, text, result.taken_at, evidence=shown, devices=devices, is_begun=True)


def open_findings(
    examination: Examination, findings: Iterable[Finding], pair: Pair, memory: str = ""
) -> tuple[OpenFinding, ...]:
    """Return the findings about GPU, NICs and the bridges between them, or about the whole data path.

    With host memory, these are also those about the CPUs.

    They are MOST_FINDINGS at most. Those that cost bandwidth come first; a finding is left out if its cause
    is another one of them.
    """
    devices = _devices_of(examination, pair)
    of_cpus = _OF_CPUS if memory in (HOST_MEMORY, STAGED) else ()
    concerned = [
        finding
        for finding in findings
        if finding.is_present
        and finding.id not in (BELOW_LIMIT, SPARK_DEGRADED)  # an earlier result is no reason for this one
        and (finding.data_path or finding.severity is not Severity.NOTE or finding.id in of_cpus)
        and (
            devices & set(finding.devices)
            if finding.devices
            else finding.id in of_cpus or (finding.data_path and finding.area not in _AREAS_OF_JOBS)
        )
    ]
    ids = {finding.id for finding in concerned}
    causes = [finding for finding in concerned if finding.part_of not in ids]
    causes.sort(key=lambda finding: not finding.data_path)
    return tuple(OpenFinding(finding.id, finding.title) for finding in causes[:MOST_FINDINGS])


def slow_tail(figure: Sample | None, cpu: Maybe[CpuFacts]) -> str:
    """Return the settings of the CPUs that may delay some messages of a latency test; "": few were late."""
    times = {} if figure is None else {each.statistic: each.microseconds for each in figure.latencies}
    typical, late = times.get("typical", 0.0), times.get("99 %", 0.0)
    if isinstance(cpu, Unknown) or not typical or late < _LATE * typical:
        return ""
    clocks, sleep = cpu.clocks, cpu.deepest_sleep
    settings = (
        "" if isinstance(clocks, Unknown) or clocks.is_fast else str(clocks),
        "" if isinstance(sleep, Unknown) or sleep.exit_us < _DEEP_US else str(sleep),
        "automatic NUMA balancing is on" if known(cpu.numa_balancing, 0) else "",
    )
    if not any(settings):
        return ""
    named = ", ".join(filter(None, settings))
    much = f"1 % of the messages took at least {late / typical:.1f} times as long as the typical one"
    return f"{much}. These settings may delay messages: {named}"


def _devices_of(examination: Examination, pair: Pair) -> set[str]:
    """Return GPU and NICs by all their names, and the bridges above them up to where their paths meet."""
    functions, devices = functions_of(examination), examination.topology.devices
    names = {pair.nic, pair.far_nic} - {""}
    nics = {known(devices[name].bdf, "") for name in names if name in devices}
    ends = {pair.gpu, *nics} - {""}
    chains = [functions[bdf].chain for bdf in ends if bdf in functions]
    shared = set.intersection(*map(set, chains)) if len(chains) > 1 else set()
    above = {bdf for chain in chains for bdf in chain}
    # Of the bridges that all ends share, only the lowest is on a path between them.
    lowest = max(shared, key=lambda bdf: chains[0].index(bdf), default="")
    return names | ends | (above - shared) | {lowest}
