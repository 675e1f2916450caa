"""What loads nvidia_peermem at boot, and its predecessor nv_peer_mem, which can block it."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity
from probes.base.plan import Plan, Step, instruction, make_plan, plan_or_none
from probes.base.unknown import Unknown, first_unread, is_there, map_known
from probes.facts.kernel.module_blockers import explain
from probes.facts.kernel.modules import PEERMEM, ModuleFacts
from probes.facts.system.services import ServiceFacts, ServiceState
from probes.plans.load_modules import load_step, persist_peermem
from probes.plans.peermem import replace_nv_peer_mem
from probes.queries.finding import STAGED, Area, CheckEnded, Outcome, end_with, found, need, passed, unknown
from probes.queries.module_need import (
    PEERMEM_REASONS,
    Need,
    absent_peermem,
    is_spare,
    loaded_peermem,
    need_of_peermem,
    needless_loaders,
    peermem_fault,
    required_need,
    spare_fix,
    spare_severity,
)
from probes.queries.modules import (
    LINE_LIMIT,
    MODULES,
    PEERMEM_REFCNT,
    boot_loaders,
    is_present,
    module_of,
    no_peermem_pair,
    state_evidence,
    unread_rules,
)
from probes.snapshot.examination import Examination

AREA = Area("modules", __package__)

_FILE, _LOADER = "the nvidia_peermem file (/lib/modules)", "the state of systemd-modules-load"
_OLD_SERVICE, _NO_PEERMEM = "the nv_peer_mem service", "gdrtop check --only peermem-not-loaded"


@AREA.warning("peermem-not-persistent")
def peermem_not_persistent(examination: Examination) -> Outcome:
    """Check for a modules-load.d entry, a softdep line or a systemd unit that loads it."""
    module = loaded_peermem(examination)
    loaders = boot_loaders(examination, module)
    if loaders:
        return passed(*loaders)
    if is_there(module.on_disk) is False:
        no_file = Evidence("modinfo nvidia_peermem", "no file: a container loaded it")
        return passed(state_evidence(module), no_file)
    modules, services = examination.node.modules, examination.services
    rules = unread_rules(modules) if isinstance(modules, ModuleFacts) else ""
    units = services.unread[:4] if isinstance(services, ServiceFacts) else ()
    if unread := ", ".join(filter(None, (rules, *units))):
        return unknown(f"needs root: {unread}")
    need(first_unread((services,)), "the systemd units", state_evidence(module))
    spare = is_spare(examination)
    return found(
        "nvidia_peermem is loaded now, but no modules-load.d entry, no softdep line and no enabled systemd "
        "unit loads it. Other loaders (Slurm prologs, containers) were not checked.",
        Evidence("grep -rE 'nvidia[-_]peermem' /etc/modules-load.d /usr/lib/modules-load.d", "nothing"),
        Evidence("grep -rE 'softdep.*nvidia[-_]peermem' /etc/modprobe.d /usr/lib/modprobe.d", "nothing"),
        Evidence("grep -rE 'modprobe.*nvidia[-_]peermem' /etc/systemd/system", "nothing"),
        fix=spare_fix(examination, plan_or_none(persist_peermem(examination))),
        severity=Severity.NOTE if spare else None,
        devices=(PEERMEM,),
        impact="None for jobs that use DMA-BUF, which is usable here." if spare else "",
    )


@AREA.note("peermem-unneeded-at-boot")
def peermem_unneeded_at_boot(examination: Examination) -> Outcome:
    """Check for a module that is loaded at boot, replaced by DMA-BUF and not used by any memory region."""
    loaded_peermem(examination)
    required = required_need(examination)
    why = Evidence("gdrtop check --only no-gdr-path", required.value)
    if required is Need.NEEDED:
        return passed(why)
    uses = Evidence(PEERMEM_REFCNT, str(need(examination.reading.peermem.refcnt, PEERMEM_REFCNT)))
    loaders = needless_loaders(examination)
    if not loaders or PEERMEM in examination.older_pids:  # the programs that would use it start after it
        return passed(uses, why)
    use_dmabuf = "Make sure that every job uses DMA-BUF (NCCL 2.13.4 or newer, and other libraries)"
    deletions = (
        f"Delete nvidia-peermem from {loader.source}"
        if loader.value == PEERMEM
        else f"Delete this line from {loader.source}: {loader.value}"
        for loader in loaders
    )
    return found(
        "DMA-BUF is usable and no memory region is registered through nvidia_peermem, but an old "
        "configuration still loads it. NVIDIA deprecates nvidia_peermem in favor of DMA-BUF.",
        *loaders,
        uses,
        fix=make_plan("Stop loading nvidia_peermem at boot", use_dmabuf, *deletions),
    )


def _named_and_absent(examination: Examination) -> tuple[Evidence, ServiceState]:
    """Return the file that names nvidia_peermem for the boot, and the state of the service that reads it.

    The check ends if nothing names the module, if it is loaded, or if it has no file.
    """
    module = absent_peermem(examination)
    if module.persistent is None:
        raise CheckEnded(passed(Evidence("/etc/modules-load.d", "no file mentions nvidia_peermem")))
    need(module.on_disk, _FILE, absent=Evidence("modinfo nvidia_peermem", "no file"))
    named = Evidence(module.persistent, PEERMEM)
    state = map_known(examination.services, lambda facts: facts.services["systemd-modules-load"].state)
    return named, need(state, _LOADER, named)


@AREA.warning("boot-load-race")
def boot_load_race(examination: Examination) -> Outcome:
    """Check for a boot that tried to load the module before DKMS, openibd or the driver were ready."""
    named, state = _named_and_absent(examination)
    service = Evidence("systemctl is-failed systemd-modules-load", state.value)
    if state is not ServiceState.FAILED:
        return passed(named, service)
    unit = "a oneshot unit After=openibd.service with ExecStart=/sbin/modprobe nvidia-peermem"
    steps = (
        Step("Show which module failed and why", ("journalctl", "-b", "-u", "systemd-modules-load")),
        load_step(examination, PEERMEM),
        instruction(f"If the driver or OFED was not ready yet, load nvidia_peermem later: {unit}"),
    )
    return peermem_fault(
        examination,
        "nvidia_peermem could not be loaded at boot: the driver or OFED was not ready, or the module is"
        " blocked.",
        named,
        service,
        fix=Plan("Load nvidia_peermem now, and later at boot", steps),
        part_of=PEERMEM_REASONS,
    )


@AREA.warning("peermem-lost-after-driver-update")
def peermem_lost_after_driver_update(examination: Examination) -> Outcome:
    """Check for a module that modules-load.d names and that is no longer loaded after a successful boot."""
    named, state = _named_and_absent(examination)
    service = Evidence("systemctl is-active systemd-modules-load", state.value)
    blocker = explain(need(examination.node.modules, MODULES), PEERMEM)[:LINE_LIMIT]
    if state is not ServiceState.ACTIVE:
        return passed(named, service)
    if not blocker.startswith("on disk"):
        return passed(named, Evidence(_NO_PEERMEM, blocker))
    return peermem_fault(
        examination,
        "An update or restart of the driver or OFED unloads nvidia_peermem until the next boot. An admin "
        "may also have unloaded it.",
        named,
        service,
        fix=make_plan("Load nvidia_peermem again", load_step(examination, PEERMEM)),
        part_of=PEERMEM_REASONS,
    )


def _replacement(examination: Examination) -> tuple[Plan | None, str]:
    """Return the plan that replaces the old module, and a sentence that says why there is none."""
    answer = replace_nv_peer_mem(examination)
    fix = spare_fix(examination, plan_or_none(answer))
    return fix, f" The old module cannot be replaced: {answer}." if isinstance(answer, str) else ""


def _both(examination: Examination) -> tuple[bool, bool]:
    """Return whether nv_peer_mem and nvidia_peermem are loaded, or end the check."""
    end_with(no_peermem_pair(examination))
    older = need(module_of(examination, "nv_peer_mem"), MODULES)
    return is_present(older), is_present(need(module_of(examination, PEERMEM), MODULES))


@AREA.critical("nv-peer-mem-conflict")
def nv_peer_mem_conflict(examination: Examination) -> Outcome:
    """Check for the predecessor, which owns the client name nv_mem; recent NCCL does not look for it."""
    older, newer = _both(examination)
    if not older or newer:
        return passed(Evidence("/proc/modules", "both are loaded" if older else "nv_peer_mem is not loaded"))
    required, peers = need_of_peermem(examination), examination.reading.peermem.peers
    severity = spare_severity(examination) or Severity.WARNING
    # NCCL looks for memory_peers or for nvidia_peermem, never for /sys/module/nv_peer_mem.
    unseen = required is Need.NEEDED and is_there(peers) is False
    if unseen:
        severity = Severity.CRITICAL
    fix, why_not = _replacement(examination)
    return found(
        "Both modules register under the same name, so the second one fails with `Invalid argument`."
        + (" NCCL does not see the old module on this kernel." if unseen else "")
        + why_not,
        Evidence("/proc/modules", "nv_peer_mem: live"),
        Evidence("/sys/kernel/mm/memory_peers", str(peers) if isinstance(peers, Unknown) else "there"),
        fix=fix,
        severity=severity,
        devices=("nv_peer_mem",),
        impact=STAGED if unseen else "",
    )


@AREA.warning("nv-peer-mem-conflict-twice")
def nv_peer_mem_conflict_twice(examination: Examination) -> Outcome:
    """Check for both names in /proc/modules; the manual allows one of them."""
    if _both(examination) != (True, True):
        return passed(Evidence("/proc/modules", "nv_peer_mem and nvidia_peermem are not both loaded"))
    fix, why_not = _replacement(examination)
    return found(
        f"Both serve the same GPU memory. Which of them registers a region is undefined.{why_not}",
        Evidence("/proc/modules", "nv_peer_mem: live"),
        Evidence("/proc/modules", "nvidia_peermem: live"),
        fix=fix,
        severity=spare_severity(examination),
        devices=("nv_peer_mem", PEERMEM),
    )


@AREA.warning("nv-peer-mem-conflict-service")
def nv_peer_mem_conflict_service(examination: Examination) -> Outcome:
    """Check whether the old module's service is enabled."""
    end_with(no_peermem_pair(examination))
    service = need(examination.services, _OLD_SERVICE).services["nv_peer_mem"]
    absent = Evidence("systemctl cat nv_peer_mem", "no such service")
    unit = Evidence(need(service.path, _OLD_SERVICE, absent=absent), "the old module's service")
    enabled = need(service.enabled, _OLD_SERVICE)
    state = Evidence("systemctl is-enabled nv_peer_mem", "enabled" if enabled else "disabled")
    if not enabled or service.masked:
        return passed(state)
    fix, why_not = _replacement(examination)
    return found(
        f"The service may load the old module first. nvidia_peermem then fails: `Invalid argument`.{why_not}",
        unit,
        state,
        fix=fix,
        severity=spare_severity(examination),
        part_of=("nv-peer-mem-conflict", "nv-peer-mem-conflict-twice"),
    )
