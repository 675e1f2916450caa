"""Unloading nvidia_peermem, and reloading it."""

from __future__ import annotations

from probes.base.plan import Plan, Step, sentences
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.modules import KernelModule, ModuleState
from probes.plans.load_modules import RUNNING_JOBS, load_step, peermem_options
from probes.plans.obstacles import bar_of
from probes.queries.module_need import Need, need_of_peermem
from probes.queries.modules import PEERMEM, file_of, is_present, module_of
from probes.snapshot.examination import Examination


def unload_peermem(examination: Examination) -> Plan | str:
    """Unload nvidia_peermem, and nothing with it."""
    held = _removable(examination)
    if isinstance(held, str):
        return held
    obstacle = bar_of(examination, PEERMEM)
    later = "later programs copy through host memory, since DMA-BUF cannot be used here"
    notes = (
        later if need_of_peermem(examination) is Need.NEEDED else "",
        f"it cannot be loaded again afterwards: {obstacle}" if obstacle else "",
    )
    return Plan(
        "Unload nvidia_peermem",
        (unload_step(examination),),
        reversible=obstacle is None,
        disturbs=_holders(held),
        note=sentences(*notes),
    )


def reload_peermem(examination: Examination) -> Plan | str:
    """Unload nvidia_peermem and load what is on disk now."""
    held = _removable(examination)
    if isinstance(held, str):
        return held
    obstacle = bar_of(examination, PEERMEM)
    if obstacle is not None:
        return f"it could be unloaded, but not loaded again: {obstacle}"
    steps = (unload_step(examination), load_step(examination, PEERMEM))
    note = sentences(_difference(examination), RUNNING_JOBS)
    return Plan("Reload nvidia_peermem", steps, disturbs=_holders(held), note=note)


def unload_step(examination: Examination) -> Step:
    """Rmmod of nvidia_peermem, which leaves what it needs where it is."""
    back = ("modprobe", PEERMEM, *peermem_options(examination))
    return Step(
        "Unload nvidia_peermem alone (modprobe -r would also unload modules that nothing else uses)",
        ("rmmod", PEERMEM),
        undo=back if bar_of(examination, PEERMEM) is None else (),
    )


def _removable(examination: Examination) -> int | str:
    """Return how many memory regions use the module; else why it cannot be unloaded."""
    facts, module = examination.node.modules, module_of(examination, PEERMEM)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"it is unknown whether nvidia_peermem is loaded: {module}"
    if not is_present(module):
        return _absence(module)
    if module.state is ModuleState.BUILTIN:
        return "nvidia_peermem is built into the kernel"
    if facts.loading_disabled:
        return "kernel.modules_disabled is 1: no module can be unloaded until a reboot"
    refcnt = examination.reading.peermem.refcnt
    if not isinstance(refcnt, Unknown):
        return refcnt
    if refcnt.reason is Reason.NOT_THERE:
        return "this kernel cannot unload modules (no refcnt)"
    return f"it is unknown how many memory regions use nvidia_peermem: {refcnt}"


def _absence(module: KernelModule) -> str:
    if module.state is ModuleState.NOT_LOADED:
        return "nvidia_peermem is not loaded"
    return "nvidia_peermem is being loaded or unloaded: try again in a minute"


def _holders(regions: int) -> str:
    """Each region that a job registered through the module holds one reference (nvidia-peermem.c:234)."""
    if regions <= 0:
        return ""
    return f"jobs that registered GPU memory (refcnt {regions} now): rmmod fails until they have ended"


def _difference(examination: Examination) -> str:
    """Say whether the loaded module is the one on disk."""
    module, file = module_of(examination, PEERMEM), file_of(examination, PEERMEM)
    if isinstance(module, Unknown) or isinstance(file, Unknown):
        return "it is unknown whether the loaded module is the one on disk"
    pairs: tuple[tuple[str, Maybe[str], Maybe[str]], ...] = (
        ("version", module.version, file.version),
        ("srcversion", module.srcversion, file.srcversion),
    )
    known_pairs = [
        (word, loaded, there)
        for word, loaded, there in pairs
        if not isinstance(loaded, Unknown) and not isinstance(there, Unknown)
    ]
    for word, loaded, there in known_pairs:
        if loaded != there:
            return f"the loaded module is not the one on disk: {word} {loaded}, on disk {there}"
    if not known_pairs:
        return "it is unknown whether the loaded module is the one on disk"
    return "the loaded module is the one on disk: only its options can change"
