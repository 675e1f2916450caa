"""Checks of the NVLink fabric: the GPUs' registration and health, and what manages the NVSwitches."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.plan import FileChange, Plan, Step, instruction, make_plan
from probes.base.text import plural
from probes.base.unknown import Unknown, first_unread, is_there, known, map_known
from probes.checks.gpu.devices import bdfs_of, gpus_of, names_of, need_gpus
from probes.checks.gpu.nvlink import NEEDS_HOST, need_switches, service_of
from probes.facts.gpu.gpus import (
    COMPLETED,
    NOT_SUPPORTED,
    NVLSM,
    UMAD_MODULE,
    UNFINISHED,
    FabricServiceFacts,
    Gpu,
)
from probes.facts.jobs.processes import Process
from probes.facts.system.platform import in_container
from probes.facts.system.services import ServiceState
from probes.plans.common import modprobe_step, service_step
from probes.plans.packages import FABRIC_MANAGER, nvlsm_steps
from probes.queries.finding import Area, Outcome, Scope, end_with, found, need, passed, unknown
from probes.queries.jobs import conclude, jobs_of
from probes.queries.nvlink_fabric import nvswitches_of
from probes.snapshot.examination import Examination

AREA = Area("gpu", __package__)
_WORDS = {"not started": "has not started", "in progress": "is in progress", "failed": "failed"}
_SERVICES = "NVLSM and ib_umad"
_MANAGER_COMM = "nv-fabricmanager"[:15]  # as the kernel truncates it
_CLOCK_SECONDS = 5.0  # by which the times of two processes that start at boot may be off
_AT_BOOT = "/etc/modules-load.d/gdrtop-ib_umad.conf"
_RESTART = service_step("Start Fabric Manager, whose unit also starts NVLSM", "restart", FABRIC_MANAGER)
_RUNS_ON = (
    "Nothing fails yet, because the GPUs are registered. CUDA fails with error 802 after the next restart of"
    " Fabric Manager, the driver or the node."
)


def _fabric_evidence(gpu: Gpu) -> Evidence:
    fabric = gpu.fabric
    words = [known(fabric.state, "?")]
    words += [] if isinstance(fabric.clique, Unknown) else [f"clique {fabric.clique}"]
    words += [] if isinstance(fabric.cluster, Unknown) else [f"cluster {fabric.cluster}"]
    return Evidence(f"nvidia-smi -q -i {gpu.index} (Fabric)", ", ".join(words))


def _in_fabric(examination: Examination) -> list[Gpu]:
    """Return the GPUs that take part in an NVLink fabric; without any, end the check."""
    gpus = need_gpus(examination)
    unknowns = [gpu.fabric.state for gpu in gpus if isinstance(gpu.fabric.state, Unknown)]
    taking_part = [gpu for gpu in gpus if known(gpu.fabric.state, NOT_SUPPORTED) != NOT_SUPPORTED]
    if not taking_part:
        need(next(iter(unknowns), None), "NVML")
        end_with(passed(Evidence("NVML", "no GPU is part of an NVLink fabric")))
    return taking_part


@AREA.critical(
    "gpu-fabric-not-registered",
    part_of=(
        *("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"),
        *("nvlsm-down", "nvlsm-missing", "ib-umad-missing"),
    ),
)
def gpu_fabric_not_registered(examination: Examination) -> Outcome:
    """Check that registration is completed; until then every CUDA program fails."""
    gpus = _in_fabric(examination)
    waiting = [gpu for gpu in gpus if known(gpu.fabric.state, "") in UNFINISHED]
    if not waiting:
        return passed(*first_n(map(_fabric_evidence, gpus)))
    here = nvswitches_of(examination)
    if isinstance(here, Unknown) or here is None:
        cause = "The NVSwitches are configured elsewhere: in the rack's switch trays, or on this VM's host."
        look = "Contact whoever runs this rack's NVLink switches or this VM's host"
    else:
        runs = service_of(examination, FABRIC_MANAGER).state is ServiceState.ACTIVE
        done = "has not finished setting them up" if runs else "sets them up and is not running"
        cause = f"{here.text} Fabric Manager {done}."
        look = "Read /var/log/fabricmanager.log" + (" and /var/log/nvlsm.log" if here.needs_nvlsm else "")
    states = sorted({_WORDS[known(gpu.fabric.state, "")] for gpu in waiting})
    return found(
        f"The registration of {names_of(waiting)} {' or '.join(states)}. {cause}",
        *first_n(map(_fabric_evidence, waiting)),
        fix=make_plan(
            "Find out what keeps the GPUs from registering",
            Step("Show the state of each GPU", ("nvidia-smi", "-q"), needs_root=False),
            look,
        ),
        devices=bdfs_of(waiting),
        takes=bdfs_of(waiting),
    )


@AREA.warning(
    "gpu-fabric-unhealthy", part_of=("gpu-fabric-not-registered", "xid-nvlink-error", "nvlink-down")
)
def gpu_fabric_unhealthy(examination: Examination) -> Outcome:
    """Report the conditions in the health mask of registered GPUs."""
    gpus = _in_fabric(examination)
    sick = [(gpu, known(gpu.fabric.problems, ())) for gpu in gpus if known(gpu.fabric.problems, ())]
    if not sick:
        known_gpus = [gpu for gpu in gpus if not isinstance(gpu.fabric.problems, Unknown)]
        if not known_gpus:
            need(gpus[0].fabric.problems, "NVML", absent=Evidence("NVML", "no fabric health reported"))
        return passed(*first_n(map(_fabric_evidence, known_gpus)))
    return found(
        f"GPU{sick[0][0].index}: {', '.join(sick[0][1])}.",
        *first_n(Evidence(f"nvidia-smi -q -i {gpu.index} (Fabric)", "; ".join(bad)) for gpu, bad in sick),
        devices=bdfs_of(gpu for gpu, _ in sick),
    )


@AREA.warning("gpu-fabric-differs")
def gpu_fabric_differs(examination: Examination) -> Outcome:
    """Compare cluster and clique of the registered GPUs of this node."""
    gpus = [gpu for gpu in _in_fabric(examination) if not isinstance(gpu.fabric.clique, Unknown)]
    places = {(known(gpu.fabric.cluster, ""), known(gpu.fabric.clique, 0)) for gpu in gpus}
    if len(places) < 2:
        return passed(*first_n(map(_fabric_evidence, gpus)))
    return found(
        f"The {plural(len(gpus), 'GPU')} are in {len(places)} cliques.",
        *first_n(map(_fabric_evidence, gpus)),
        devices=bdfs_of(gpus),
    )


def _nvlsm_facts(examination: Examination) -> FabricServiceFacts:
    """Return the facts of NVLSM where NVSwitches need it; elsewhere end the check."""
    if not need_switches(examination).needs_nvlsm:
        end_with(passed(Evidence("/sys/bus/pci/devices", "these NVSwitches do not need NVLSM")))
    return need(examination.fabric_services, _SERVICES)


@AREA.critical(
    "nvlsm-down",
    part_of=("fabric-manager-down", "fabric-manager-down-absent", "ib-umad-missing", "nvlsm-missing"),
    scope=Scope.NODE,
)
def nvlsm_down(examination: Examination) -> Outcome:
    """Check that NVLSM runs where NVSwitches are managed through a ConnectX."""
    facts = _nvlsm_facts(examination)
    if isinstance(facts.nvlsm_runs, Unknown) and in_container(examination.node.platform):
        return unknown(NEEDS_HOST)
    if need(facts.nvlsm_runs, "the host's processes"):
        return passed(Evidence("/proc/*/comm", "nvlsm is running"))
    return _missing(
        examination,
        f"{need_switches(examination).text} NVLSM programs their routes. Fabric Manager's unit starts NVLSM.",
        (Evidence("/proc/*/comm", "no nvlsm process"),),
        "Start NVLSM",
        _RESTART,
        instruction("If it fails, read /var/log/nvlsm.log and /var/log/fabricmanager.log"),
    )


def _missing(
    examination: Examination, cause: str, evidence: tuple[Evidence, ...], title: str, *steps: Step
) -> Outcome:
    """Return what is wrong with a part that Fabric Manager needs, with the steps that provide it."""
    are_registered = {known(gpu.fabric.state, "") for gpu in known(gpus_of(examination), ())} == {COMPLETED}
    unit = map_known(examination.services, lambda facts: facts.services[FABRIC_MANAGER].path)
    if is_there(unit) is False:  # the finding about Fabric Manager installs and starts it
        steps = tuple(step for step in steps if step is not _RESTART)
    return found(
        cause,
        *evidence,
        fix=Plan(title, steps, disturbs="CUDA programs that start before Fabric Manager is back"),
        devices=need_switches(examination).devices,
        severity=Severity.WARNING if are_registered else None,
        impact=_RUNS_ON if are_registered else "",
    )


@AREA.critical("nvlsm-missing", part_of=("fabric-manager-down-absent",), scope=Scope.NODE)
def nvlsm_missing(examination: Examination) -> Outcome:
    """Check that the program of package nvlsm is there, unless it runs from a driver container."""
    facts = _nvlsm_facts(examination)
    if facts.nvlsm_runs is True:
        return passed(Evidence("/proc/*/comm", "nvlsm is running"))
    if not isinstance(facts.nvlsm_program, Unknown):
        return passed(Evidence(facts.nvlsm_program, "installed"))
    need(first_unread((facts.nvlsm_program,)), "the installed programs")
    if in_container(examination.node.platform):
        return unknown(NEEDS_HOST)
    return _missing(
        examination,
        f"{need_switches(examination).text} Fabric Manager needs NVLSM to configure them, and does not start"
        " without it.",
        (Evidence(NVLSM, "not found"),),
        "Install NVLSM",
        *nvlsm_steps(examination),
        _RESTART,
    )


@AREA.critical("ib-umad-missing", scope=Scope.NODE)
def ib_umad_missing(examination: Examination) -> Outcome:
    """Check that ib_umad is loaded and has created its files: NVLSM reaches the NVSwitches through them."""
    loaded = need(_nvlsm_facts(examination).umad_loaded, "the loaded modules")
    files = map_known(examination.device_nodes, lambda nodes: nodes.rdma)
    listed = [file for file in known(files, ()) if "/umad" in file.path]
    if loaded and (listed or isinstance(files, Unknown) or in_container(examination.node.platform)):
        files_there = first_n(Evidence(file.path, "found") for file in listed)
        return passed(Evidence(UMAD_MODULE, "loaded"), *files_there)
    return _missing(
        examination,
        "ib_umad is loaded, but /dev/infiniband has no umad file. NVLSM needs one to reach the NVSwitches."
        if loaded
        else f"{need_switches(examination).text} Fabric Manager and NVLSM need ib_umad to reach them.",
        (
            Evidence(UMAD_MODULE, "loaded" if loaded else "not loaded"),
            Evidence("/dev/infiniband", plural(len(listed), "umad file")),
        ),
        "Load ib_umad",
        modprobe_step("Load ib_umad", "ib_umad"),
        Step("Load ib_umad at boot", file=FileChange(_AT_BOOT, "ib_umad\n")),
        _RESTART,
    )


@AREA.warning("fabric-manager-restarted-under-jobs")
def fabric_manager_restarted_under_jobs(examination: Examination) -> Outcome:
    """Find jobs that are older than this node's Fabric Manager; the GPUs need a reset between two starts."""
    need_switches(examination)
    jobs = jobs_of(examination)
    facts = need(examination.processes, "the processes")
    managers = [process for process in facts.processes if process.comm == _MANAGER_COMM]
    started = [start for process in managers if (start := _started_at(process)) is not None]
    older = [
        process
        for process in jobs.processes
        if started and (start := _started_at(process)) is not None and start + _CLOCK_SECONDS < max(started)
    ]
    return conclude(
        jobs,
        [Evidence(f"/proc/{process.pid}/stat", "started before nv-fabricmanager") for process in older],
        "Fabric Manager configures the NVSwitches again when it starts, but the GPUs keep what they had.",
    )


def _started_at(process: Process) -> float | None:
    return known(map_known(process.usage, lambda usage: usage.started_at), None)
