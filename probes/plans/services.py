"""Restart the services of GPUs and RDMA, and lift their memlock limits."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Plan, Step, make_plan
from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.modules import PEERMEM, ModuleState
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.system.kubernetes import STORAGE
from probes.facts.system.services import ServiceState
from probes.plans.common import reload_units_step, service_step
from probes.plans.load_modules import blocker_of, load_step
from probes.plans.peermem import unload_step
from probes.queries.modules import is_present, module_of
from probes.queries.nvlink_fabric import nvswitches_of
from probes.snapshot.examination import Examination

_OPENIBD, _MANAGER, _DAEMON = "openibd", "nvidia-fabricmanager", "nvidia-persistenced"
_RDMA = ("ib_core", "ib_uverbs", "rdma_cm", *CONNECTX.modules)
# OFED's modules, which openibd unloads.
_OFED_OWN = ("ib_", "rdma_", "iw_", "mlx4_", "mlx5_")
_OFED_EXCEPT = (*STORAGE, "ib_srpt")
_ALL_RDMA = "every program that uses RDMA, and every connection over these NICs, including SSH"
# NVIDIA Fabric Manager user guide, ABORT_CUDA_JOBS_ON_FM_EXIT: the default is 1; no effect from H100 on.
_CUDA = "every CUDA job: on pre-H100 GPUs, jobs abort, and none can start until Fabric Manager is back"
# A restart ends what these have started: docs.docker.com/engine/daemon/live-restore; pbs_mom(8), -p.
_RESTARTS = {
    "docker.service": (
        "Restart Docker, which stops its containers unless live-restore is on (docker info shows it)",
        "Docker containers, which stop unless live-restore is on",
    ),
    "pbs_mom.service": (
        "Restart pbs_mom, which may end its jobs unless it runs with -p",
        "pbs_mom's jobs, which may end",
    ),
}


def restart_openibd(examination: Examination) -> Plan | str:
    """Restart OFED's stack, after unloading nvidia_peermem, which uses it."""
    if why_not := _why_no_restart(examination, _OPENIBD):
        return why_not
    modules, peermem = examination.node.modules, module_of(examination, PEERMEM)
    if isinstance(modules, Unknown) or isinstance(peermem, Unknown):
        return f"cannot tell which modules use the RDMA stack: {peermem}"
    if modules.loading_disabled:
        return "kernel.modules_disabled is 1: no module can be unloaded until a reboot"
    older = modules.modules["nv_peer_mem"]
    users = {user for name in _RDMA for user in modules.modules[name].used_by}
    foreign = sorted(
        user
        for user in users - {*_RDMA, PEERMEM, older.name}
        if not user.startswith(_OFED_OWN) or user in _OFED_EXCEPT
    )
    if foreign:
        return f"openibd cannot restart while {', '.join(foreign)} use the RDMA stack; stop their users first"
    before: list[Step] = []
    after: list[Step] = []
    if is_present(peermem):
        blocker = blocker_of(examination, PEERMEM)
        if blocker is not None:
            return f"nvidia_peermem must be unloaded first and could not be loaded again: {blocker}"
        before.append(unload_step(examination))
        after.append(load_step(examination, PEERMEM))
    if older.state is ModuleState.LIVE:
        load, unload = ("modprobe", older.name), ("rmmod", older.name)
        before.append(Step("Unload nv_peer_mem, which also uses ib_core", unload, undo=load))
        after.append(Step("Load nv_peer_mem again", load, undo=unload))
    why = "Unload OFED's modules and load the ones on disk (fails while other modules use them)"
    refcnt = examination.reading.peermem.refcnt if before else 0
    regions = (
        ""
        if isinstance(refcnt, Unknown) or refcnt <= 0
        else f", and jobs that registered GPU memory (refcnt {refcnt})"
    )
    return make_plan(
        "Restart openibd",
        *before,
        service_step(why, "restart", _OPENIBD),
        *after,
        disturbs=f"{_ALL_RDMA}{regions}",
        note="Rebuild the NVIDIA driver if the OFED build has changed.",
    )


def restart_fabric_manager(examination: Examination) -> Plan | str:
    """Restart Fabric Manager on a node with NVSwitches."""
    switches = nvswitches_of(examination)
    if isinstance(switches, Unknown):
        return f"cannot tell whether this node has NVSwitches: {switches}"
    if switches is None:
        return "this node has no NVSwitch to configure"
    if why_not := _why_no_restart(examination, _MANAGER):
        return why_not
    step = service_step("Configure the NVSwitches again", "restart", _MANAGER)
    return make_plan("Restart Fabric Manager", step, disturbs=_CUDA)


def restart_persistence_daemon(examination: Examination) -> Plan | str:
    """Restart nvidia-persistenced."""
    if why_not := _why_no_restart(examination, _DAEMON):
        return why_not
    return make_plan(
        "Restart nvidia-persistenced",
        service_step("Restart the daemon, which opens the GPUs again", "restart", _DAEMON),
        note="GPUs that are idle during the restart lose their settings (clocks, power limits).",
    )


def lift_memlock(units: Sequence[str]) -> Plan:
    """Remove the locked-memory limit of these services, and restart each."""
    text = "Write “[Service]” and “LimitMEMLOCK=infinity” to /etc/systemd/system/{}.d/memlock.conf."
    drop_ins = (text.format(unit) for unit in units)
    usual = [unit for unit in units if unit not in _RESTARTS]
    restarts = []
    if usual:
        why = "Apply the limit to new jobs (running jobs keep theirs)"
        restarts.append(service_step(why, "restart", *usual))
    others = [unit for unit in units if unit in _RESTARTS]
    restarts += [service_step(_RESTARTS[unit][0], "restart", unit) for unit in others]
    disturbs = "; ".join(_RESTARTS[unit][1] for unit in others)
    title = "Remove the memlock limit of the services"
    return make_plan(title, *drop_ins, reload_units_step(), *restarts, disturbs=disturbs)


def _why_no_restart(examination: Examination, name: str) -> str:
    """Return why systemd cannot restart a service, or ""."""
    services = examination.services
    service = services if isinstance(services, Unknown) else services.services[name]
    if isinstance(service, Unknown):
        return f"cannot tell whether {name} is installed: {service}"
    if isinstance(service.path, Unknown):
        if service.path.reason is not Reason.NOT_THERE:
            return f"cannot tell whether {name} is installed: {service.path}"
        if service.state is ServiceState.ACTIVE:
            return f"{name} runs without a systemd unit; restart its container instead"
        return f"{name} is not installed"
    return f"{name} is masked" if service.masked else ""
