"""Loading the modules of this node's path at boot: gdrtop's own file of modules-load.d(5)."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import FileChange, Plan, Step, instruction, sentences
from probes.base.unknown import Unknown
from probes.facts.kernel.modules import LADDER, ModuleFacts, ModuleState
from probes.facts.system.platform import in_container
from probes.plans.load_modules import path_modules, peermem_options, wants_peermem
from probes.plans.obstacles import bar_at_boot
from probes.queries.modules import PEERMEM, is_present, module_of
from probes.snapshot.examination import Examination

OWN_FILE = "/etc/modules-load.d/gdrtop.conf"
_HEAD = "# Written by gdrtop: modules that GPUDirect RDMA on this node needs; see modules-load.d(5).\n"
_IN_CONTAINER = "this is a container: the node does not boot with its /etc"


def persist_modules(examination: Examination) -> Plan | str:
    """Add what no file names yet of this node's path, and nvidia_peermem where it is loaded."""
    names = path_modules(examination)
    if isinstance(names, Unknown):
        return f"it is unknown which devices this node has: {names}"
    peermem = module_of(examination, PEERMEM)
    if isinstance(peermem, Unknown):
        return f"it is unknown which modules are loaded: {peermem}"
    if is_present(peermem) and PEERMEM not in names:
        names = (*names, PEERMEM)
    if not names:
        return "no NVIDIA GPU and no mlx5 NIC here needs a module"
    wanted = wants_peermem(examination)
    question = (
        f"it is unknown whether nvidia_peermem is needed as well: {wanted.detail or wanted}"
        if isinstance(wanted, Unknown) and PEERMEM not in names
        else ""
    )
    return _persist(examination, names, question)


def persist_peermem(examination: Examination) -> Plan | str:
    """Add nvidia_peermem alone."""
    return _persist(examination, (PEERMEM,), "")


def _persist(examination: Examination, names: Sequence[str], note: str) -> Plan | str:
    """Write one file with these modules and those that it names already."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"it is unknown which modules are loaded at boot: {facts}"
    unread = _unread(facts)
    if unread:
        return f"needs root: {unread} cannot be read"
    if in_container(examination.node.platform):
        return _IN_CONTAINER
    added: list[str] = []
    barred: list[str] = []
    for name in names:
        module = facts.modules[name]
        if module.persistent is not None or module.state is ModuleState.BUILTIN:
            continue
        obstacle = bar_at_boot(examination, name)
        if obstacle is None:
            added.append(name)
        else:
            barred.append(f"{name} is left out, because the boot could not load it: {obstacle}")
    if not added:
        return "; ".join(barred) or f"the boot already loads all that this node needs: {', '.join(names)}"
    kept = own_modules(facts)
    text = _HEAD + "".join(f"{name}\n" for name in LADDER if name in kept or name in added)
    instructions = [instruction(reason) for reason in barred]
    options = peermem_options(examination) if PEERMEM in added else ()
    if options:
        line = f"options nvidia_peermem {' '.join(options)}"
        instructions.append(
            instruction(
                f"Write `{line}` to a file in /etc/modprobe.d. Files in modules-load.d take no options."
            )
        )
    step = Step(
        f"Make systemd-modules-load load {', '.join(added)} at boot",
        file=FileChange(OWN_FILE, text),
    )
    return Plan("Load the modules at every boot", (step, *instructions), note=sentences(note))


def unpersist_modules(examination: Examination) -> Plan | str:
    """Remove gdrtop's file; what other files name is still loaded."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"it is unknown which modules are loaded at boot: {facts}"
    if OWN_FILE in facts.rules_unread:
        return f"needs root: {OWN_FILE} cannot be read"
    if in_container(examination.node.platform):
        return _IN_CONTAINER
    named = own_modules(facts)
    if not named:
        unread = _unread(facts)
        return (
            f"needs root: {unread} cannot be read"
            if unread
            else f"there is no {OWN_FILE} that names a module"
        )
    step = Step(f"Stop loading {', '.join(named)} at boot", file=FileChange(OWN_FILE, None))
    return Plan(
        "Stop loading gdrtop's modules at boot", (step,), note="Loaded modules stay until the next boot."
    )


def own_modules(facts: ModuleFacts) -> tuple[str, ...]:
    """Return the modules that gdrtop's own file names."""
    return tuple(name for name in LADDER if facts.modules[name].persistent == OWN_FILE)


def _unread(facts: ModuleFacts) -> str:
    """Return the lists of modules that could not be read."""
    return ", ".join(path[:200] for path in facts.rules_unread if "/modprobe.d" not in path)
