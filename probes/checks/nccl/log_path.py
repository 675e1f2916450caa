"""The path of a job's channels by its own NCCL log, compared with what the node's facts show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.base.evidence import Evidence, Severity
from probes.base.text import capitalized, join_limited
from probes.base.unknown import known, map_known
from probes.queries.finding import Area, Outcome
from probes.queries.job_logs import (
    conclude_logs,
    environment_evidence,
    environment_sentence,
    line_of,
    names_of_ranks,
    place_of,
    readings_of,
)
from probes.queries.jobs import (
    NCCL_VARIABLES,
    OVER_TCP,
    STAGED,
    STAGING_SETTINGS,
    TCP_SETTINGS,
    job_plan,
    usable_paths,
)
from probes.queries.kernel_log import P2P_REFUSALS
from probes.queries.modules import PLUGIN, plugin_only_driver
from probes.snapshot.condition import OVER_TCP as JOB_OVER_TCP
from probes.snapshot.condition import STAGED as JOB_STAGED
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State as NodeState

if TYPE_CHECKING:
    from probes.nccl.log.facts import JobLogReading, Place, Rank, RankPath

AREA = Area("nccl", explains=True)
_TO_TCP = ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN")
_OF_NETWORK = (*_TO_TCP, "NCCL_IB_HCA")
_OF_GDR = (
    *("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NET_GDR_C2C"),
    *("NCCL_DMABUF_ENABLE", "NCCL_IB_CUDA_SUPPORT"),
)
_CAUSES_OF_DISTANCE = (
    *(JOB_STAGED, *STAGING_SETTINGS),
    *("job-log-gdr-disabled", "job-log-other-setting", "job-log-other-nics"),
    *("gpu-nic-cross-socket", "gpu-nic-through-cpu"),
)
_CAUSES_OF_STAGING = (*_CAUSES_OF_DISTANCE, "no-gdr-path", *P2P_REFUSALS)


def _staged(reading: JobLogReading, over_tcp: bool) -> list[Rank]:
    """Return the ranks with channels without GPUDirect RDMA, over TCP or over RDMA."""
    ranks = [rank for rank in reading.facts.ranks if rank.first_staged is not None]
    return [rank for rank in ranks if bool(_tcp_network(rank)) == over_tcp]


def _tcp_network(rank: Rank) -> str:
    """Return the network over TCP that the rank uses; "" if it uses none."""
    from probes.nccl.log.verdict import TCP_NETWORKS

    networks = (name.partition("/")[0] for name in rank.devices)
    return next((network for network in networks if network in TCP_NETWORKS), "")


def _is_by_design(examination: Examination) -> bool:
    """Say whether this hardware cannot use GPUDirect RDMA, which the verdict says."""
    return examination.usability.state is NodeState.NOT_APPLICABLE


def _reason_lines(reading: JobLogReading) -> Iterator[Evidence]:
    for reason in reading.verdict.reasons:
        yield Evidence(line_of(reason.places, reading), reason.text)


@AREA.critical(
    "job-log-tcp",
    "A job's NCCL log shows TCP instead of RDMA",
    NCCL_VARIABLES + "#nccl-net",
    ok="No job's NCCL log shows TCP",
    impact=OVER_TCP,
    data_path=True,
    part_of=(JOB_OVER_TCP, *TCP_SETTINGS, "job-log-plugin-missing", "job-log-other-setting", "no-gdr-path"),
)
def job_log_tcp(examination: Examination) -> Outcome:
    """Find logs with `via NET/Socket` on a node that has RDMA devices."""
    readings = readings_of(examination)
    rdma = known(map_known(examination.node.rdma, lambda rdma: rdma.devices), ())
    is_fault = bool(rdma) and not _is_by_design(examination)
    affected = [reading for reading in readings if is_fault and _staged(reading, over_tcp=True)]
    evidence: list[Evidence] = []
    cause = ""
    for reading in affected:
        ranks = _staged(reading, over_tcp=True)
        places = [rank.first_staged for rank in ranks if rank.first_staged is not None]
        reasons = [line for line in _reason_lines(reading) if "TCP sockets" not in line.value]
        count = f"{len(ranks)} of its ranks on this node use NET/{_tcp_network(ranks[0])}"
        evidence.append(Evidence(str(places[0]), count))
        evidence.extend(reasons)
        evidence.extend(environment_evidence(examination, reading, _OF_NETWORK))
        why = f"{reasons[0].value}." if reasons else "The log does not say why."
        environment = environment_sentence(examination, reading, _TO_TCP, "selects TCP")
        cause = cause or f"NCCL chose TCP when the job started. {why} {environment}"
    fix = job_plan(
        "Let NCCL use RDMA",
        "Remove NCCL_NET=Socket and NCCL_IB_DISABLE=1 from the job and its code",
        "Make /dev/infiniband visible in the job's container, with libibverbs and the NICs' provider library",
        "Set NCCL_NET=IB for the next run, so that NCCL fails instead of using TCP",
    )
    if plugin_only_driver(examination):  # NCCL's own InfiniBand code cannot use these NICs
        fix = job_plan(
            "Let NCCL use its network plugin",
            "Remove NCCL_NET=Socket and NCCL_NET_PLUGIN=none from the job and its code",
            f"Install {PLUGIN} and libfabric in the job's image, and add it to LD_LIBRARY_PATH",
            "Make the device files of the NICs visible in the job's container",
        )
    return conclude_logs(examination, affected, cause, evidence, fix)


@AREA.critical(
    "job-log-staged",
    "A job's NCCL log shows channels without GPUDirect RDMA",
    NCCL_VARIABLES + "#nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
    ok="No job's NCCL log shows RDMA channels without GPUDirect RDMA",
    impact=STAGED,
    data_path=True,
)
def job_log_staged(examination: Examination) -> Outcome:
    """Find `via NET/` lines without /GDRDMA; a warning if other channels of the job have it."""
    readings, is_fault = readings_of(examination), not _is_by_design(examination)
    affected = [reading for reading in readings if is_fault and _staged(reading, over_tcp=False)]
    evidence: list[Evidence] = []
    devices: list[str] = []
    names: list[str] = []
    subjects: list[frozenset[str]] = []
    cause = ""
    for reading in affected:
        ranks = _staged_here(reading)
        subjects += [names_of_ranks(reading, (rank,)) for rank in ranks]
        evidence.append(Evidence(place_of(reading), f"GPUDirect RDMA: {reading.verdict.text}"))
        evidence.extend(_reason_lines(reading))
        evidence.extend(environment_evidence(examination, reading, _OF_GDR))
        environment = environment_sentence(examination, reading, _OF_GDR, "disables it")
        who = _ranks_sentence(examination, reading, ranks)
        reasons = reading.verdict.reasons
        why = f"{reasons[0].text}." if reasons else "The log does not say why."
        cause = cause or f"{who}{why} {environment}"
        if who:
            devices += [end for rank in ranks for end in (*rank.gpus, *rank.nics)]
            names += [rank.name for rank in ranks]
    is_partly = all(reading.facts.channels.gdr for reading in affected)
    compare = (
        "Compare the ranks without GPUDirect RDMA with the others of their job: NIC, distance, CPUs and "
        "environment. Live shows them for each rank"
    )
    fix = job_plan(
        "Find out why NCCL does not use GPUDirect RDMA",
        *([compare] if devices else []),
        "Check the reasons in the evidence. The log shows distances, disabled NICs and settings"
        if all(map(_says_why, affected))
        else "Set NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV for the next run: the log gives no reason",
    )
    ends, whom = tuple(dict.fromkeys(devices)), tuple(dict.fromkeys(names))
    # NCCL says that a NIC is too far from a GPU: it had a path, whatever the node has now.
    is_too_far = any(not pair.is_enabled for reading in affected for pair in reading.facts.distances)
    return conclude_logs(
        *(examination, affected, cause, evidence, fix, Severity.WARNING if is_partly else None),
        part_of=_CAUSES_OF_DISTANCE if is_too_far else _CAUSES_OF_STAGING,
        devices=ends,
        ranks=whom,
        subjects=tuple(subjects),
    )


def _says_why(reading: JobLogReading) -> bool:
    from probes.nccl.log.verdict import NO_REASON

    return any(reason.text != NO_REASON for reason in reading.verdict.reasons)


def _staged_here(reading: JobLogReading) -> list[RankPath]:
    """Return the ranks of this node whose RDMA channels are without GPUDirect RDMA; a log may have others."""
    numbers = {rank.rank for rank in _staged(reading, over_tcp=False)}
    return [rank for rank in reading.ranks if isinstance(rank.rank, int) and rank.rank in numbers]


def _ranks_sentence(examination: Examination, reading: JobLogReading, ranks: list[RankPath]) -> str:
    """Name the ranks if others of the job have GPUDirect RDMA: "Rank 5 (GPU5, mlx5_6) has channels …"."""
    if not ranks or len(ranks) == len(reading.ranks):
        return ""
    labels = {gpu.id: gpu.label for gpu in examination.topology.gpus}
    named = []
    for rank in ranks:
        ends = [*(labels.get(gpu, gpu) for gpu in rank.gpus), *rank.nics]
        named.append(f"{rank.name} ({', '.join(ends)})" if ends else rank.name)
    verb = "has" if len(ranks) == 1 else "have"
    return capitalized(f"{join_limited(named, 3)} {verb} channels without GPUDirect RDMA. ")


@AREA.warning(
    "job-log-differs",
    "A job's NCCL log contradicts what this node shows",
    NCCL_VARIABLES + "#nccl-debug",
    ok="Jobs' NCCL logs agree with the node's state",
    impact="One of the two is wrong about GPUDirect RDMA, so the verdict may be wrong too.",
)
def job_log_differs(examination: Examination) -> Outcome:
    """Compare the path of each rank by log and by the node's facts; a note if those are no proof."""
    affected, evidence = [], []
    cause, is_proven = "", False
    dmabuf, peermem = usable_paths(examination)
    for reading in readings_of(examination):
        differences = list(_differences(reading))
        if differences:
            names = join_limited((name for name, _, _, _ in differences), 3)
            _, logged, shown, _ = differences[0]
            text = f"For {names}, the log says {logged}, and the node shows {shown}."
            lines = [
                line
                for name, logged, shown, place in differences
                for line in (
                    Evidence(place, f"{name}: {logged}"),
                    Evidence("registered memory and threads", f"{name}: {shown}"),
                )
            ]
            is_proven |= any("likely" not in shown for _, _, shown, _ in differences)
        elif reading.facts.channels.gdr and dmabuf is False and peermem is False:
            text = (
                "The log shows GPUDirect RDMA, but this node has no path for it now. A module was unloaded, "
                "or a setting changed, after the job connected."
            )
            lines = [Evidence(place_of(reading), f"GPUDirect RDMA: {reading.verdict.text}")]
            lines.append(Evidence("this node", "no path to GPU memory is usable"))
        else:
            continue
        affected.append(reading)
        evidence.extend(lines)
        cause = cause or text
    fix = job_plan(
        "Find out which one is right",
        "Compare the rank's pid and the time of the log with the running job",
        "Watch PCIe and NIC rates of the rank in Live",
    )
    severity = None if is_proven else Severity.NOTE
    return conclude_logs(examination, affected, cause, evidence, fix, severity, ("no-gdr-path",))


def _differences(reading: JobLogReading) -> Iterator[tuple[str, str, str, str]]:
    """Yield the ranks for which log and node differ: name, both paths, and the line of the log."""
    logged = {rank.rank: rank for rank in reading.facts.ranks if rank.rank is not None}
    for rank in reading.ranks:
        said = logged.get(rank.rank) if isinstance(rank.rank, int) else None
        if said is None or rank.uses_gdr is None or said.channels.unknown:
            continue
        gdr, staged = said.channels.gdr, said.channels.staged
        if gdr and not staged and not rank.uses_gdr:
            yield rank.name, "GPUDirect RDMA on all channels", rank.path, _line(said.first_gdr, reading)
        elif staged and not gdr and rank.uses_gdr:
            yield rank.name, "no channel with GPUDirect RDMA", rank.path, _line(said.first_staged, reading)


def _line(place: Place | None, reading: JobLogReading) -> str:
    return line_of(() if place is None else (place,), reading)
