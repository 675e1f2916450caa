"""What NCCL logs of jobs show, compared with the node: networks, plugins, NICs, settings, errors, paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.base.evidence import Evidence, Severity
from probes.base.text import capitalized, join_limited, plural
from probes.base.unknown import Unknown, known, map_known
from probes.checks.nccl.library import DMABUF_SETTING, versions_of
from probes.checks.nccl.network import HCA, nearest_left_out
from probes.facts.kernel.modules import PEERMEM
from probes.nccl.settings import parse_level, parse_number
from probes.queries.finding import Area, Outcome, unknown
from probes.queries.job_logs import (
    conclude_logs,
    environment_evidence,
    environment_is_read,
    environment_sentence,
    line_of,
    names_of_ranks,
    place_of,
    readings_of,
    settings_of,
)
from probes.queries.jobs import STAGING_SETTINGS, TCP_SETTINGS, job_plan, jobs_of, usable_paths
from probes.queries.kernel_log import P2P_REFUSALS
from probes.queries.module_need import NCCL_SEES_PEERMEM
from probes.queries.modules import PLUGIN, driver_with_plugin, plugin_only_driver
from probes.queries.ports import UNUSABLE_KEYS
from probes.snapshot.condition import OVER_TCP as JOB_OVER_TCP
from probes.snapshot.condition import STAGED as JOB_STAGED
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State as NodeState

if TYPE_CHECKING:
    from probes.nccl.log.facts import JobLogReading, LogFacts, Place, Problem, Rank, RankPath, Setting

AREA = Area("nccl", __package__, explains=True)
_PLUGIN = "NCCL_NET_PLUGIN"
_FEW = 3
_NOT_LOADED = ("Could not find", "No plugin found")


@AREA.warning(
    "job-log-gdr-disabled",
    data_path=True,
    part_of=(
        *(JOB_STAGED, "nccl-dmabuf-disabled", "nccl-too-old-for-dmabuf", "memory-peers-missing-old-nccl"),
    ),
)
def job_log_gdr_disabled(examination: Examination) -> Outcome:
    """Find `GPU Direct RDMA Disabled for HCA` on a node with a usable path."""
    dmabuf, peermem = usable_paths(examination)
    usable = [name for name, use in (("DMA-BUF", dmabuf), ("nvidia-peermem", peermem)) if use is True]
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    devices: list[str] = []
    steps: dict[str, None] = {}
    cause = title = ""
    for reading in readings_of(examination):
        off = [nic for nic in reading.facts.capabilities if not nic.is_enabled and nic.network == "IB"]
        if not off or not usable or reading.facts.channels.gdr:
            continue
        affected.append(reading)
        devices.extend(nic.name for nic in off)
        names = join_limited((nic.name for nic in off), _FEW)
        evidence.append(Evidence(str(off[0].seen.first), f"GPU Direct RDMA Disabled for {names}"))
        evidence.append(Evidence("this node", f"{' and '.join(usable)} can be used"))
        if dmabuf is False and not _is_too_old(examination, reading):
            # Whether gdrtop saw nvidia_peermem being loaded while all ranks of the job ran already.
            older = examination.older_pids.get(PEERMEM, frozenset())
            is_seen = bool(reading.ranks) and older.issuperset(rank.pid for rank in reading.ranks)
            likely = "" if is_seen else "likely "
            title = title or f"A job {likely}started before nvidia_peermem was loaded"
            cause = cause or (
                "NCCL looks for nvidia_peermem when a job starts, and found none. It is loaded now, so "
                f"the job {likely}started before. DMA-BUF cannot be used on this node. Restart the job."
            )
            continue
        evidence.extend(environment_evidence(examination, reading, (DMABUF_SETTING,)))
        environment = environment_sentence(examination, reading, (DMABUF_SETTING,), "disables DMA-BUF")
        line = ' and has no line "DMA-BUF is available"' if reading.facts.dmabuf is None else ""
        cause = cause or (
            f"This node supports {' and '.join(usable)}, but the job's log says GPUDirect RDMA is "
            f"disabled for {names}{line}. {environment}"
        )
        steps |= dict.fromkeys(_use_dmabuf(examination, reading))
    fix = (
        job_plan("Let NCCL use GPUDirect RDMA in this job", *steps) if steps else job_plan("Restart the job")
    )
    ends = tuple(dict.fromkeys(devices))
    return conclude_logs(examination, affected, cause, evidence, fix, devices=ends, title=title)


def _is_too_old(examination: Examination, reading: JobLogReading) -> bool:
    """Return whether the job's NCCL cannot see nvidia_peermem: memory-peers-missing-old-nccl."""
    pids = {rank.pid for rank in reading.ranks}
    ranks = (process for process in jobs_of(examination).processes if process.pid in pids)
    versions = (version for process in ranks for _, version in versions_of(process, "libnccl"))
    is_old = any(version < NCCL_SEES_PEERMEM for version in versions)
    return is_old and isinstance(examination.reading.peermem.peers, Unknown)


def _use_dmabuf(examination: Examination, reading: JobLogReading) -> Iterator[str]:
    """Yield what keeps a job from DMA-BUF, which this node can use."""
    if environment_evidence(examination, reading, (DMABUF_SETTING,)):
        yield f"Remove {DMABUF_SETTING} from the job and its code"
        return
    if not environment_is_read(examination, reading):
        yield f"Look for {DMABUF_SETTING}=0 in the job and its code: only root can read its environment"
    yield "Use versions of NCCL, CUDA and rdma-core that support DMA-BUF in the job's image or environment"


@AREA.warning(
    "job-log-other-nics",
    data_path=True,
    part_of=(
        *(JOB_STAGED, "nccl-ib-hca-leaves-out-nearest", "nccl-ib-hca-port-down"),
        *("nccl-ib-hca-entry-without-device", "job-log-other-setting"),
    ),
)
def job_log_other_nics(examination: Examination) -> Outcome:
    """Find GPUs of a job with no nearest NIC in `NET/IB : Using`, though its port is ACTIVE."""
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    steps: dict[str, None] = {}
    cause = ""
    for reading in readings_of(examination):
        used = nic_names(reading.facts)
        gpus = {gpu for rank in reading.ranks for gpu in rank.gpus}
        left_out = nearest_left_out(examination, used, gpus)
        if not left_out:
            continue
        affected.append(reading)
        listed = join_limited(sorted(used), _FEW)
        missing = join_limited((f"{nic} (nearest to {gpu})" for gpu, nic in left_out.items()), 3)
        evidence.append(Evidence(str(reading.facts.nics[0].first), f"NCCL uses {listed}"))
        evidence.extend(Evidence("topology", f"{nic} is nearest to {gpu}") for gpu, nic in left_out.items())
        evidence.extend(environment_evidence(examination, reading, (HCA,)))
        environment = environment_sentence(examination, reading, (HCA,), "excludes NICs")
        cause = cause or f"The log says NCCL uses {listed}, without {missing}. {environment}"
        names = join_limited(sorted(set(left_out.values())), _FEW)
        if environment_evidence(examination, reading, (HCA,)):
            steps[f"Let {HCA} select {names} in the job and its code, or unset it"] = None
        elif not environment_is_read(examination, reading):
            steps[f"Look for {HCA} in the job and its code: only root can read its environment"] = None
    fix = job_plan("Let NCCL use the nearest NICs", *steps)
    return conclude_logs(examination, affected, cause, evidence, fix)


def nic_names(facts: LogFacts) -> set[str]:
    """Return the devices of `[0] mlx5_0:1/RoCE`; NCCL joins the names of merged devices by "+".

    A NIC whose Data Direct interface NCCL uses is `mlx5_0_dma` (net_ib/init.cc).
    """
    names: set[str] = set()
    for mention in facts.nics:
        device = mention.text.partition(" ")[2].partition(":")[0]
        names.update(part.removesuffix("_dma") for part in device.split("+") if part)
    return names


@AREA.warning("job-log-plugin-missing", data_path=True, part_of=(JOB_OVER_TCP, "nccl-net-plugin-not-found"))
def job_log_plugin_missing(examination: Examination) -> Outcome:
    """Find plugins that NCCL did not find, where the job names one or the NICs need one.

    NCCL also writes such a line for its default name libnccl-net.so, which most jobs do not have.
    """
    _, needed = driver_with_plugin(examination)
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    cause = ""
    for reading in readings_of(examination):
        lines = [line for line in reading.facts.plugins if any(text in line.text for text in _NOT_LOADED)]
        wanted = _wanted(examination, reading)
        networks = [network.text for network in reading.facts.networks]
        uses_plugin = any(name not in ("IB", "Socket") for name in networks)
        if not lines or not (wanted or needed) or uses_plugin:
            continue
        affected.append(reading)
        evidence.extend(Evidence(str(line.first), line.text) for line in lines[:3])
        evidence.extend(environment_evidence(examination, reading, (_PLUGIN,)))
        network = join_limited(networks) or "an unknown network"
        why = f"The environment says {_PLUGIN}={wanted}." if wanted else f"{needed} NICs need a plugin."
        cause = cause or f"{why} The job's log says no plugin was found, and NCCL uses {network}."
    return conclude_logs(examination, affected, cause, evidence)


def _wanted(examination: Examination, reading: JobLogReading) -> str:
    """Return the plugin that a job names, in its environment or by its log; "" if it names none."""
    of_log = [setting.value for setting in reading.facts.settings if setting.name == _PLUGIN]
    values = [line.value.partition("=")[2] for line in environment_evidence(examination, reading, (_PLUGIN,))]
    return next((value for value in (*values, *of_log) if value.lower() not in ("", "none")), "")


# Settings in the logs, compared with the environment of the processes; errors.

_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")


@AREA.note("job-log-other-setting", part_of=(JOB_STAGED, JOB_OVER_TCP))
def job_log_other_setting(examination: Examination) -> Outcome:
    """Compare `NCCL_… set by environment to …` with environment and nccl.conf.

    /proc/PID/environ has the environment at the start of the program; what the program sets later is only
    in the log.
    """
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    cause = unread = ""
    for reading in readings_of(examination):
        if not environment_is_read(examination, reading):
            unread = jobs_of(examination).not_known or f"needs the environment of each rank of {reading.name}"
            continue
        values = [settings.values for settings in settings_of(examination, reading)]
        other = []
        for setting in reading.facts.settings:
            given = list(dict.fromkeys(value[setting.name][0] for value in values if setting.name in value))
            if setting.meaning and not any(_is_same(setting, value) for value in given):
                other.append((setting, join_limited(given) or "not set"))
        if not other:
            continue
        affected.append(reading)
        for setting, words in other:
            meaning = f" ({setting.meaning})" if setting.meaning else ""
            evidence.append(Evidence(str(setting.seen.first), f"{setting.name}={setting.value}{meaning}"))
            evidence.append(Evidence("environment", f"{setting.name}: {words}"))
        first, words = other[0]
        said = f"{first.name} is not set" if words == "not set" else f"{first.name}={words}"
        cause = cause or (
            f"The environment says {said}, but the job's log says {first.name}={first.value}. The program "
            "or a library sets it after the program has started."
        )
    if unread and not affected:
        return unknown(unread)
    return conclude_logs(examination, affected, cause, evidence)


def _is_same(setting: Setting, value: str) -> bool:
    """Say whether NCCL reports a value of the environment like this."""
    if setting.name in _LEVELS:
        level, other = parse_level(value), parse_level(setting.value)
        return level is not None and other is not None and level.word == other.word
    if setting.value.lstrip("-").isdecimal():
        return parse_number(value) == int(setting.value)
    return setting.value.rstrip(".") == value.strip().rstrip(".")[:200]


_TIMEOUT = "completion-12"  # what a partition without the peer looks like: no message names the key


@AREA.warning("job-log-errors")
def job_log_errors(examination: Examination) -> Outcome:
    """Find errors that stop a job, in the beginning and the end of its logs."""
    affected: list[JobLogReading] = []
    evidence: list[Evidence] = []
    first: Problem | None = None
    for reading in readings_of(examination):
        # What follows from an error shows that there was one, if the log has no line of it.
        severities = [problem.severity for problem in reading.facts.problems]
        serious = "critical" if "critical" in severities else "follows"
        problems = [problem for problem in reading.facts.problems if problem.severity == serious]
        if not problems:
            continue
        affected.append(reading)
        first = first or problems[0]
        for problem in problems:
            ranks = f", {', '.join(problem.ranks[:3])}" if problem.ranks else ""
            lines = f" ({plural(problem.seen.count, 'line')}{ranks})"
            evidence.append(Evidence(str(problem.seen.first), f"{problem.title}{lines}"))
    cause = "" if first is None else f"{first.title}. {first.cause}"
    fix = None if first is None else job_plan("Fix the first error", first.fix.rstrip("."))
    part_of = UNUSABLE_KEYS if first is not None and first.kind == _TIMEOUT else ()
    return conclude_logs(examination, affected, cause, evidence, fix, part_of=part_of)


# The path of a job's channels by its log.

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


@AREA.critical("job-log-staged", data_path=True)
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


@AREA.warning("job-log-differs")
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
    severity, part_of = None if is_proven else Severity.NOTE, ("no-gdr-path",)
    return conclude_logs(examination, affected, cause, evidence, severity=severity, part_of=part_of)


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
