"""Whether nvidia_peermem is there after the next boot, and whether its predecessor is in its way."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.module_facts import (
    LINE_LIMIT,
    PEERMEM,
    is_present,
    module_of,
    no_pair,
    state_seen,
    unread_rules,
)
from probes.checks.module_need import Need, absent_peermem, loaded_peermem, need_of_peermem, peermem_fault
from probes.examination import Examination
from probes.module_obstacles import explain
from probes.modules import ModuleFacts
from probes.plan import Plan, Step, instruction, plan_or_none
from probes.plans.boot import persist_peermem
from probes.plans.loading import load_step
from probes.plans.nv_peer_mem import replace_nv_peer_mem
from probes.services import Service, ServiceState
from probes.unknown import Maybe, Reason, Unknown

AREA = Area("modules")

_README = "https://github.com/Mellanox/nv_peer_memory (README); NVIDIA driver README, nvidia-peermem"


def _rules_unread(examination: Examination) -> str:
    modules = examination.node.modules
    return unread_rules(modules) if isinstance(modules, ModuleFacts) else ""


@AREA.check(
    "peermem-not-persistent",
    Severity.WARNING,
    "nvidia_peermem is loaded now, and nothing loads it after the next boot",
    "modules-load.d(5)",
)
def peermem_not_persistent(examination: Examination) -> Outcome:
    """Whether a file of modules-load.d names it; either spelling counts."""
    module = loaded_peermem(examination)
    if isinstance(module, Outcome):
        return module
    if module.persistent is not None:
        return passed(Evidence(module.persistent, PEERMEM))
    if isinstance(module.on_disk, Unknown) and module.on_disk.reason is Reason.NOT_THERE:
        return passed(
            state_seen(module), Evidence("modinfo nvidia_peermem", "no file: a container loaded it")
        )
    unread = _rules_unread(examination)
    if unread:
        return unsure(f"needs root: {unread} cannot be read")
    need = need_of_peermem(examination)
    return found(
        "no file of modules-load.d names nvidia-peermem: after a reboot GPUDirect RDMA goes by DMA-BUF alone"
        if need is Need.NOT_NEEDED
        else "no file of modules-load.d names nvidia-peermem: it will be missing after the next reboot",
        Evidence("grep -rE 'nvidia[-_]peermem' /etc/modules-load.d /usr/lib/modules-load.d", "nothing"),
        fix=plan_or_none(persist_peermem(examination)),
        severity=Severity.NOTE if need is Need.NOT_NEEDED else Severity.WARNING,
        devices=(PEERMEM,),
    )


def _boot_service(examination: Examination) -> Maybe[ServiceState]:
    services = examination.services
    return services if isinstance(services, Unknown) else services.services["systemd-modules-load"].state


def _named_and_absent(examination: Examination) -> Evidence | Outcome:
    """The file that names nvidia_peermem for the boot, where it is not loaded; or why not."""
    module = absent_peermem(examination)
    if isinstance(module, Outcome):
        return module
    if module.persistent is None:
        return passed(Evidence("/etc/modules-load.d", "nothing names nvidia_peermem"))
    if isinstance(module.on_disk, Unknown):
        if module.on_disk.reason is Reason.NOT_THERE:
            return passed(Evidence("modinfo nvidia_peermem", "no file: see peermem-not-on-disk"))
        return unsure(f"whether there is a file to load is unknown: {module.on_disk}")
    return Evidence(module.persistent, PEERMEM)


@AREA.check(
    "boot-load-race",
    Severity.WARNING,
    "nvidia_peermem was to be loaded at boot, and systemd-modules-load failed",
    "systemd-modules-load.service(8)",
)
def boot_load_race(examination: Examination) -> Outcome:
    """A service that ran before DKMS, openibd or the driver were done."""
    named = _named_and_absent(examination)
    if isinstance(named, Outcome):
        return named
    state = _boot_service(examination)
    if isinstance(state, Unknown):
        return unsure(f"whether systemd-modules-load failed is unknown: {state}", named)
    asked = Evidence("systemctl is-failed systemd-modules-load", state.value)
    if state is not ServiceState.FAILED:
        return passed(named, asked)
    unit = "a oneshot unit After=openibd.service with ExecStart=/sbin/modprobe nvidia-peermem"
    steps = (
        Step("shows which module failed, and why", ("journalctl", "-b", "-u", "systemd-modules-load")),
        load_step(examination, PEERMEM),
        instruction(f"if it came too early (driver or OFED not ready yet), load it later: {unit}"),
    )
    return peermem_fault(
        examination,
        "the boot tried to load nvidia_peermem and could not: too early, or something is in its way",
        named,
        asked,
        fix=Plan("Load it now, and later at boot", steps),
    )


@AREA.check(
    "peermem-lost-after-driver-update",
    Severity.WARNING,
    "nvidia_peermem was loaded at boot, and something has unloaded it since",
    "NVIDIA driver README, nvidia-peermem; systemd-modules-load.service(8)",
)
def peermem_lost_after_driver_update(examination: Examination) -> Outcome:
    """modules-load.d names it, the boot's service succeeded, and it is not there."""
    named = _named_and_absent(examination)
    if isinstance(named, Outcome):
        return named
    state = _boot_service(examination)
    if isinstance(state, Unknown):
        return unsure(f"whether systemd-modules-load succeeded is unknown: {state}", named)
    asked = Evidence("systemctl is-active systemd-modules-load", state.value)
    modules = examination.node.modules
    assert not isinstance(modules, Unknown)
    obstacle = explain(modules, PEERMEM)[:LINE_LIMIT]
    if state is not ServiceState.ACTIVE:
        return passed(named, asked)
    if not obstacle.startswith("on disk"):
        return passed(named, Evidence("gdrtop check --only peermem-not-loaded", obstacle))
    return peermem_fault(
        examination,
        "an update or restart of the driver or of OFED unloads nvidia_peermem, and does not bring it back "
        "before the next boot; or somebody unloaded it",
        named,
        asked,
        fix=Plan("Load nvidia_peermem again", (load_step(examination, PEERMEM),)),
    )


def _retired(examination: Examination) -> tuple[Plan | None, str]:
    """The old module replaced by the new one; else why that cannot be done, to be put behind a cause."""
    answer = replace_nv_peer_mem(examination)
    return plan_or_none(answer), f"; {answer}" if isinstance(answer, str) else ""


def _both(examination: Examination) -> tuple[bool, bool] | Outcome:
    """Whether nv_peer_mem and nvidia_peermem are loaded."""
    aside = no_pair(examination)
    if aside is not None:
        return aside
    older, newer = module_of(examination, "nv_peer_mem"), module_of(examination, PEERMEM)
    for one in (older, newer):
        if isinstance(one, Unknown):
            return unsure(f"which peer-memory modules are loaded is unknown: {one}")
    assert not isinstance(older, Unknown)
    assert not isinstance(newer, Unknown)
    return is_present(older), is_present(newer)


@AREA.check(
    "nv-peer-mem-conflict",
    Severity.CRITICAL,
    "the old nv_peer_mem is loaded, and nvidia_peermem cannot be (`Invalid argument`)",
    _README,
)
def nv_peer_mem_conflict(examination: Examination) -> Outcome:
    """The predecessor, which owns the client name nv_mem; recent NCCL does not look for it."""
    loaded = _both(examination)
    if isinstance(loaded, Outcome):
        return loaded
    older, newer = loaded
    if not older or newer:
        return passed(
            Evidence("/proc/modules", "nv_peer_mem is not loaded" if not older else "both are loaded")
        )
    need, peers = need_of_peermem(examination), examination.reading.peermem.peers
    severity = Severity.NOTE if need in (Need.WANTED, Need.NOT_NEEDED) else Severity.WARNING
    seen = Evidence("/sys/kernel/mm/memory_peers", str(peers) if isinstance(peers, Unknown) else "there")
    # NCCL looks for memory_peers or for nvidia_peermem, never for /sys/module/nv_peer_mem.
    if need is Need.NEEDED and isinstance(peers, Unknown) and peers.reason is Reason.NOT_THERE:
        severity = Severity.CRITICAL
    fix, but = _retired(examination)
    return found(
        "nv_peer_mem and nvidia_peermem register under one name, so the second of them is refused; "
        "the old one gets no more updates"
        + (", and NCCL does not see it on this kernel" if severity is Severity.CRITICAL else "")
        + but,
        Evidence("/proc/modules", "nv_peer_mem: live"),
        seen,
        fix=fix,
        severity=severity,
        devices=("nv_peer_mem",),
    )


@AREA.check(
    "nv-peer-mem-conflict-twice",
    Severity.WARNING,
    "nv_peer_mem and nvidia_peermem are both loaded: two modules for one task",
    _README,
)
def nv_peer_mem_conflict_twice(examination: Examination) -> Outcome:
    """Both names in /proc/modules; the manual allows one of them."""
    loaded = _both(examination)
    if isinstance(loaded, Outcome):
        return loaded
    if loaded != (True, True):
        return passed(Evidence("/proc/modules", "not both of nv_peer_mem and nvidia_peermem"))
    fix, but = _retired(examination)
    return found(
        f"both serve the same memory under one name; which of them gets a region is a matter of luck{but}",
        Evidence("/proc/modules", "nv_peer_mem: live"),
        Evidence("/proc/modules", "nvidia_peermem: live"),
        fix=fix,
        devices=("nv_peer_mem", PEERMEM),
    )


def _old_service(examination: Examination) -> Maybe[Service]:
    services = examination.services
    return services if isinstance(services, Unknown) else services.services["nv_peer_mem"]


@AREA.check(
    "nv-peer-mem-conflict-service",
    Severity.WARNING,
    "the service nv_peer_mem starts at boot, and will keep nvidia_peermem out",
    _README,
)
def nv_peer_mem_conflict_service(examination: Examination) -> Outcome:
    """The old module's service, enabled while nv_peer_mem itself is not loaded or both are."""
    service = _old_service(examination)
    if isinstance(service, Unknown):
        return unsure(f"whether the service nv_peer_mem is there is unknown: {service}")
    if isinstance(service.path, Unknown):
        if service.path.reason is Reason.NOT_THERE:
            return passed(Evidence("systemctl cat nv_peer_mem", "no such service"))
        return unsure(f"whether the service nv_peer_mem is there is unknown: {service.path}")
    if isinstance(service.enabled, Unknown):
        return unsure(f"whether the boot starts nv_peer_mem is unknown: {service.enabled}")
    where = Evidence("systemctl is-enabled nv_peer_mem", "enabled" if service.enabled else "disabled")
    if not service.enabled or service.masked:
        return passed(where)
    need = need_of_peermem(examination)
    fix, but = _retired(examination)
    return found(
        f"at the next boot the old module may be the first, and nvidia_peermem is then refused{but}",
        Evidence(service.path, "the service of the old module"),
        where,
        fix=fix,
        severity=Severity.NOTE if need is Need.NOT_NEEDED else Severity.WARNING,
    )
