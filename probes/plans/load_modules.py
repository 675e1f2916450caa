"""Load modules now, and at every boot by gdrtop's own file in modules-load.d(5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from probes.base.plan import FileChange, NothingToDo, Plan, Step, instruction, make_plan, sentences
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.kernel import module_blockers
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.modules import LADDER, PEERMEM, KernelModule, ModuleFacts, ModuleState
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3
from probes.facts.system.platform import in_container
from probes.queries.module_need import GPU_MODULES, Need, is_spare, need_of_peermem, running_jobs
from probes.queries.modules import (
    VERSIONS_DIFFER,
    file_of,
    gpu_functions,
    has_efa_only,
    is_about_version,
    is_present,
    is_refused_now,
    module_messages,
    module_of,
    nics_of,
    ofed_numbers,
    ofed_of,
    peer_nics,
)
from probes.snapshot.examination import Examination

_LEGACY_OFED = (5, 0)  # the last version that needs peerdirect_support=1
OWN_FILE = "/etc/modules-load.d/gdrtop.conf"
_HEAD = "# Written by gdrtop: modules that GPUDirect RDMA needs on this node, see modules-load.d(5).\n"
_IN_CONTAINER = "this is a container; its /etc does not affect the node's boot"


def path_modules(examination: Examination) -> Maybe[tuple[str, ...]]:
    """Return the modules that the path from NIC to GPU memory needs, in load order."""
    names: list[str] = []
    rdma: tuple[str, ...] = CONNECTX.modules
    needs = known(map_known(module_of(examination, "mlx5_ib"), lambda module: module.depends), ())
    if needs and "ib_uverbs" not in needs:
        rdma = (*rdma, "ib_uverbs")  # programs need it, mlx5_ib of old kernels does not
    concerned = (
        (CONNECTX_3.modules, nics_of(examination, CONNECTX_3)),
        (rdma, nics_of(examination, CONNECTX)),
        (GPU_MODULES, gpu_functions(examination)),
    )
    for modules, devices in concerned:
        if isinstance(devices, Unknown):
            return devices
        names += modules if devices else ()
    return (*names, PEERMEM) if wants_peermem(examination) is True else tuple(names)


def wants_peermem(examination: Examination) -> Maybe[bool]:
    """Return whether this node needs nvidia_peermem: DMA-BUF cannot be used, or it is loaded at boot."""
    need, module = need_of_peermem(examination), module_of(examination, PEERMEM)
    if not isinstance(need, Unknown):
        return need is not Need.NOT_NEEDED
    # A module that is loaded at boot is wanted, whether or not DMA-BUF works.
    if not isinstance(module, Unknown) and module.persistent is not None:
        return True
    return need


def load_modules(examination: Examination) -> Plan | str:
    """Load what is missing; list modules that cannot be loaded at the end, with the reason."""
    wanted = path_modules(examination)
    if isinstance(wanted, Unknown):
        return f"cannot tell which devices this node has: {wanted}"
    if not wanted:
        return "this node has no NVIDIA GPU and no mlx5 or mlx4 NIC"
    steps: list[Step] = []
    blocked: list[str] = []
    planned: set[str] = set()
    for name in wanted:
        module = module_of(examination, name)
        if isinstance(module, Unknown):
            return f"cannot tell whether {name} is loaded: {module}"
        if is_present(module) or name in planned:
            continue
        blocker = blocker_of(examination, name) or refused_before(examination, name)
        if blocker:
            blocked.append(f"{name} cannot be loaded: {blocker}")
            continue
        steps.append(load_step(examination, name, planned))
        planned |= {name, *absent_needs(examination, name)}
    open_question = _open_question(examination)
    if not steps:
        loaded = f"all needed modules are loaded ({', '.join(wanted)})"
        if not blocked and not open_question:
            return NothingToDo(loaded)
        return "; ".join(filter(None, (*(blocked or [loaded]), open_question)))
    return make_plan(
        "Load missing modules", *steps, *blocked, note=sentences(running_jobs(examination), open_question)
    )


def _open_question(examination: Examination) -> str:
    """Return why it is unknown whether nvidia_peermem is missing, or ""."""
    module, wanted = module_of(examination, PEERMEM), wants_peermem(examination)
    if not isinstance(wanted, Unknown) or (not isinstance(module, Unknown) and is_present(module)):
        return ""
    return f"cannot tell whether nvidia_peermem is needed as well: {wanted.detail or wanted}"


def load_peermem(examination: Examination) -> Plan | str:
    """Load nvidia_peermem, even if DMA-BUF works."""
    module = module_of(examination, PEERMEM)
    if isinstance(module, Unknown):
        return f"cannot tell whether nvidia_peermem is loaded: {module}"
    if is_present(module):
        return NothingToDo("nvidia_peermem is already loaded")
    gpus, nics = gpu_functions(examination), peer_nics(examination.node)
    if not isinstance(gpus, Unknown) and not gpus:
        return "this node has no NVIDIA GPU"
    if has_efa_only(examination):
        return "the NICs are EFA, which does not use nvidia_peermem"
    if not isinstance(nics, Unknown) and not nics:
        served = " that nvidia_peermem can serve" if examination.topology.nics else ""
        return f"this node has no RDMA NIC{served}"
    blocker = blocker_of(examination, PEERMEM)
    if blocker is not None:
        return f"nvidia_peermem cannot be loaded: {blocker}"
    # NCCL src/transport/net.cc: DMA-BUF wins where both can be used.
    unused = "NCCL keeps using DMA-BUF, which works here" if is_spare(examination) else ""
    load = load_step(examination, PEERMEM)
    return make_plan("Load nvidia_peermem", load, note=sentences(running_jobs(examination), unused))


def load_plan(examination: Examination, name: str) -> Plan:
    """Load one module, and those that are missing because they need it."""
    steps, planned = [load_step(examination, name)], {name, *absent_needs(examination, name)}
    for other in known(path_modules(examination), ()):
        module = module_of(examination, other)
        if isinstance(module, Unknown) or is_present(module) or other in planned:
            continue
        is_free = blocker_of(examination, other) is None and not refused_before(examination, other)
        if name in absent_needs(examination, other) and is_free:
            steps.append(load_step(examination, other, planned))
            planned |= {other, *absent_needs(examination, other)}
    return make_plan(f"Load {name}", *steps, note=sentences(running_jobs(examination)))


def load_step(examination: Examination, name: str, loaded_before: Collection[str] = ()) -> Step:
    """Return the step that loads a module; `loaded_before` are the modules of earlier steps.

    rmmod undoes it: `modprobe -r` would also unload modules that nothing else uses, even the GPU driver.
    """
    needs = absent_needs(examination, name)
    pulled_in = [need for need in needs if need not in loaded_before]
    ready = [need for need in needs if need in loaded_before]
    before = f" once {', '.join(ready)} {'is' if len(ready) == 1 else 'are'} loaded" if ready else ""
    before += f" (needs {', '.join(pulled_in)})" if pulled_in else ""
    facts = examination.node.modules
    rungs = facts.ladder if isinstance(facts, ModuleFacts) else ()
    purposes = (rung.why for rung in rungs if rung.module == name)
    return Step(
        f"Load {name}{before}: {next(purposes, 'modprobe loads its dependencies first')}",
        ("modprobe", name, *peermem_options(examination, name)),
        undo=("rmmod", name),
    )


def bind_steps(examination: Examination, name: str, bdfs: Sequence[str]) -> tuple[Step, ...]:
    """Load the driver of devices that have none, or find out why it did not bind to them."""
    module = module_of(examination, name)
    pattern = "|".join(bdfs[:4])
    if not isinstance(module, Unknown) and not is_present(module):
        return (load_step(examination, name),)
    search = instruction(
        f"Search the kernel log for why {name} has not bound to it (dmesg | grep -E '{pattern}')"
    )
    if isinstance(module, Unknown):
        why = f"Load {name}: this does nothing if it is loaded, which is unknown"
        return Step(why, ("modprobe", name)), search
    return (search,)


def peermem_options(examination: Examination, name: str = PEERMEM) -> tuple[str, ...]:
    """Return the options of nvidia_peermem; MLNX_OFED 5.0 and older need one (nvidia-peermem.c:55)."""
    ofed = ofed_of(examination)
    numbers = None if isinstance(ofed, Unknown) else ofed_numbers(ofed)
    legacy = numbers is not None and numbers[:2] <= _LEGACY_OFED
    return ("peerdirect_support=1",) if legacy and name == PEERMEM else ()


def blocker_of(examination: Examination, name: str) -> str | None:
    """Return what would keep modprobe from loading a module now, or None.

    For a loaded module: what would keep it from being loaded again after it was unloaded.
    """
    facts, module = examination.node.modules, module_of(examination, name)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"its state is unknown: {facts if isinstance(facts, Unknown) else module}"
    if module.state is not ModuleState.NOT_LOADED and not is_present(module):
        return "it is being loaded or unloaded; try again in a minute"
    blocker = module_blockers.blocker_of(facts, module)
    return blocker or _blocker_in_file(examination, name) or _blocker_of_needs(examination, module)


def blocker_at_boot(examination: Examination, name: str) -> str | None:
    """Return what would keep a module from being loaded at the next boot, or None."""
    facts, module = examination.node.modules, module_of(examination, name)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"its state is unknown: {facts if isinstance(facts, Unknown) else module}"
    if is_present(module) and not isinstance(module.on_disk, Unknown):
        return None  # this kernel has loaded it before
    absent = Unknown(Reason.NOT_THERE, "/proc/modules", "not loaded")
    modules = {
        other.name: other
        if other.state is ModuleState.BUILTIN
        else replace(other, state=ModuleState.NOT_LOADED, version=absent)
        for other in facts.modules.values()
    }
    at_boot = replace(facts, modules=modules, loading_disabled=False)
    return blocker_of(replace(examination, node=replace(examination.node, modules=at_boot)), name)


def refused_before(examination: Examination, name: str) -> str:
    """Return why the kernel has refused the module since the last boot, by its log, or would, or "".

    Symbols do not change until a module is rebuilt, so the next modprobe would fail the same way.
    """
    refused = is_refused_now(examination) if name == PEERMEM else Unknown(Reason.NOT_RECORDED)
    kinds = (LogKind.UNKNOWN_SYMBOL, LogKind.SYMBOL_VERSION)
    messages = known(module_messages(examination, kinds, modules=(name,)), ())
    if refused is False:  # it was rebuilt since
        messages = tuple(message for message in messages if not is_about_version(message))
    if not messages:
        return f"{VERSIONS_DIFFER}; rebuild it for the running RDMA stack" if refused is True else ""
    return f"the kernel refused it before ({messages[-1].text}); rebuild it for the running RDMA stack"


def _blocker_in_file(examination: Examination, name: str) -> str | None:
    """Compare the file (modinfo) with the running kernel and driver (kernel/module/main.c)."""
    file, facts = file_of(examination, name), examination.node.modules
    release, nvidia = examination.node.kernel_release, module_of(examination, "nvidia")
    if isinstance(file, Unknown) or isinstance(facts, Unknown):
        return None
    if not isinstance(file.kernel, Unknown) and not isinstance(release, Unknown) and file.kernel != release:
        return f"its file was built for kernel {file.kernel}, but {release} is running"
    if facts.signed_only and isinstance(file.signer, Unknown) and file.signer.reason is Reason.NOT_THERE:
        return "its file is unsigned, but this kernel accepts only signed modules"
    if not name.startswith("nvidia_") or isinstance(nvidia, Unknown) or isinstance(file.version, Unknown):
        return None
    # Symbols of the driver fit only modules of its own version.
    if isinstance(nvidia.version, Unknown) or nvidia.version == file.version:
        return None
    return f"its file belongs to driver {file.version}, but {nvidia.version} is loaded"


def _blocker_of_needs(examination: Examination, module: KernelModule) -> str | None:
    for need in absent_needs(examination, module.name):
        blocker = blocker_of(examination, need)
        if blocker is not None:
            return f"it needs {need}, which cannot be loaded: {blocker}"
    return None


def absent_needs(examination: Examination, name: str) -> tuple[str, ...]:
    """Return the modules that modprobe would load first by modules.dep, if they are known to be absent."""
    module = module_of(examination, name)
    if isinstance(module, Unknown) or isinstance(module.depends, Unknown):
        return ()
    facts = examination.node.modules
    ladder = {} if isinstance(facts, Unknown) else facts.modules  # in load order
    absent = (name for name, other in ladder.items() if other.state is ModuleState.NOT_LOADED)
    return tuple(name for name in absent if name in module.depends)


def persist_modules(examination: Examination) -> Plan | str:
    """Add the modules of this node's path that no file names yet, and nvidia_peermem if it is loaded."""
    names = path_modules(examination)
    if isinstance(names, Unknown):
        return f"cannot tell which devices this node has: {names}"
    peermem = module_of(examination, PEERMEM)
    if isinstance(peermem, Unknown):
        return f"cannot tell which modules are loaded: {peermem}"
    if is_present(peermem) and PEERMEM not in names:
        names = (*names, PEERMEM)
    if not names:
        return "this node has no NVIDIA GPU and no mlx5 NIC"
    return _persist(examination, names, _open_question(examination))


def persist_peermem(examination: Examination) -> Plan | str:
    """Add nvidia_peermem alone."""
    return _persist(examination, (PEERMEM,), "")


def _persist(examination: Examination, names: Sequence[str], note: str) -> Plan | str:
    """Write one file with these modules and those that it already names."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"cannot tell which modules load at boot: {facts}"
    if unread := _unread(facts):
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
        where = "to a file in /etc/modprobe.d. Files in modules-load.d take no options."
        instructions.append(instruction(f"Write `{line}` {where}"))
    step = Step(f"Make systemd-modules-load load {', '.join(added)} at boot", file=FileChange(OWN_FILE, text))
    return make_plan("Load the modules at every boot", step, *instructions, note=sentences(note))


def unpersist_modules(examination: Examination) -> Plan | str:
    """Remove gdrtop's file; modules that other files name are still loaded."""
    facts = examination.node.modules
    if isinstance(facts, Unknown):
        return f"cannot tell which modules load at boot: {facts}"
    if OWN_FILE in facts.rules_unread:
        return f"needs root: {OWN_FILE} cannot be read"
    if in_container(examination.node.platform):
        return _IN_CONTAINER
    named = own_modules(facts)
    if not named:
        if unread := _unread(facts):
            return f"needs root: {unread} cannot be read"
        return NothingToDo(f"{OWN_FILE} does not exist or lists no module")
    step = Step(f"Stop loading {', '.join(named)} at boot", file=FileChange(OWN_FILE, None))
    note = "Loaded modules stay until the next boot."
    return make_plan("Undo gdrtop's module loading at boot", step, note=note)


def own_modules(facts: ModuleFacts) -> tuple[str, ...]:
    """Return the modules that gdrtop's own file names."""
    return tuple(name for name in LADDER if facts.modules[name].persistent == OWN_FILE)


def _unread(facts: ModuleFacts) -> str:
    return ", ".join(path[:200] for path in facts.rules_unread if "/modprobe.d" not in path)
