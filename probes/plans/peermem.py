"""Unload and reload nvidia_peermem, and replace its predecessor nv_peer_mem from Mellanox.

Names of nv_peer_mem's module, service and packages: Mellanox/nv_peer_memory, debian/control and
nvidia_peer_memory.spec. Its init script unloads the module on stop, and accepts that it is not loaded.
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import NothingToDo, Plan, Step, make_plan, sentences
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import PEERMEM, KernelModule, ModuleState
from probes.facts.system.services import ServiceState
from probes.plans.common import service_step
from probes.plans.load_modules import blocker_of, load_step, peermem_options
from probes.queries.module_need import Need, need_of_peermem, running_jobs
from probes.queries.modules import file_of, is_present, module_of
from probes.snapshot.examination import Examination


def unload_peermem(examination: Examination) -> Plan | str:
    """Unload nvidia_peermem alone."""
    module = module_of(examination, PEERMEM)
    if not isinstance(module, Unknown) and module.state is ModuleState.NOT_LOADED:
        return NothingToDo(_absence(module))
    refcnt = _removable(examination)
    if isinstance(refcnt, str):
        return refcnt
    blocker = blocker_of(examination, PEERMEM)
    staged = "new programs will copy through host memory, because DMA-BUF cannot be used"
    notes = (
        staged if need_of_peermem(examination) is Need.NEEDED else "",
        f"it cannot be loaded again afterward: {blocker}" if blocker else "",
    )
    return make_plan(
        "Unload nvidia_peermem",
        unload_step(examination),
        disturbs=_registered(refcnt),
        note=sentences(*notes),
    )


def reload_peermem(examination: Examination) -> Plan | str:
    """Unload nvidia_peermem and load the one on disk."""
    refcnt = _removable(examination)
    if isinstance(refcnt, str):
        return refcnt
    blocker = blocker_of(examination, PEERMEM)
    if blocker is not None:
        return f"nvidia_peermem could be unloaded but not loaded again: {blocker}"
    steps = (unload_step(examination), load_step(examination, PEERMEM))
    note = sentences(_difference(examination), running_jobs(examination))
    return Plan("Reload nvidia_peermem", steps, disturbs=_registered(refcnt), note=note)


def unload_step(examination: Examination) -> Step:
    """Return the step that unloads nvidia_peermem with rmmod, which leaves its dependencies loaded."""
    reload = ("modprobe", PEERMEM, *peermem_options(examination))
    return Step(
        "Unload only nvidia_peermem (modprobe -r would also unload modules that nothing else uses)",
        ("rmmod", PEERMEM),
        undo=reload if blocker_of(examination, PEERMEM) is None else (),
    )


def _removable(examination: Examination) -> int | str:
    """Return the number of memory regions that use the module, else why it cannot be unloaded."""
    facts, module = examination.node.modules, module_of(examination, PEERMEM)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"cannot tell whether nvidia_peermem is loaded: {module}"
    if not is_present(module):
        return _absence(module)
    if module.state is ModuleState.BUILTIN:
        return "nvidia_peermem is built into the kernel"
    if facts.loading_disabled:
        return "kernel.modules_disabled is 1, so no module can be unloaded until a reboot"
    refcnt = examination.reading.peermem.refcnt
    if not isinstance(refcnt, Unknown):
        return refcnt
    if refcnt.reason is Reason.NOT_THERE:
        return "this kernel cannot unload modules (no refcnt)"
    return f"cannot tell how many memory regions use nvidia_peermem: {refcnt}"


def _absence(module: KernelModule) -> str:
    if module.state is ModuleState.NOT_LOADED:
        return "nvidia_peermem is not loaded"
    return "nvidia_peermem is being loaded or unloaded; try again in a minute"


def _difference(examination: Examination) -> str:
    """Return whether the loaded module is the one on disk, as a sentence."""
    module, file = module_of(examination, PEERMEM), file_of(examination, PEERMEM)
    if isinstance(module, Unknown) or isinstance(file, Unknown):
        return "cannot tell whether the loaded module is the one on disk"
    is_compared = False
    pairs = (("version", module.version, file.version), ("srcversion", module.srcversion, file.srcversion))
    for word, loaded, there in pairs:
        if isinstance(loaded, Unknown) or isinstance(there, Unknown):
            continue
        if loaded != there:
            return f"the module on disk differs from the loaded one: {word} {there} on disk, {loaded} loaded"
        is_compared = True
    if not is_compared:
        return "cannot tell whether the loaded module is the one on disk"
    return "the loaded module is the one on disk, so only its options can change"


OLDER = "nv_peer_mem"
_PACKAGES = (
    "Remove its package: nvidia-peer-memory and nvidia-peer-memory-dkms (Debian, Ubuntu) or "
    "nvidia_peer_memory (RPM)."
)


def replace_nv_peer_mem(examination: Examination) -> Plan | str:
    """Remove the old module and its service, then load nvidia_peermem."""
    older, newer = module_of(examination, OLDER), module_of(examination, PEERMEM)
    if isinstance(older, Unknown) or isinstance(newer, Unknown):
        unread = older if isinstance(older, Unknown) else newer
        return f"cannot tell which peer-memory modules are loaded: {unread}"
    service = _service_steps(examination)
    if isinstance(service, str):
        return service
    loaded = is_present(older)
    if not loaded and not service:
        return NothingToDo("nv_peer_mem is not loaded, and no service loads it")
    unload = Step(
        "Unload the old module first (fails and changes nothing while jobs use it)",
        ("rmmod", OLDER),
        undo=("modprobe", OLDER),
    )
    steps = [*((unload,) if loaded else ()), *service]
    if not is_present(newer):
        blocker = blocker_of(_without_older(examination, older), PEERMEM)
        if blocker is not None:
            return f"nvidia_peermem cannot be loaded instead: {blocker}"
        steps.append(load_step(examination, PEERMEM))
    return make_plan(
        "Replace nv_peer_mem with nvidia_peermem",
        *steps,
        _PACKAGES,
        disturbs=_registered(older.refcnt if loaded else 0),
    )


def _without_older(examination: Examination, older: KernelModule) -> Examination:
    """Return the node as it will be after nv_peer_mem was unloaded."""
    facts = examination.node.modules
    assert not isinstance(facts, Unknown)
    modules = {**facts.modules, OLDER: replace(older, state=ModuleState.NOT_LOADED)}
    return replace(examination, node=replace(examination.node, modules=replace(facts, modules=modules)))


def _registered(refcnt: Maybe[int]) -> str:
    """Return what unloading disturbs: each memory region of a job is a reference (nvidia-peermem.c:234)."""
    if not isinstance(refcnt, Unknown) and refcnt <= 0:
        return ""
    count = "" if isinstance(refcnt, Unknown) else f" (refcnt {refcnt})"
    return f"jobs that registered GPU memory{count}; rmmod fails until they exit"


def _service_steps(examination: Examination) -> tuple[Step, ...] | str:
    """Return the steps that disable the service if it is there, else why that is unknown."""
    services = examination.services
    service = services if isinstance(services, Unknown) else services.services[OLDER]
    if isinstance(service, Unknown):
        return f"cannot tell whether there is an nv_peer_mem service: {service}"
    if isinstance(service.path, Unknown):
        if service.path.reason is Reason.NOT_THERE:
            return ()
        return f"cannot tell whether there is an nv_peer_mem service: {service.path}"
    # It is unknown for a script that is in no runlevel directory, and nothing starts that one.
    enabled = service.enabled
    starts = enabled.reason is not Reason.NOT_THERE if isinstance(enabled, Unknown) else enabled
    if service.masked or (not starts and service.state in (ServiceState.INACTIVE, ServiceState.FAILED)):
        return ()
    return (service_step("Stop and disable the old service", "disable --now", OLDER, undo="enable"),)
