"""Why modprobe could not load a module on this node: its file, its rivals and its needs."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.log import LogKind
from probes.facts.kernel.module_blockers import blocker_of
from probes.facts.kernel.modules import KernelModule, ModuleState
from probes.queries.modules import file_of, is_present, module_messages, module_of
from probes.snapshot.examination import Examination


def bar_of(examination: Examination, name: str) -> str | None:
    """What would keep the module out if modprobe were run now; None: nothing seen speaks against it.

    Of a module that is loaded: what would keep it out once it were unloaded.
    """
    facts, module = examination.node.modules, module_of(examination, name)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"its state is unknown: {facts if isinstance(facts, Unknown) else module}"
    if module.state is not ModuleState.NOT_LOADED and not is_present(module):
        return "it is being loaded or unloaded: try again in a minute"
    return blocker_of(facts, module) or _bar_of_file(examination, name) or _bar_of_needs(examination, module)


def bar_at_boot(examination: Examination, name: str) -> str | None:
    """What would keep the module out at the next boot, when nothing is loaded yet; None: nothing seen."""
    facts, module = examination.node.modules, module_of(examination, name)
    if isinstance(facts, Unknown) or isinstance(module, Unknown):
        return f"its state is unknown: {facts if isinstance(facts, Unknown) else module}"
    if is_present(module) and not isinstance(module.on_disk, Unknown):
        return None  # this kernel has taken it once
    gone = Unknown(Reason.NOT_THERE, "/proc/modules", "not loaded")
    modules = {
        one.name: one
        if one.state is ModuleState.BUILTIN
        else replace(one, state=ModuleState.NOT_LOADED, version=gone)
        for one in facts.modules.values()
    }
    then = replace(facts, modules=modules, loading_disabled=False)
    return bar_of(replace(examination, node=replace(examination.node, modules=then)), name)


def refused_before(examination: Examination, name: str) -> str:
    """Say why the kernel refused the module since the last boot, by its log; "" where it did not.

    Symbols do not change until a module is rebuilt, so that the next modprobe fails likewise.
    """
    kinds = (LogKind.UNKNOWN_SYMBOL, LogKind.SYMBOL_VERSION)
    messages = module_messages(examination, kinds, modules=(name,))
    if isinstance(messages, Unknown) or not messages:
        return ""
    return f"the kernel refused it before ({messages[-1].text}); rebuild it for the RDMA stack that runs"


def _bar_of_file(examination: Examination, name: str) -> str | None:
    """What modinfo says of the file, beside the kernel and the driver that run (kernel/module/main.c)."""
    file, facts = file_of(examination, name), examination.node.modules
    release, nvidia = examination.node.kernel_release, module_of(examination, "nvidia")
    if isinstance(file, Unknown) or isinstance(facts, Unknown):
        return None
    if not isinstance(file.kernel, Unknown) and not isinstance(release, Unknown) and file.kernel != release:
        return f"its file was built for kernel {file.kernel}, and {release} is running"
    if facts.signed_only and isinstance(file.signer, Unknown) and file.signer.reason is Reason.NOT_THERE:
        return "its file is unsigned, and this kernel accepts signed modules only"
    if not name.startswith("nvidia_") or isinstance(nvidia, Unknown) or isinstance(file.version, Unknown):
        return None
    # Symbols of the driver fit modules of its own version alone.
    if isinstance(nvidia.version, Unknown) or nvidia.version == file.version:
        return None
    return f"its file is of driver {file.version}, and {nvidia.version} is loaded"


def _bar_of_needs(examination: Examination, module: KernelModule) -> str | None:
    for need in absent_needs(examination, module.name):
        barred = bar_of(examination, need)
        if barred is not None:
            return f"it needs {need}: {barred}"
    return None


def absent_needs(examination: Examination, name: str) -> tuple[str, ...]:
    """What modules.dep has modprobe load before the module, as far as it is known to be absent."""
    module = module_of(examination, name)
    if isinstance(module, Unknown) or isinstance(module.depends, Unknown):
        return ()
    facts = examination.node.modules
    ladder = {} if isinstance(facts, Unknown) else facts.modules  # in load order
    return tuple(
        need for need, one in ladder.items() if need in module.depends and one.state is ModuleState.NOT_LOADED
    )
