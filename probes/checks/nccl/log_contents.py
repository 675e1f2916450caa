"""What NCCL logs of jobs show, compared with the node: networks, plugins, NICs, settings, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.base.evidence import Evidence
from probes.base.text import join_limited, plural
from probes.base.unknown import Unknown
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
    readings_of,
    settings_of,
)
from probes.queries.jobs import FAR_NIC, NCCL_VARIABLES, STAGED, job_plan, jobs_of, usable_paths
from probes.queries.module_need import NCCL_SEES_PEERMEM
from probes.queries.modules import driver_with_plugin
from probes.snapshot.condition import OVER_TCP as JOB_OVER_TCP
from probes.snapshot.condition import STAGED as JOB_STAGED
from probes.snapshot.examination import Examination

if TYPE_CHECKING:
    from probes.nccl.log.facts import JobLogReading, LogFacts, Problem, Setting


AREA = Area("nccl", explains=True)
_PLUGIN = "NCCL_NET_PLUGIN"
_FEW = 3
_NOT_LOADED = ("Could not find", "No plugin found")


@AREA.warning(
    "job-log-gdr-disabled",
    "A job's NCCL log shows GPUDirect RDMA disabled, but this node supports it",
    NCCL_VARIABLES + "#nccl-dmabuf-enable",
    ok="No job's NCCL log shows GPUDirect RDMA disabled on a capable NIC",
    impact=f"No GPUDirect RDMA for this job. {STAGED}",
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
    "A job does not use the NIC nearest to a GPU, according to its NCCL log",
    NCCL_VARIABLES + "#nccl-ib-hca",
    ok="According to the NCCL logs, every job uses the NIC nearest to each GPU",
    impact=FAR_NIC,
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


@AREA.warning(
    "job-log-plugin-missing",
    "A job's NCCL log shows that its network plugin was not found",
    NCCL_VARIABLES + "#nccl-net-plugin",
    ok="No job's NCCL log reports a missing network plugin",
    impact="NCCL uses its own network code. On EFA and Slingshot that is TCP.",
    data_path=True,
    part_of=(JOB_OVER_TCP, "nccl-net-plugin-not-found"),
)
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
    fix = job_plan(
        "Install the network plugin in the job's image",
        "Install the plugin, for example aws-ofi-nccl, in the image",
        "Add its directory to the job's LD_LIBRARY_PATH",
    )
    return conclude_logs(examination, affected, cause, evidence, fix)


def _wanted(examination: Examination, reading: JobLogReading) -> str:
    """Return the plugin that a job names, in its environment or by its log; "" if it names none."""
    of_log = [setting.value for setting in reading.facts.settings if setting.name == _PLUGIN]
    values = [line.value.partition("=")[2] for line in environment_evidence(examination, reading, (_PLUGIN,))]
    return next((value for value in (*values, *of_log) if value.lower() not in ("", "none")), "")


# Settings in the logs, compared with the environment of the processes; errors.

_LEVELS = ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL")


@AREA.note(
    "job-log-other-setting",
    "A job's NCCL log shows a setting that its environment does not have",
    NCCL_VARIABLES,
    ok="The settings in jobs' NCCL logs match their environment",
    impact="Checks of the environment cannot see what the job really uses.",
    part_of=(JOB_STAGED, JOB_OVER_TCP),
)
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
    fix = job_plan("Find what sets the variable", "Search the job's code and its launcher for the variable")
    return conclude_logs(examination, affected, cause, evidence, fix)


def _is_same(setting: Setting, value: str) -> bool:
    """Say whether NCCL reports a value of the environment like this."""
    if setting.name in _LEVELS:
        level, other = parse_level(value), parse_level(setting.value)
        return level is not None and other is not None and level.word == other.word
    if setting.value.lstrip("-").isdecimal():
        return parse_number(value) == int(setting.value)
    return setting.value.rstrip(".") == value.strip().rstrip(".")[:200]


@AREA.warning(
    "job-log-errors",
    "A job's NCCL log has errors",
    "NCCL troubleshooting, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ok="The jobs' NCCL logs show no errors",
    impact="The job hangs or will soon end.",
)
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
    return conclude_logs(examination, affected, cause, evidence, fix)
