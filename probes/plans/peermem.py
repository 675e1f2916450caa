"""Taking nvidia_peermem out, and loading it anew."""

from __future__ import annotations

from probes.checks.module_facts import PEERMEM, file_of, is_present, module_of
from probes.checks.module_need import Need, need_of_peermem
from probes.examination import Examination
from probes.modules import KernelModule, ModuleState
from probes.plan import Plan, Step
from probes.plans.loading import RUNNING_JOBS, load_step, peermem_options
from probes.plans.obstacles import bar_of
from probes.unknown import Maybe, Reason, Unknown


def unload_peermem(examination: Examination) -> Plan | str:
    """Takes nvidia_peermem out, and nothing with it."""
    held = _removable(examination)
    if isinstance(held, str):
        return held
    obstacle = bar_of(examination, PEERMEM)
    later = "programs started later copy through host memory: DMA-BUF cannot be used here"
    notes = (
        later if need_of_peermem(examination) is Need.NEEDED else "",
        f"it cannot be loaded again afterwards: {obstacle}" if obstacle else "",
    )
    return Plan(
        "Unload nvidia_peermem",
        (unload_step(examination),),
        reversible=obstacle is None,
        disturbs=_holders(held),
        note="; ".join(filter(None, notes)),
    )


def reload_peermem(examination: Examination) -> Plan | str:
    """Takes nvidia_peermem out and loads what is on disk now."""
    held = _removable(examination)
    if isinstance(held, str):
        return held
    obstacle = bar_of(examination, PEERMEM)
    if obstacle is not None:
        return f"it could be unloaded, but not loaded again: {obstacle}"
    steps = (unload_step(examination), load_step(examination, PEERMEM))
    note = f"{_difference(examination)}; {RUNNING_JOBS}"
    return Plan("Load nvidia_peermem anew", steps, disturbs=_holders(held), note=note)


def unload_step(examination: Examination) -> Step:
    """Rmmod of nvidia_peermem, which leaves what it needs where it is."""
    back = ("modprobe", PEERMEM, *peermem_options(examination))
    return Step(
        "unloads nvidia_peermem alone (modprobe -r would take what is left unused with it)",
        ("rmmod", PEERMEM),
        undo=back if bar_of(examination, PEERMEM) is None else (),
    )


def _removable(examination: Examination) -> int | str:
    """How many regions hold the module; else why it cannot be taken out."""
    facts, module = examination.node.modules, module_of(examination, PEERMEM)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"whether nvidia_peermem is loaded is unknown: {module}"
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
    return f"how many regions hold nvidia_peermem is unknown: {refcnt}"


def _absence(module: KernelModule) -> str:
    if module.state is ModuleState.NOT_LOADED:
        return "nvidia_peermem is not loaded"
    return "nvidia_peermem is just being loaded or unloaded: look again in a minute"


def _holders(regions: int) -> str:
    """Each region that a job registered through the module holds one reference (nvidia-peermem.c:234)."""
    if regions <= 0:
        return ""
    return (
        f"jobs that registered GPU memory through nvidia_peermem hold it (refcnt {regions} now): "
        "rmmod is refused until they have ended"
    )


def _difference(examination: Examination) -> str:
    """Whether what is loaded is what lies on disk."""
    module, file = module_of(examination, PEERMEM), file_of(examination, PEERMEM)
    if isinstance(module, Unknown) or isinstance(file, Unknown):
        return "whether the loaded one is that on disk is unknown"
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
            return f"the loaded one is not the one on disk: {word} {loaded}, on disk {there}"
    if not known_pairs:
        return "whether the loaded one is that on disk is unknown"
    return "the loaded one is the one on disk: only its options can change"
