"""What stands in a module's way: why it is not loaded, in one sentence."""

from __future__ import annotations

from probes.base.unknown import Reason, Unknown, known
from probes.facts.kernel.modules import PEER_MEMORY_SYMBOL, KernelModule, ModuleFacts, ModuleState

_PEERS = {"nvidia_peermem": "nv_peer_mem", "nv_peer_mem": "nvidia_peermem"}


def explain(facts: ModuleFacts, name: str) -> str:
    """One short sentence: why a module is not loaded, or what stands in its way."""
    name = name.replace("-", "_")
    module = facts.modules.get(name)
    if module is None:
        return "not a module of the ladder"
    if isinstance(module.state, Unknown):
        return f"state unknown: {module.state}"
    if module.state is ModuleState.NOT_LOADED:
        return _obstacle(facts, module)
    return "loaded" if module.state is ModuleState.LIVE else str(module.state.value)


def bar(facts: ModuleFacts, module: KernelModule) -> str | None:
    """Return why modprobe could not load this module by name; None: nothing seen here speaks against trying."""
    if facts.loading_disabled:
        return "kernel.modules_disabled is 1: no module can be loaded until a reboot"
    if module.kernel_forbids:
        return f"refused by the kernel: {module.blacklisted}"
    if module.install_line is not None and not loads_nothing(module.install_line):
        return None  # the command loads it in a way of its own, as distributions' files do
    if isinstance(module.on_disk, Unknown):
        if module.on_disk.reason is Reason.NOT_THERE:
            return f"no .ko for kernel {known(facts.kernel_release, 'unknown')}"
        return f"not loaded; whether there is a .ko is unknown: {module.on_disk}"
    if module.install_line is not None:
        return _replaced(module.install_line)
    if module.name in _PEERS:
        rival = facts.modules.get(_PEERS[module.name])
        if rival is not None and rival.state is ModuleState.LIVE:
            return f"{rival.name} is loaded, and only one of the two can be"
        without = _without_peer_memory(facts, module)
        if without is not None:
            return f"built without peer-memory symbols: {without}"
    return None


def _obstacle(facts: ModuleFacts, module: KernelModule) -> str:
    """Return what keeps a module out, the hardest obstacle first."""
    barred = bar(facts, module)
    if barred is not None:
        return barred
    if module.install_line is not None:
        return _replaced(module.install_line)
    if module.blacklisted is not None:
        return f"blacklisted by {module.blacklisted}"
    missing = _first_missing(facts, module.name)
    if missing is not None:
        return f"needs {missing} first"
    return f"on disk, not loaded{'; this kernel accepts signed modules only' if facts.signed_only else ''}"


def _replaced(install_line: str) -> str:
    where, _, command = install_line.partition(": ")
    return f"replaced by `{command}` in {where}"


def loads_nothing(install_line: str) -> bool:
    """Return whether an install line's command is false(1) or true(1), as those are that keep a module out."""
    command = install_line.partition(": ")[2].split()[2:3]
    return bool(command) and command[0].rpartition("/")[2] in ("false", "true", ":")


def _without_peer_memory(facts: ModuleFacts, module: KernelModule) -> str | None:
    """Return why a peer-memory module can only answer "Invalid argument"; None: nothing speaks for that."""
    for symbol in facts.symbols:
        if symbol.symbol != PEER_MEMORY_SYMBOL:
            continue
        if not isinstance(symbol.provider, Unknown):
            # Whoever was built with the symbol depends on the module that exports it.
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
    for need in needs:
        module = facts.modules.get(need)
        if module is not None and module.state is ModuleState.NOT_LOADED:
            return need
    return None
