"""Kernel modules of the ladder: what is loaded, what could be, and why not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.host import Host
from probes.kernel import read_cmdline, read_modules_disabled, read_release, read_signatures_enforced
from probes.modprobe_config import LoadingRules, read_rules
from probes.module_tree import (
    ModuleTree,
    find_module,
    find_provider,
    is_builtin,
    read_tree,
    who_put_it,
)
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown, known

PROC_MODULES = "/proc/modules"
PROC_MODULES_LIMIT_BYTES = 1024 * 1024
MAX_PARAMETERS = 96  # nvidia_uvm has about sixty


class ModuleState(Enum):
    """Where a module stands; /proc/modules and /sys/module/NAME/initstate."""

    LIVE = "live"
    LOADING = "loading"
    UNLOADING = "unloading"
    BUILTIN = "builtin"
    NOT_LOADED = "not loaded"


@dataclass(frozen=True)
class KernelModule:
    """One module of the ladder."""

    name: str  # with underscores, as /proc/modules has it
    state: Maybe[ModuleState]
    refcnt: Maybe[int]  # NOT_THERE: not loaded, built in, or a kernel without unloading
    used_by: tuple[str, ...]  # modules that hold it
    version: Maybe[str]
    srcversion: Maybe[str]
    taint: Maybe[str]
    parameters: dict[str, Maybe[str]]
    on_disk: Maybe[str]  # path of the .ko for the running kernel; NOT_THERE: none or built in;
    #                      NOT_RECORDED: there is no modules.dep to look in
    origin: Maybe[str]  # "kernel", "DKMS", "OFED", "extra", "updates": who put it there, from its path
    depends: Maybe[tuple[str, ...]]  # direct and indirect, from modules.dep, load order
    blacklisted: str | None  # "/etc/modprobe.d/x.conf:3", the line that blacklists it
    install_line: str | None  # "/etc/modprobe.d/x.conf:3: install nvidia /bin/false" replaces its loading
    persistent: str | None  # file of modules-load.d that names it
    kernel_forbids: bool = False  # module_blacklist= of the kernel's command line: no way of loading works


@dataclass(frozen=True)
class SymbolProvider:
    """Which module really exports a symbol that the next one needs."""

    symbol: str  # "ib_register_peer_memory_client"
    needed_by: str
    provider: Maybe[str]  # module name, "vmlinux" not included; NOT_THERE: no module on disk exports it;
    #                       NOT_RECORDED: there is no modules.symbols to look in


@dataclass(frozen=True)
class Rung:
    """One step of the ladder, in load order."""

    module: str
    needs: tuple[str, ...]  # modules of the ladder that must be there before (as modules.dep says)
    why: str  # one line for the admin: what is lost without it
    core: bool  # one of the six of the ladder proper; others are companions


@dataclass(frozen=True)
class ModuleFacts:
    """The ladder in load order, and what is behind it."""

    kernel_release: Maybe[str]
    modules: dict[str, KernelModule]  # every module of LADDER
    ladder: tuple[Rung, ...]
    symbols: tuple[SymbolProvider, ...]
    memory_peers: Maybe[tuple[str, ...]]  # clients below /sys/kernel/mm/memory_peers
    rules_unread: tuple[str, ...] = ()  # files of modprobe.d, modules-load.d that are there, but not readable
    loading_disabled: bool = False  # kernel.modules_disabled: nothing is loaded or unloaded until a reboot
    signed_only: bool = False  # module.sig_enforce, lockdown: a module without a trusted signature is refused


CORE_LADDER = ("ib_core", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_uvm", "nvidia_peermem")
COMPANIONS = ("ib_uverbs", "rdma_cm", "nv_peer_mem", "gdrdrv", "nvidia_fs")


LADDER = (
    "ib_core",
    "ib_uverbs",
    "rdma_cm",
    "mlx5_core",
    "mlx5_ib",
    "nvidia",
    "nvidia_uvm",
    "nv_peer_mem",
    "nvidia_peermem",
    "gdrdrv",
    "nvidia_fs",
)
"""All of them in load order: what a module needs stands before it."""

PEER_MEMORY_SYMBOL = "ib_register_peer_memory_client"

# What the modules need of each other where there is no modules.dep to say so.
_USUAL_NEEDS = {
    "ib_core": (),
    "ib_uverbs": ("ib_core",),
    "rdma_cm": ("ib_core",),
    "mlx5_core": (),
    "mlx5_ib": ("ib_core", "ib_uverbs", "mlx5_core"),
    "nvidia": (),
    "nvidia_uvm": ("nvidia",),
    "nv_peer_mem": ("ib_core", "nvidia"),
    "nvidia_peermem": ("ib_core", "ib_uverbs", "nvidia"),
    "gdrdrv": ("nvidia",),
    "nvidia_fs": ("nvidia",),
}

_WHY = {
    "ib_core": "the RDMA stack itself: without it there are no HCAs and no ports",
    "ib_uverbs": "verbs for programs (/dev/infiniband/uverbsN): without it no RDMA outside of the kernel",
    "rdma_cm": "connections by IP address (ib_write_bw -R, NVMe-oF, UCX rdmacm); NCCL does without it",
    "mlx5_core": "the driver of ConnectX and BlueField cards: without it they are no devices at all",
    "mlx5_ib": "makes RDMA devices of the cards: without it they are network interfaces only",
    "nvidia": "the GPU driver: without it there is no GPU memory to reach",
    "nvidia_uvm": "CUDA's memory manager: without it no CUDA program starts; GPUDirect RDMA does not use it",
    "nv_peer_mem": "predecessor of nvidia_peermem and in conflict with it: only one of the two can be loaded",
    "nvidia_peermem": "lets NICs register GPU memory the old way; not needed where DMA-BUF works",
    "gdrdrv": "GDRCopy: the CPU's own small copies from and to GPU memory; not on the NIC's path",
    "nvidia_fs": "GPUDirect Storage: files straight to GPU memory; not needed for GPUDirect RDMA",
}

_SYMBOLS = (
    (PEER_MEMORY_SYMBOL, "nvidia_peermem"),
    ("nvidia_p2p_get_pages", "nvidia_peermem"),
    ("nvUvmInterfaceRegisterUvmCallbacks", "nvidia_uvm"),
    ("ib_register_client", "ib_uverbs"),
    ("mlx5_core_create_mkey", "mlx5_ib"),
)

_STATES = {"Live": ModuleState.LIVE, "Loading": ModuleState.LOADING, "Unloading": ModuleState.UNLOADING}
_INIT_STATES = {"live": ModuleState.LIVE, "coming": ModuleState.LOADING, "going": ModuleState.UNLOADING}
_PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)


@dataclass(frozen=True)
class LoadedModule:
    """One line of /proc/modules."""

    state: Maybe[ModuleState]
    refcnt: Maybe[int]
    used_by: tuple[str, ...]
    taint: str  # "POE"; "" is none


def probe(host: Host) -> ModuleFacts:
    """Reads /proc/modules, /sys/module, /lib/modules/RELEASE and modprobe.d."""
    release = read_release(host)
    tree = read_tree(host, release)
    rules = read_rules(host, read_cmdline(host))
    loaded = _loaded(host)
    modules = {name: _module(host, name, loaded, tree, rules) for name in LADDER}
    peers = host.names("/sys/kernel/mm/memory_peers")
    return ModuleFacts(
        kernel_release=release,
        modules=modules,
        ladder=tuple(_rung(modules[name]) for name in LADDER),
        symbols=tuple(
            SymbolProvider(symbol, needed_by, find_provider(tree, symbol)) for symbol, needed_by in _SYMBOLS
        ),
        memory_peers=peers if isinstance(peers, Unknown) else tuple(printable(name, 64) for name in peers),
        rules_unread=rules.unread,
        loading_disabled=known(read_modules_disabled(host), False),
        signed_only=known(read_signatures_enforced(host), False),
    )


def parse_proc_modules(text: str, names: tuple[str, ...] = LADDER) -> dict[str, LoadedModule]:
    """The lines of /proc/modules about `names`: `name size refcnt users state address (taints)`.

    The fourth column lists who uses the module, not what it depends on, with a comma behind each and
    `[permanent]` for what cannot be unloaded (kernel/module/procfs.c, m_show).
    """
    found = {}
    for line in text.split("\n"):
        words = line.split()
        if words and words[0] in names:
            found[words[0]] = _loaded_module(words)
    return found


def _loaded(host: Host) -> Maybe[dict[str, LoadedModule]]:
    text = host.read(PROC_MODULES, PROC_MODULES_LIMIT_BYTES)
    if not isinstance(text, Unknown):
        return parse_proc_modules(text)
    if text.reason is Reason.NOT_THERE:
        return Unknown(Reason.NOT_THERE, PROC_MODULES, "a kernel without modules, or /proc is hidden")
    return text


def _loaded_module(words: list[str]) -> LoadedModule:
    malformed = Unknown(Reason.MALFORMED, PROC_MODULES, printable(" ".join(words), 160))
    if len(words) < 5:
        return LoadedModule(malformed, malformed, (), "")
    refcnt: Maybe[int] = malformed
    if words[2] == "-":
        refcnt = Unknown(Reason.NOT_THERE, PROC_MODULES, "a kernel that cannot unload modules")
    elif words[2].isascii() and words[2].isdecimal() and len(words[2]) < 12:
        refcnt = int(words[2])
    users = (user for user in words[3].split(",") if user not in ("", "-", "[permanent]"))
    # "(OE+)": a plus while it loads, a minus while it goes.
    taint = printable(words[-1].strip("()+-"), 32) if words[-1].startswith("(") else ""
    return LoadedModule(
        _STATES.get(words[4], malformed), refcnt, tuple(printable(user, 64) for user in users), taint
    )


def _module(
    host: Host, name: str, loaded: Maybe[dict[str, LoadedModule]], tree: ModuleTree, rules: LoadingRules
) -> KernelModule:
    directory = f"/sys/module/{name}"
    line = None if isinstance(loaded, Unknown) else loaded.get(name)
    state = _state_without_line(host, name, loaded, tree) if line is None else line.state
    built_in = state is ModuleState.BUILTIN
    absent: Unknown | None = None
    if isinstance(state, Unknown):
        absent = state
    elif state is ModuleState.NOT_LOADED:
        absent = Unknown(Reason.NOT_THERE, directory, "not loaded")
    refcnt: Maybe[int]
    taint: Maybe[str]
    if line is not None:
        refcnt, taint = line.refcnt, line.taint
    elif absent is not None:
        refcnt, taint = absent, absent
    elif built_in:
        refcnt = taint = Unknown(Reason.NOT_THERE, directory, "built into the kernel")
    else:
        refcnt, taint = _integer(host, f"{directory}/refcnt"), _attribute(host, f"{directory}/taint")
    file = find_module(tree, name)
    if built_in and isinstance(file, Unknown):
        file = Unknown(Reason.NOT_THERE, f"{tree.directory}/modules.builtin", "built into the kernel")
    install = rules.install_line(name)
    return KernelModule(
        name=name,
        state=state,
        refcnt=refcnt,
        used_by=() if line is None else line.used_by,
        version=_attribute(host, f"{directory}/version") if absent is None else absent,
        srcversion=_attribute(host, f"{directory}/srcversion") if absent is None else absent,
        taint=taint,
        parameters=_parameters(host, f"{directory}/parameters") if absent is None else {},
        on_disk=file if isinstance(file, Unknown) else file.path,
        origin=file if isinstance(file, Unknown) else who_put_it(file.relative),
        depends=file if isinstance(file, Unknown) else file.depends,
        blacklisted=rules.blacklisted(name),
        install_line=None if install is None else str(install),
        persistent=rules.at_boot.get(name),
        kernel_forbids=name in rules.boot.kernel,
    )


def _state_without_line(
    host: Host, name: str, loaded: Maybe[dict[str, LoadedModule]], tree: ModuleTree
) -> Maybe[ModuleState]:
    """The state of a module that /proc/modules does not list, or where there is no such file."""
    listed = is_builtin(tree, name)
    if not isinstance(listed, Unknown):
        if listed:
            return ModuleState.BUILTIN
        if not isinstance(loaded, Unknown):
            return ModuleState.NOT_LOADED
    # What is built in has a directory only if it has parameters or a version, and never an initstate.
    initstate = host.read(f"/sys/module/{name}/initstate")
    if not isinstance(initstate, Unknown):
        return _INIT_STATES.get(
            initstate, Unknown(Reason.MALFORMED, f"/sys/module/{name}/initstate", printable(initstate, 40))
        )
    if not isinstance(host.names(f"/sys/module/{name}"), Unknown):
        return ModuleState.BUILTIN
    return loaded if isinstance(loaded, Unknown) else ModuleState.NOT_LOADED


def _attribute(host: Host, path: str) -> Maybe[str]:
    text = host.read(path)
    return text if isinstance(text, Unknown) else printable(text, 128)


def _integer(host: Host, path: str) -> Maybe[int]:
    text = host.read(path)
    if isinstance(text, Unknown):
        return text
    if text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 12:
        return int(text)
    return Unknown(Reason.MALFORMED, path, printable(text, 40))


def _parameters(host: Host, directory: str) -> dict[str, Maybe[str]]:
    """The parameters that may be read; of many, the first by name."""
    names = host.names(directory)
    values: dict[str, Maybe[str]] = {}
    for name in known(names, ())[:MAX_PARAMETERS]:
        value = _attribute(host, f"{directory}/{name}")
        if not isinstance(value, Unknown) or value.reason is not Reason.NEEDS_ROOT:
            values[printable(name, 64)] = value
    return values


def _rung(module: KernelModule) -> Rung:
    if isinstance(module.depends, Unknown):
        needs = _USUAL_NEEDS[module.name]
    else:
        needs = tuple(name for name in LADDER if name in module.depends)
    return Rung(module.name, needs, _WHY[module.name], module.name in CORE_LADDER)
