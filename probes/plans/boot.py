"""Having the boot load the modules of this node's path: gdrtop's own file of modules-load.d(5)."""

from __future__ import annotations

from collections.abc import Sequence

from probes.checks.module_facts import PEERMEM, is_present, module_of
from probes.examination import Examination
from probes.modules import LADDER, ModuleFacts, ModuleState
from probes.plan import FileChange, Plan, Step, instruction
from probes.plans.loading import path_modules, peermem_options, wants_peermem
from probes.plans.obstacles import bar_at_boot
from probes.platform import in_container
from probes.unknown import Unknown

OWN_FILE = "/etc/modules-load.d/gdrtop.conf"
_HEAD = "# Written by gdrtop: modules that GPUDirect RDMA on this node needs; see modules-load.d(5).\n"
_IN_CONTAINER = "this is a container: its /etc is not the one that the node boots with"


def persist_modules(examination: Examination) -> Plan | str:
    """Names to the boot what no file names yet of this node's path, and nvidia_peermem where it is loaded."""
    names = path_modules(examination)
    if isinstance(names, Unknown):
        return f"which devices this node has is unknown: {names}"
    peermem = module_of(examination, PEERMEM)
    if isinstance(peermem, Unknown):
        return f"which modules are loaded is unknown: {peermem}"
    if is_present(peermem) and PEERMEM not in names:
        names = (*names, PEERMEM)
    if not names:
        return "no NVIDIA GPU and no mlx5 NIC here that would need a module"
    wanted = wants_peermem(examination)
    question = (
        f"whether nvidia_peermem is needed as well is unknown: {wanted.detail or wanted}"
        if isinstance(wanted, Unknown) and PEERMEM not in names
        else ""
    )
    return _persist(examination, names, question)


def persist_peermem(examination: Examination) -> Plan | str:
    """Names nvidia_peermem alone to the boot."""
    return _persist(examination, (PEERMEM,), "")


def _persist(examination: Examination, names: Sequence[str], note: str) -> Plan | str:
    """One file with these modules and those that it names already."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"which modules the boot loads is unknown: {facts}"
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
            barred.append(f"{name} is left out, for the boot could not load it: {obstacle}")
    if not added:
        return "; ".join(barred) or f"the boot loads all that this node needs already: {', '.join(names)}"
    kept = own_modules(facts)
    text = _HEAD + "".join(f"{name}\n" for name in LADDER if name in kept or name in added)
    instructions = [instruction(reason) for reason in barred]
    options = peermem_options(examination) if PEERMEM in added else ()
    if options:
        line = f"options nvidia_peermem {' '.join(options)}"
        instructions.append(
            instruction(f"write `{line}` to a file of /etc/modprobe.d: the boot gives no options")
        )
    step = Step(
        f"names {', '.join(added)} to systemd-modules-load, which loads them at boot",
        file=FileChange(OWN_FILE, text),
    )
    return Plan("Load the modules at every boot", (step, *instructions), note=note)


def unpersist_modules(examination: Examination) -> Plan | str:
    """Takes gdrtop's file away; what other files name is still loaded."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"which modules the boot loads is unknown: {facts}"
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
    step = Step(f"the boot no longer loads {', '.join(named)} by it", file=FileChange(OWN_FILE, None))
    return Plan(
        "Take gdrtop's modules off the boot", (step,), note="what is loaded now stays until the next boot"
    )


def own_modules(facts: ModuleFacts) -> tuple[str, ...]:
    """What gdrtop's own file names."""
    return tuple(name for name in LADDER if facts.modules[name].persistent == OWN_FILE)


def _unread(facts: ModuleFacts) -> str:
    """The lists of modules that are there and could not be read."""
    return ", ".join(path[:200] for path in facts.rules_unread if "/modprobe.d" not in path)
