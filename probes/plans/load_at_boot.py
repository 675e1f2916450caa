"""Load the modules of this node's path at boot, by gdrtop's own file in modules-load.d(5)."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import FileChange, NothingToDo, Plan, Step, instruction, sentences
from probes.base.unknown import Unknown
from probes.facts.kernel.modules import LADDER, ModuleFacts, ModuleState
from probes.facts.system.platform import in_container
from probes.plans.load_modules import blocker_at_boot, path_modules, peermem_options, wants_peermem
from probes.queries.modules import PEERMEM, is_present, module_of
from probes.snapshot.examination import Examination

OWN_FILE = "/etc/modules-load.d/gdrtop.conf"
_HEAD = "# Written by gdrtop: modules that GPUDirect RDMA needs on this node, see modules-load.d(5).\n"
_IN_CONTAINER = "this is a container; the node does not boot with its /etc"


def persist_modules(examination: Examination) -> Plan | str:
    """Add the modules of this node's path that no file names yet, and nvidia_peermem if it is loaded."""
    names = path_modules(examination)
    if isinstance(names, Unknown):
        return f"it is unknown which devices this node has: {names}"
    peermem = module_of(examination, PEERMEM)
    if isinstance(peermem, Unknown):
        return f"it is unknown which modules are loaded: {peermem}"
    if is_present(peermem) and PEERMEM not in names:
        names = (*names, PEERMEM)
    if not names:
        return "this node has no NVIDIA GPU and no mlx5 NIC"
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
    """Write one file with these modules and those that it already names."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"it is unknown which modules are loaded at boot: {facts}"
    unread = _unread(facts)
    if unread:
        return f"needs root: {unread} cannot be read"
    if in_container(examination.node.platform):
        return _IN_CONTAINER
    added: list[str] = []
    blocked: list[str] = []
    for name in names:
        module = facts.modules[name]
        if module.persistent is not None or module.state is ModuleState.BUILTIN:
            continue
        blocker = blocker_at_boot(examination, name)
        if blocker is None:
            added.append(name)
        else:
            blocked.append(f"Skip {name} for now: it cannot be loaded at boot, because {blocker}")
    if not added:
        if blocked:
            return "; ".join(blocked)
        listed = f"all modules that this node needs load at boot: {', '.join(names)}"
        return f"{listed}; {note}" if note else NothingToDo(listed)
    kept = own_modules(facts)
    text = _HEAD + "".join(f"{name}\n" for name in LADDER if name in kept or name in added)
    instructions = [instruction(reason) for reason in blocked]
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
    """Remove gdrtop's file; modules that other files name are still loaded."""
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
            else NothingToDo(f"{OWN_FILE} does not exist or lists no module")
        )
    step = Step(f"Stop loading {', '.join(named)} at boot", file=FileChange(OWN_FILE, None))
    return Plan(
        "Stop loading gdrtop's modules at boot", (step,), note="Loaded modules stay until the next boot."
    )


def own_modules(facts: ModuleFacts) -> tuple[str, ...]:
    """Return the modules that gdrtop's own file names."""
    return tuple(name for name in LADDER if facts.modules[name].persistent == OWN_FILE)


def _unread(facts: ModuleFacts) -> str:
    """Return the unreadable files that list modules."""
    return ", ".join(path[:200] for path in facts.rules_unread if "/modprobe.d" not in path)
