"""The metrics of a node that has just been judged, and the counters of its ports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product

from probes.base.evidence import Severity
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, any_of, known, map_known
from probes.checks.judgment import Judgment, with_severity
from probes.facts.gpudirect_probe import PEER_MODULES
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.live.model.sample import LiveProcess, LiveSample, PathWord, Standstill, ranks_wait
from probes.live.model.transfer import TransferWord
from probes.live.ports import counter_files, pcie_stall_percent, read_until_refused, rise
from probes.metrics.metric_list import METRICS, PORT_EVENTS, Family, Labels, Sample, family
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from probes.snapshot.rates import PortCounters, read_port
from probes.snapshot.verdict import State

# The counters of ports as the kernel has them, for a monitoring system that makes rates of them itself.

WAIT = "port_xmit_wait"
_SECONDS = 10.0  # for the answer to one question
_OCTETS_A_WORD = 4  # the unit of port_xmit_data


@frozen
class PortTotals:
    """The counters of one port at one moment."""

    device: str
    port: int
    bytes: PortCounters
    counters: Mapping[str, Maybe[int]]  # by the kernel's name; of the wanted ones those that the port has
    ethtool: Maybe[Mapping[str, int]]  # ethtool -S of its netdev


def read_port_totals(host: Host, node: Node, wanted: Iterable[str]) -> Maybe[tuple[PortTotals, ...]]:
    """Read the `wanted` counters of all ports, with their bytes and those of ethtool -S.

    TIMED_OUT: a read hangs.
    """
    names = frozenset(wanted)
    if isinstance(node.rdma, Unknown) and node.rdma.reason is Reason.NOT_THERE:
        return ()
    ask = start_probe(
        host, "port totals", lambda: map_known(node.rdma, lambda rdma: _read(host, rdma, names))
    )
    return ask.answer(_SECONDS)


def _read(host: Host, rdma: RdmaFacts, wanted: frozenset[str]) -> tuple[PortTotals, ...]:
    ports = [(device, port) for device in rdma.readable for port in device.ports]
    netdevs = tuple(dict.fromkeys(filter(None, (known(port.netdev, "") for _, port in ports))))
    ethtool = host.ethtool_counters(netdevs) if netdevs else {}
    absent = Unknown(Reason.NOT_THERE, "ethtool -S")
    return tuple(
        PortTotals(
            device.name,
            port.number,
            read_port(host, device.sysfs_path, port),
            read_until_refused(host, {name: file for name, file in files.items() if name in wanted}),
            map_known(port.netdev, lambda netdev: ethtool.get(netdev, absent)),
        )
        for device, port in ports
        for files in (counter_files(host, device, port),)
    )


def wait_ratio(before: PortTotals | None, now: PortTotals) -> Maybe[float]:
    """Return wait ticks / (wait ticks + words of 4 octets sent) between two readings, from 0 to 1.

    A tick's length is the NIC's own (IBTA PortXmitWait), so this does not measure time.
    """
    after = now.counters.get(WAIT, Unknown(Reason.NOT_THERE, WAIT))
    if isinstance(after, Unknown):
        return after
    if before is None:
        return Unknown(Reason.NOT_RECORDED, WAIT, "needs a second sample")
    earlier = before.counters.get(WAIT, Unknown(Reason.NOT_RECORDED, WAIT))
    ticks = earlier if isinstance(earlier, Unknown) else rise(WAIT, earlier, after)
    octets = _risen(before.bytes.sent_bytes, now.bytes.sent_bytes)
    words = map_known(octets, lambda count: count / _OCTETS_A_WORD)
    return map_known(ticks, lambda tick: map_known(words, lambda sent: tick / (tick + sent or 1)))


def _risen(before: Maybe[int], after: Maybe[int]) -> Maybe[int]:
    reset = Unknown(Reason.MALFORMED, "", "the counter was reset")
    return map_known(before, lambda was: map_known(after, lambda now: now - was if now >= was else reset))


_Values = Iterator[tuple[Labels, Maybe[float]]]
_PAUSE = re.compile(r"([rt])x_(?:prio([0-7])|global)_pause_duration")  # µs; global: the link has no PFC
_ALL_PRIORITIES = "all"
_DIRECTIONS = {"r": "received", "t": "transmitted"}
_BDF = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


@frozen
class Observation:
    """A node at one moment, as `gdrtop metrics` reads it."""

    version: str  # gdrtop's
    examination: Examination
    judgment: Judgment
    sample: LiveSample | None  # None: a tree of files has no processes
    ports: Maybe[tuple[PortTotals, ...]]
    ports_before: Maybe[tuple[PortTotals, ...]]  # an earlier reading, for ratios
    seconds: float  # that the check took


def _family(name: str, values: Iterable[tuple[Labels, Maybe[float]]]) -> Family:
    return family(METRICS[f"gdrtop_{name}"], values)


def families(seen: Observation, with_bytes: bool = False) -> tuple[Family, ...]:
    """Return all metrics of a node; `with_bytes`: also the ports' bytes, which node_exporter has as well."""
    found = [
        *_judged(seen),
        _family("path_info", _paths(seen.examination)),
        *_peermem(seen.examination),
        *_jobs(seen.sample),
        _family("job_silent_seconds", [({}, _silent_seconds(seen.sample))]),
        _family("kernel_client_info", _kernel_clients(seen.sample)),
        *_ports(seen, with_bytes),
        *_temperatures(seen.examination),
        _family("finding_gpu_seconds", _losses(seen.examination)),
        _family("last_check_timestamp_seconds", [({}, seen.examination.taken_at)]),
        _family("check_duration_seconds", [({}, seen.seconds)]),
    ]
    found = [each for each in found if each.samples or each.unknown]
    unknown = (Sample({"metric": each.metric.name}, each.unknown) for each in found)
    omitted = Sample({}, sum(each.omitted for each in found))
    return (
        *found,
        Family(METRICS["gdrtop_unknown_values"], tuple(unknown)),
        Family(METRICS["gdrtop_omitted_samples"], (omitted,)),
    )


def _judged(seen: Observation) -> Iterator[Family]:
    verdict, findings = seen.judgment.verdict, seen.judgment.findings
    source = seen.examination.node.origin.source.value
    yield _family("build_info", [({"version": seen.version, "source": source}, 1)])
    states = (({"state": state.name.lower()}, float(state is verdict.state)) for state in State)
    yield _family("verdict", states)
    counts = {"gpus": verdict.gpus, "gpus_direct": verdict.gpus_served, "nics_direct": verdict.nics}
    unread = Unknown(Reason.NOT_YET, "", verdict.reason)
    for name, count in counts.items():  # the count of an UNKNOWN node is 0, for lack of anything better
        yield _family(name, [({}, unread if verdict.state is State.UNKNOWN and not count else count)])
    yield _family("finding", _findings(findings))
    by_severity = {Severity.CRITICAL: verdict.critical, Severity.WARNING: verdict.warnings}
    yield _family(
        "findings",
        (({"severity": word.value}, count) for word, count in by_severity.items() if count is not None),
    )
    ended = Counter(finding.status for finding in findings)
    yield _family("checks", (({"status": status.value}, ended[status]) for status in Status))


def _findings(findings: tuple[Finding, ...]) -> _Values:
    """Yield the active findings, one for each cause: each with its first device, then the further devices."""
    order = (Severity.CRITICAL, Severity.WARNING, Severity.NOTE)
    active = [finding for severity in order for finding in with_severity(findings, severity)]
    firsts = ((finding, next(iter(finding.devices), "")) for finding in active)
    others = ((finding, device) for finding in active for device in finding.devices[1:])
    for finding, device in chain(firsts, others):
        labels = {"id": finding.id, "severity": finding.severity.value, "title": finding.problem}
        yield {**labels, "device": device, "pci_bus_id": _bus_id(device)}, 1


def _losses(examination: Examination) -> _Values:
    history = examination.component_history
    for loss in () if isinstance(history, Unknown) else history.losses:
        figures = {"affected": loss.gpu_seconds, "in_jobs": loss.job_seconds, "lost": loss.lost_seconds}
        yield from (({"id": loss.finding or "any", "what": what}, value) for what, value in figures.items())


def _bus_id(bdf: str) -> str:
    """Return "0000:1a:00.0" as NVML writes it, "00000000:1A:00.0"; "" for the name of a device."""
    match = _BDF.fullmatch(bdf)
    return f"{match[1]:0>8}:{match[2]}".upper() if match else ""


def _paths(examination: Examination) -> _Values:
    node, topology = examination.node, examination.topology
    facts = {gpu.bdf: gpu for gpu in node.known_gpus}
    nics = [nic.id for nic in topology.nics if nic.id in topology.devices]
    for gpu, nic in product((gpu.id for gpu in topology.gpus), nics):
        path = topology.paths[gpu, nic]
        card = facts.get(gpu)
        labels = {
            "gpu": str(card.index) if card else "",
            "uuid": known(card.uuid, "") if card else "",
            "pci_bus_id": _bus_id(gpu),
            "device": nic,
            "nvidia_smi": map_known(path.smi, lambda word: word.value),
            "path": map_known(path.nccl, lambda word: word.value),
        }
        shown = {name: known(text, "") for name, text in labels.items()}
        yield shown, map_known(path.nccl, lambda _: 1)


def _peermem(examination: Examination) -> Iterator[Family]:
    def is_loaded(facts: ModuleFacts) -> Maybe[bool]:
        found = (facts.modules[name].state for name in PEER_MODULES if name in facts.modules)
        return any_of(map_known(state, lambda state: state is ModuleState.LIVE) for state in found)

    loaded = map_known(examination.node.modules, is_loaded)
    if isinstance(loaded, Unknown):  # that /proc/modules is not there does not say that the module is not
        loaded = Unknown(Reason.FILE_MISSING, loaded.source)
    yield _family("peermem_loaded", [({}, map_known(loaded, float))])
    yield _family("peermem_refcnt", [({}, examination.reading.peermem.refcnt)])


def _jobs(sample: LiveSample | None) -> Iterator[Family]:
    """Yield how many jobs and processes have each path; 0 only where all processes can be seen."""
    names = ("jobs", "job_processes")
    unread = Unknown(Reason.NOT_RECORDED, "processes")
    if sample is None or isinstance(sample.processes, Unknown):
        yield from (_family(name, [({}, unread)]) for name in (*names, "engine_processes"))
        return
    yield _engines(sample, sample.processes)
    counted = Counter(process.path.word for process in sample.processes)
    with_word = Counter(word for _, word in {(each.job, each.path.word) for each in sample.processes})
    for name, count in zip(names, (with_word, counted), strict=True):
        values = [
            ({"path": word.name.lower()}, unread if sample.missing and not count[word] else count[word])
            for word in PathWord
        ]
        yield _family(name, values)


def _engines(sample: LiveSample, processes: Sequence[LiveProcess]) -> Family:
    """Return how many processes move KV caches over what; unknown until each engine was read twice."""
    unread = Unknown(Reason.NOT_YET, "engines", "needs two readings")
    is_pending = any(each.is_engine and each.transfer is None for each in processes)
    counted = Counter(each.transfer.lasting for each in processes if each.transfer is not None)
    is_hidden = is_pending or bool(sample.missing)
    counts = (({"path": word.name.lower()}, counted[word]) for word in TransferWord)
    return _family(
        "engine_processes",
        ((labels, unread if is_hidden and not count else count) for labels, count in counts),
    )


def _silent_seconds(sample: LiveSample | None) -> Maybe[float]:
    """Return how long the longest wait of a job is, for which it has to be seen in several readings."""
    jobs = () if sample is None else sample.jobs
    waits = [(ranks_wait(job.standstill), job.standstill) for job in jobs]
    longest = max(
        (still.seconds for wait, still in waits if wait is True and isinstance(still, Standstill)),
        default=0.0,
    )
    is_seen = sample is not None and not isinstance(sample.processes, Unknown) and not sample.missing
    if longest or (is_seen and not any(isinstance(wait, Unknown) for wait, _ in waits)):
        return longest
    return Unknown(Reason.NOT_RECORDED, "jobs")


def _kernel_clients(sample: LiveSample | None) -> _Values:
    """Yield the clients on each NIC: their traffic is not that of jobs, and they have no process."""
    clients = {} if sample is None else sample.kernel_clients
    for device, names in clients.items():
        yield from (({"device": device, "client": name}, 1.0) for name in names)
    if sample is None or (not clients and (sample.missing or isinstance(sample.processes, Unknown))):
        yield {}, Unknown(Reason.NOT_RECORDED, "queue pairs of the kernel")


def _ports(seen: Observation, with_bytes: bool) -> Iterator[Family]:
    if isinstance(seen.ports, Unknown):
        unread: list[tuple[Labels, Maybe[float]]] = [({}, seen.ports)]
        rates = ("port_transmit_wait_ratio", "port_pcie_stall_ratio", "port_pause_seconds")
        octets = ("port_data_transmitted_bytes", "port_data_received_bytes") if with_bytes else ()
        yield from (_family(name, unread) for name in rates)
        yield from (family(metric, unread) for metric in PORT_EVENTS.values())
        yield from (_family(name, unread) for name in octets)
        return
    earlier = {(port.device, port.port): port for port in known(seen.ports_before, ())}
    named = [({"device": port.device, "port": str(port.port)}, port) for port in seen.ports]
    yield _family(
        "port_transmit_wait_ratio",
        ((labels, wait_ratio(earlier.get((port.device, port.port)), port)) for labels, port in named),
    )
    yield _family("port_pcie_stall_ratio", ((labels, _stall(port)) for labels, port in named))
    yield _family("port_pause_seconds", (value for labels, port in named for value in _pauses(labels, port)))
    for name, metric in PORT_EVENTS.items():
        yield family(metric, ((labels, _count(port, name)) for labels, port in named))
    if with_bytes:
        # A netdev's bytes are not those of the port alone.
        own = [(labels, port.bytes) for labels, port in named if not port.bytes.interface]
        yield _family("port_data_transmitted_bytes", ((labels, read.sent_bytes) for labels, read in own))
        yield _family("port_data_received_bytes", ((labels, read.received_bytes) for labels, read in own))


def _temperatures(examination: Examination) -> Iterator[Family]:
    """Yield the temperature and the limit of each sensor; NICs without sensors have none."""
    rdma, temperatures = examination.node.rdma, examination.temperatures
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    names = {known(device.bdf, ""): device.name for device in reversed(devices)}
    unread: list[tuple[Labels, Maybe[float]]] = []
    if isinstance(temperatures, Unknown):
        unread, temperatures = [({}, temperatures)], {}
    by_device = [({"device": names.get(bdf, bdf)}, found) for bdf, found in temperatures.items()]
    unread += [(labels, found) for labels, found in by_device if isinstance(found, Unknown)]
    sensors = [
        (labels | {"sensor": each.label}, each) for labels, found in by_device for each in known(found, ())
    ]
    celsius = ((labels, sensor.celsius) for labels, sensor in sensors)
    limits = ((labels, sensor.limit_celsius) for labels, sensor in sensors)
    yield _family("nic_temperature_celsius", [*unread, *celsius])
    yield _family("nic_temperature_limit_celsius", [*unread, *limits])


def _stall(port: PortTotals) -> Maybe[float]:
    percent = map_known(port.ethtool, lambda counters: pcie_stall_percent(dict(counters)))
    return map_known(percent, lambda part: part / 100)


def _pauses(labels: Labels, port: PortTotals) -> _Values:
    if isinstance(port.ethtool, Unknown):
        yield labels, port.ethtool
        return
    for name, microseconds in port.ethtool.items():
        if match := _PAUSE.fullmatch(name):
            priority = match[2] or _ALL_PRIORITIES
            yield {**labels, "direction": _DIRECTIONS[match[1]], "priority": priority}, microseconds / 1e6


def _count(port: PortTotals, name: str) -> Maybe[float]:
    if name in port.counters:
        return port.counters[name]
    absent = Unknown(Reason.NOT_THERE, name)
    return map_known(port.ethtool, lambda counters: counters.get(name, absent))
