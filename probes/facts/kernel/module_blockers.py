"""Why a module of the ladder is not loaded, or cannot be loaded."""

from __future__ import annotations

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.kernel.log import KernelLogFacts, LogKind
from probes.facts.kernel.modprobe_config import InstallLine, loaded_by
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState

_RIVALS = {"nvidia_peermem": "nv_peer_mem", "nv_peer_mem": "nvidia_peermem"}
_REFUSALS = (LogKind.SYMBOL_VERSION, LogKind.UNKNOWN_SYMBOL, LogKind.OTHER_KERNEL, LogKind.EFA_PEERMEM)


def explain(facts: ModuleFacts, name: str) -> str:
    """Return the module's state; if it is not loaded, the reason in one short clause."""
    name = name.replace("-", "_")
    module = facts.modules.get(name)
    if module is None:
        return "not a module of the ladder"
    if isinstance(module.state, Unknown):
        return f"state unknown: {module.state}"
    if module.state is ModuleState.NOT_LOADED:
        return _why_not_loaded(facts, module)
    return "loaded" if module.state is ModuleState.LIVE else str(module.state.value)


def refusal_of(facts: ModuleFacts, log: Maybe[KernelLogFacts], name: str) -> str:
    """Return what the kernel said when it refused to load a module; "" if it did not, or more is known.

    It may have refused the module before another one was loaded that it needs.
    """
    module = facts.modules.get(name)
    if isinstance(log, Unknown) or module is None or module.state is not ModuleState.NOT_LOADED:
        return ""
    if blocker_of(facts, module) is not None or _first_missing(facts, name) is not None:
        return ""
    texts = [row.text for row in log.messages if row.kind in _REFUSALS and row.module == name]
    # -22 follows a symbol of another version, which the kernel names in the line before.
    return next((text for text in reversed(texts) if "(err -22)" not in text), "")


def blocker_of(facts: ModuleFacts, module: KernelModule) -> str | None:
    """Return why modprobe cannot load this module by name; None if nothing is known to prevent it."""
    if facts.loading_disabled:
        return "kernel.modules_disabled is 1: no module can be loaded until a reboot"
    if module.kernel_forbids:
        return "blocked by module_blacklist= on the kernel command line"
    line = module.install_line
    replaces = line is not None and loaded_by(line.command) is None  # it loads no other file of the module
    if line is not None and replaces and not line.loads_nothing:
        return None  # the command loads the module, as in the files of distributions
    if isinstance(module.on_disk, Unknown):
        if module.on_disk.reason is Reason.NOT_THERE:
            return f"no .ko for kernel {known(facts.kernel_release, 'unknown')}"
        return f"not loaded; .ko unknown ({module.on_disk})"
    if line is not None and replaces:
        return _replaced(line)
    if module.name in _RIVALS:
        rival = facts.modules.get(_RIVALS[module.name])
        if rival is not None and rival.state is ModuleState.LIVE:
            return f"{rival.name} is loaded, and only one of the two can be loaded"
        reason = _lacks_peer_memory(facts, module)
        if reason is not None:
            return f"built without peer-memory symbols: {reason}"
    return None


def _why_not_loaded(facts: ModuleFacts, module: KernelModule) -> str:
    blocker = blocker_of(facts, module)
    if blocker is not None:
        return blocker
    if module.install_line is not None and loaded_by(module.install_line.command) is None:
        return _replaced(module.install_line)
    if module.blacklisted is not None:
        return f"blacklisted by {module.blacklisted}"
    missing = _first_missing(facts, module.name)
    if missing is not None:
        return f"needs {missing} first"
    return f"on disk, not loaded{'; this kernel accepts only signed modules' if facts.signed_only else ''}"


def _replaced(line: InstallLine) -> str:
    return f"replaced by `{line.text}` in {line.where}"


def _lacks_peer_memory(facts: ModuleFacts, module: KernelModule) -> str | None:
    """Return why loading a peer-memory module fails with "Invalid argument"; None if nothing suggests it."""
    for symbol in facts.symbols:
        if symbol.symbol != PEER_MEMORY_SYMBOL:
            continue
        if not isinstance(symbol.provider, Unknown):
            # A module built with the symbol depends on the module that exports it.
            if not isinstance(module.depends, Unknown) and symbol.provider not in module.depends:
                return f"it does not use {symbol.provider}, which exports {symbol.symbol} now"
            return None
        core = facts.modules.get("ib_core")
        core_is_module = core is None or core.state is not ModuleState.BUILTIN
        if symbol.provider.reason is Reason.NOT_THERE and core_is_module:
            return f"no module exports {symbol.symbol}"
    return None


def _first_missing(facts: ModuleFacts, name: str) -> str | None:
    needs = next((rung.needs for rung in facts.ladder if rung.module == name), ())
    modules = (facts.modules[need] for need in needs if need in facts.modules)
    return next((module.name for module in modules if module.state is ModuleState.NOT_LOADED), None)
