"""The kernel modules of the ladder: which are loaded, and which can be loaded."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from probes.base.data_files import read_text
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, because, known, map_known
from probes.facts.kernel import depmod
from probes.facts.kernel import release as kernel
from probes.facts.kernel.modprobe_config import InstallLine, LoadingRules, read_rules
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.pci import nic_families
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.nic_families import CONNECTX
from probes.host.protocol import Host
from probes.host.values import PROC_MODULES, read_integer

PEERMEM = "nvidia_peermem"
EFA_PEERMEM = "efa_nv_peermem"
PROC_MODULES_LIMIT_BYTES = 1024 * 1024
MAX_PARAMETERS = 96  # nvidia_uvm has about sixty
_NO_MODULES = "this kernel has no modules, or /proc is hidden"


class ModuleState(Enum):
    """State of a module (/proc/modules and /sys/module/NAME/initstate)."""

    LIVE = "live"
    LOADING = "loading"
    UNLOADING = "unloading"
    BUILTIN = "builtin"
    NOT_LOADED = "not loaded"


@frozen
class KernelModule:
    """One module of the ladder."""

    name: str  # with underscores, as /proc/modules has it
    state: Maybe[ModuleState]
    refcnt: Maybe[int]  # NOT_THERE: not loaded, built in, or a kernel without unloading
    used_by: tuple[str, ...]  # modules that use it
    version: Maybe[str]
    srcversion: Maybe[str]
    taint: Maybe[str]
    parameters: dict[str, Maybe[str]]
    # The .ko for the running kernel; NOT_THERE: none or built in; FILE_MISSING: there is no modules.dep.
    on_disk: Maybe[str]
    origin: Maybe[str]  # who installed it, from its path: "kernel", "DKMS", "OFED", "extra", "updates"
    depends: Maybe[tuple[str, ...]]  # direct and indirect, from modules.dep, load order
    blacklisted: str | None  # "/etc/modprobe.d/x.conf:3", the line that blacklists it
    install_line: InstallLine | None  # its command runs instead of loading
    persistent: str | None  # file of modules-load.d that loads it at boot
    kernel_forbids: bool = False  # module_blacklist= of the kernel's command line: the kernel refuses it
    softdep: str | None = None  # "/etc/modprobe.d/x.conf:3: softdep nvidia post: nvidia_peermem": loads it

    @property
    def is_not_installed(self) -> bool:
        """Whether the module is neither loaded nor on disk for the running kernel."""
        is_off = self.state is ModuleState.NOT_LOADED
        return is_off and isinstance(self.on_disk, Unknown) and self.on_disk.reason is Reason.NOT_THERE


@frozen
class SymbolProvider:
    """The module that exports a symbol which another module needs."""

    symbol: str  # "ib_register_peer_memory_client"
    needed_by: str
    # Module, never "vmlinux"; NOT_THERE: none on disk exports it; FILE_MISSING: there is no modules.symbols.
    provider: Maybe[str]
    path: Maybe[str] = Unknown(Reason.NOT_RECORDED)  # of its file


@frozen
class Rung:
    """One step of the ladder, in load order."""

    module: str
    needs: tuple[str, ...]  # modules of the ladder that must be loaded first (modules.dep)
    why: str  # one line for the admin: what does not work without it
    core: bool  # part of the ladder proper; the others are companions


@frozen
class ModuleFacts:
    """The ladder in load order, and the facts behind it."""

    kernel_release: Maybe[str]
    modules: dict[str, KernelModule]  # every module of LADDER
    ladder: tuple[Rung, ...]
    symbols: tuple[SymbolProvider, ...]
    memory_peers: Maybe[tuple[str, ...]]  # clients below /sys/kernel/mm/memory_peers
    rules_unread: tuple[str, ...] = ()  # files of modprobe.d and modules-load.d that could not be read
    loading_disabled: bool = False  # kernel.modules_disabled: no loading or unloading until a reboot
    signed_only: bool = False  # module.sig_enforce, lockdown: modules need a trusted signature

    @property
    def peer_memory(self) -> SymbolProvider | None:
        """What exports the peer-memory symbol, which nvidia_peermem needs."""
        return next((row for row in self.symbols if row.symbol == PEER_MEMORY_SYMBOL), None)

    @property
    def file_names(self) -> dict[str, str]:
        """The modules whose files have other names, as modinfo takes them; Debian's driver has such files."""
        paths = {name: known(row.on_disk, name).encode() for name, row in self.modules.items()}
        files = {name: depmod.module_name(path) for name, path in paths.items()}
        return {name: file for name, file in files.items() if file != name}


CORE_LADDER = ("ib_core", *CONNECTX.modules, "nvidia", "nvidia_uvm", PEERMEM)

_LINES = read_text(__package__, "ladder.txt").splitlines()[1:]
_ROWS = [(*names.split(), why) for names, _, why in (line.partition(": ") for line in _LINES)]
USUAL_NEEDS = {name: tuple(needs) for name, *needs, _ in _ROWS}
"""Dependencies for a node without modules.dep, in load order."""
_WHY = {name: why for name, *_, why in _ROWS}
LADDER = tuple(USUAL_NEEDS)
"""All modules in load order: a module comes after those it needs."""
COMPANIONS = tuple(name for name in LADDER if name not in CORE_LADDER)
_FAMILY_OF = {
    **{name: family for family in nic_families.LADDER_FAMILIES for name in family.modules},
    EFA_PEERMEM: nic_families.EFA,
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
PRESENT = (ModuleState.LIVE, ModuleState.BUILTIN)


@frozen
class LoadedModule:
    """One line of /proc/modules."""

    state: Maybe[ModuleState]
    refcnt: Maybe[int]
    used_by: tuple[str, ...]
    taint: str  # "POE"; "" is none


def probe(host: Host) -> ModuleFacts:
    """Read /proc/modules, /sys/module, /lib/modules/RELEASE and modprobe.d."""
    release = kernel.read_release(host)
    rules = read_rules(host, kernel.read_cmdline(host))
    tree = depmod.read_tree(host, release, rules.file_names(LADDER))
    listed = because(host.read(PROC_MODULES, PROC_MODULES_LIMIT_BYTES), _NO_MODULES)
    loaded = map_known(listed, parse_proc_modules)
    modules = {name: _module(host, name, loaded, tree, rules) for name in LADDER}
    peers = host.names("/sys/kernel/mm/memory_peers")
    return ModuleFacts(
        kernel_release=release,
        modules=modules,
        ladder=tuple(_rung(modules[name]) for name in LADDER),
        symbols=tuple(_symbol_provider(tree, symbol, user) for symbol, user in _SYMBOLS),
        memory_peers=peers if isinstance(peers, Unknown) else tuple(printable(name, 64) for name in peers),
        rules_unread=rules.unread,
        loading_disabled=known(kernel.read_modules_disabled(host), False),
        signed_only=known(kernel.read_signatures_enforced(host), False),
    )


def _symbol_provider(tree: depmod.ModuleTree, symbol: str, user: str) -> SymbolProvider:
    provider = depmod.find_provider(tree, symbol)
    file = map_known(provider, lambda name: depmod.find_module(tree, name))
    return SymbolProvider(symbol, user, provider, map_known(file, lambda entry: entry.path))


def has_ofed_peer_memory(modules: ModuleFacts) -> Maybe[bool]:
    """Return whether the peer-memory interface is OFED's; some Ubuntu kernels have one, too (bug 1923104)."""
    if modules.peer_memory is None:
        return Unknown(Reason.NOT_RECORDED, "modules.symbols")
    provider = modules.peer_memory.provider
    if isinstance(provider, Unknown):
        return provider
    exporter = modules.modules.get(provider)
    return False if exporter is None else map_known(exporter.origin, lambda origin: origin != "kernel")


def for_cards(facts: ModuleFacts, pci: Maybe[PciFacts]) -> ModuleFacts:
    """Fit the ladder to the cards on the bus: mlx4, EFA's and Slingshot's modules only where a card is."""
    if isinstance(pci, Unknown):
        return facts
    here = [family for family in nic_families.FAMILIES if nic_families.cards_of(pci, family)]
    mellanox = [family for family in nic_families.MELLANOX if family in here]
    unused: tuple[str, ...] = ()
    if not mellanox and any(family in here for family in nic_families.PLUGIN_ONLY):
        # EFA has no use for nvidia_peermem, and Slingshot none for the RDMA stack either.
        unused = (*CONNECTX.modules, PEERMEM, *(() if nic_families.EFA in here else ("ib_core", "ib_uverbs")))
    ladder = []
    for rung in facts.ladder:
        family = _FAMILY_OF.get(rung.module)
        if family in (None, CONNECTX):
            is_needless = rung.module in unused or (
                family in nic_families.MELLANOX and mellanox == [nic_families.CONNECTX_3]
            )
            rung = replace(rung, core=rung.core and not is_needless)
        elif family in here:
            rung = replace(rung, core=rung.module != EFA_PEERMEM)
        elif facts.modules[rung.module].state not in PRESENT:
            continue
        else:
            rung = replace(rung, core=False)
        ladder.append(rung)
    return replace(facts, ladder=tuple(ladder))


def parse_proc_modules(text: str, names: tuple[str, ...] = LADDER) -> dict[str, LoadedModule]:
    """Parse the lines of /proc/modules for `names`: `name size refcnt users state address (taints)`.

    The fourth column lists the users of the module (not its dependencies), each followed by a comma, and
    `[permanent]` if it cannot be unloaded (kernel/module/procfs.c, m_show).
    """
    rows = (line.split() for line in text.split("\n"))
    return {words[0]: _loaded_module(words) for words in rows if words and words[0] in names}


def _loaded_module(words: list[str]) -> LoadedModule:
    malformed = Unknown(Reason.MALFORMED, PROC_MODULES, printable(" ".join(words), 160))
    if len(words) < 5:
        return LoadedModule(malformed, malformed, (), "")
    refcnt: Maybe[int] = malformed
    if words[2] == "-":
        refcnt = Unknown(Reason.NOT_THERE, PROC_MODULES, "this kernel cannot unload modules")
    elif words[2].isascii() and words[2].isdecimal() and len(words[2]) < 12:
        refcnt = int(words[2])
    users = tuple(printable(user, 64) for user in words[3].split(",") if user not in ("", "-", "[permanent]"))
    # "(OE+)": a plus while it loads, a minus while it is unloaded.
    taint = printable(words[-1].strip("()+-"), 32) if words[-1].startswith("(") else ""
    return LoadedModule(_STATES.get(words[4], malformed), refcnt, users, taint)


def _module(
    host: Host,
    name: str,
    loaded: Maybe[dict[str, LoadedModule]],
    tree: depmod.ModuleTree,
    rules: LoadingRules,
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
        refcnt = read_integer(host, f"{directory}/refcnt", signed=True)
        taint = _attribute(host, f"{directory}/taint")
    file = depmod.find_module(tree, name)
    if built_in and isinstance(file, Unknown):
        file = Unknown(Reason.NOT_THERE, f"{tree.directory}/modules.builtin", "built into the kernel")
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
        origin=file if isinstance(file, Unknown) else depmod.origin_of(file.relative),
        depends=file if isinstance(file, Unknown) else file.depends,
        blacklisted=rules.blacklisted(name),
        install_line=rules.install_line(name),
        persistent=rules.at_boot.get(name),
        kernel_forbids=name in rules.boot.kernel,
        softdep=rules.config.softdeps.get(name),
    )


def _state_without_line(
    host: Host, name: str, loaded: Maybe[dict[str, LoadedModule]], tree: depmod.ModuleTree
) -> Maybe[ModuleState]:
    """Return the state of a module that /proc/modules does not list, or of any without that file."""
    listed = depmod.is_builtin(tree, name)
    if not isinstance(listed, Unknown):
        if listed:
            return ModuleState.BUILTIN
        if not isinstance(loaded, Unknown):
            return ModuleState.NOT_LOADED
    # A built-in module has a directory only if it has parameters or a version, and never an initstate.
    initstate = host.read(f"/sys/module/{name}/initstate")
    if not isinstance(initstate, Unknown):
        malformed = Unknown(Reason.MALFORMED, f"/sys/module/{name}/initstate", printable(initstate, 40))
        return _INIT_STATES.get(initstate, malformed)
    if not isinstance(host.names(f"/sys/module/{name}"), Unknown):
        return ModuleState.BUILTIN
    return loaded if isinstance(loaded, Unknown) else ModuleState.NOT_LOADED


def _attribute(host: Host, path: str) -> Maybe[str]:
    return map_known(host.read(path), lambda text: printable(text, 128))


def _parameters(host: Host, directory: str) -> dict[str, Maybe[str]]:
    values: dict[str, Maybe[str]] = {}
    for name in known(host.names(directory), ())[:MAX_PARAMETERS]:
        value = _attribute(host, f"{directory}/{name}")
        if not isinstance(value, Unknown) or value.reason is not Reason.NEEDS_ROOT:
            values[printable(name, 64)] = value
    return values


def _rung(module: KernelModule) -> Rung:
    if isinstance(module.depends, Unknown):
        needs = USUAL_NEEDS[module.name]
    else:
        needs = tuple(name for name in LADDER if name in module.depends)
    return Rung(module.name, needs, _WHY[module.name], module.name in CORE_LADDER)
