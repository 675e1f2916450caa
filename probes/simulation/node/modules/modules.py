"""Kernel modules of a simulated node: loaded ones and their users; files, modinfo, symbol versions, DKMS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from probes.base.unknown import Maybe
from probes.facts.kernel.module_files import PEER_MEMORY_SYMBOL
from probes.facts.kernel.modules import EFA_PEERMEM, PEERMEM
from probes.facts.kernel.symbol_versions import EXPORTED, NEEDED
from probes.facts.pci.nic_families import PLUGIN_ONLY, VERBS_MODULES
from probes.host.protocol import CommandOutput
from probes.simulation.node.devices.ports import BYTE_COUNTERS, port_of
from probes.simulation.node.jobs.programs import peermem_regions
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import (
    PEERMEM_REGION_BYTES,
    VENDOR_PREFIXES,
    Tree,
    Via,
    dependencies_of,
    hash_of,
    module_path,
)
from probes.simulation.node.system.services import ONESHOT

PEERMEM_PARAMETERS = {"peerdirect_support": "0", "persistent_api_support": "1"}
# Of vendors' modules that name one (amzn-drivers, MODULE_VERSION).
VERSIONS = {"efa": "2.17.3g", "efa_nv_peermem": "1.2.2"}
_MEMORY_PEERS = "/sys/kernel/mm/memory_peers/nv_mem"


def add_modules(tree: Tree) -> None:
    """Add the loaded modules and the counters of memory peers."""
    node = tree.description
    tree.add("/proc/modules", lambda seconds: _proc_modules(tree, seconds))
    for name in node.modules.live:
        version = node.driver.version if name.startswith("nvidia") else VERSIONS.get(name, "")
        add_module(tree, name, version, srcversion_of(name))
    if node.gpudirect.memory_peers and node.offers_gdr:
        add_memory_peers(tree, node.gpudirect.regions)


def srcversion_of(name: str) -> str:
    """Return the checksum of a module's source, as in its file and in /sys/module."""
    return f"{abs(hash_of(name)):024X}"[:24]


def add_module(
    tree: Tree, name: str, version: str, srcversion: str, parameters: Mapping[str, str] | None = None
) -> None:
    """Add a loaded module to /sys/module, with default values for the other parameters."""
    base = f"/sys/module/{name}"
    tree.add(f"{base}/initstate", "live\n")
    tree.add(f"{base}/refcnt", lambda seconds: f"{refcnt(tree, name, seconds)}\n")
    tree.add(f"{base}/srcversion", f"{srcversion}\n")
    tree.directory(f"{base}/parameters")
    if version:
        tree.add(f"{base}/version", f"{version}\n")
    defaults = PEERMEM_PARAMETERS if name == PEERMEM else {}
    tree.add_values(f"{base}/parameters", {**defaults, **(parameters or {})})


def add_module_references(tree: Tree) -> None:
    """Add the module references of services and of the running training job."""
    gpus = len(tree.gpus)
    for service in tree.units:
        add_service_references(tree, service)
    of_services = sum(count(0.0) for (module, _), count in tree.references.items() if module == "nvidia")
    # An open verbs device is a reference to ib_uverbs and to the device's driver (ib_uverbs_open).
    counts = {
        "nvidia": 4 * gpus - of_services,
        **dict.fromkeys(("nvidia_uvm", "ib_uverbs", *VERBS_MODULES), 2 * gpus),
    }
    for module, count in counts.items():
        if module in tree.live_modules:
            _add_reference(tree, module, "job", count)
    if PEERMEM in tree.live_modules and tree.description.offers_gdr:
        tree.references[PEERMEM, "job"] = lambda seconds: sum(peermem_regions(tree, seconds).values())


def end_rdma_traffic(tree: Tree) -> None:
    """Stop the job's RDMA: byte counters stand still, and it has no memory regions."""
    tree.references.pop((PEERMEM, "job"), None)
    for program in tree.programs:
        program.via = Via.TCP
    for nic in tree.nics:
        for name in BYTE_COUNTERS:
            path = f"{port_of(nic)}/{name}"
            if path in tree.files:
                tree.add(path, "3200000000\n")


def end_programs(tree: Tree) -> None:
    """End every program and its RDMA traffic."""
    end_rdma_traffic(tree)
    for name in list(tree.directories.get("/proc", set())):
        if name.isdecimal() and name not in ("1", tree.links.get("/proc/self")):
            tree.remove(f"/proc/{name}")
    tree.programs.clear()
    tree.drop_references("job")


def add_service_references(tree: Tree, service: str) -> None:
    """Add the references of a service that opens the driver's device files."""
    if not service.startswith("nvidia-") or service in ONESHOT or "nvidia" not in tree.live_modules:
        return
    _add_reference(tree, "nvidia", service, len(tree.gpus) if service == "nvidia-persistenced" else 1)


def _add_reference(tree: Tree, module: str, holder: str, count: int) -> None:
    tree.references[module, holder] = lambda seconds: count


def users_of(tree: Tree, name: str) -> tuple[str, ...]:
    """Return the loaded modules that depend on a module."""
    return _users(tuple(tree.live_modules), tree.description.modules.ofed).get(name, ())


@lru_cache(maxsize=64)
def _users(live_modules: tuple[str, ...], has_ofed: bool) -> dict[str, tuple[str, ...]]:
    """Return the users of each module that has some."""
    found: dict[str, tuple[str, ...]] = {}
    for user in live_modules:
        for name in dependencies_of(user, has_ofed):
            found[name] = (*found.get(name, ()), user)
    return found


def refcnt(tree: Tree, name: str, seconds: float) -> int:
    """Return a module's reference count: dependent modules and processes."""
    counts = [count for (module, _), count in list(tree.references.items()) if module == name]
    return sum(count(seconds) for count in counts) + len(users_of(tree, name))


def _proc_modules(tree: Tree, seconds: float) -> str:
    lines = []
    for name in reversed(tree.live_modules):
        users = "".join(f"{user}," for user in users_of(tree, name)) or "-"
        taint = " (OE)" if name.startswith(("nvidia", *VENDOR_PREFIXES)) else ""
        lines.append(f"{name} 65536 {refcnt(tree, name, seconds)} {users} Live 0x0000000000000000{taint}\n")
    return "".join(lines)


def add_memory_peers(tree: Tree, earlier: int) -> None:
    """Add the counters of nv_mem, with `earlier` regions that have come and gone."""

    def total(seconds: float) -> int:
        return 4 * earlier + refcnt(tree, PEERMEM, seconds)

    gone = {"num_dealloc_mrs": 4 * earlier, "num_dereg_bytes": 4 * earlier * PEERMEM_REGION_BYTES}
    tree.add_values(_MEMORY_PEERS, {"version": tree.description.driver.version, **gone})
    tree.add(f"{_MEMORY_PEERS}/num_alloc_mrs", lambda seconds: f"{total(seconds)}\n")
    tree.add(f"{_MEMORY_PEERS}/num_reg_bytes", lambda seconds: f"{total(seconds) * PEERMEM_REGION_BYTES}\n")


OFED_VERSIONS = {PEER_MEMORY_SYMBOL: 0x6E1AAA01, "ib_unregister_peer_memory_client": 0x6E1AAA02}
OTHER_VERSIONS = {**OFED_VERSIONS, PEER_MEMORY_SYMBOL: 0x2F90C4D7}  # of another OFED


@dataclass
class VersionTable:
    """modprobe(8): the versions of symbols in each module's file, by its path."""

    needed: dict[str, dict[str, int]] = field(default_factory=dict)
    exported: dict[str, dict[str, int]] = field(default_factory=dict)

    def __call__(self, argv: tuple[str, ...], seconds: float) -> Maybe[str | CommandOutput]:
        """Return the versions in one file, as --dump-modversions and --show-exports print them."""
        option, path = (*argv[1:3], "", "")[:2]
        files = {NEEDED: self.needed, EXPORTED: self.exported}.get(option, {})
        if path not in files:
            return CommandOutput(argv, 1, "", f"modprobe: FATAL: could not get symbols of {path}")
        return "".join(f"0x{version:08x}\t{symbol}\n" for symbol, version in files[path].items())


def version_table(tree: Tree) -> VersionTable:
    """Return the node's versions, for changes; a node without them gets an empty table."""
    table = tree.commands.setdefault("modprobe", VersionTable())
    assert isinstance(table, VersionTable)
    return table


def differing_symbol(tree: Tree, path: str) -> str:
    """Return the symbol of which a file needs another version than a loaded module exports; "": none."""
    needed = version_table(tree).needed.get(path, {})
    loaded = tree.symbol_versions
    return next((name for name, version in needed.items() if loaded.get(name, version) != version), "")


def symvers(versions: dict[str, int]) -> str:
    """Return the text of OFED's Module.symvers, against which the driver is built."""
    line = "0x{:08x}\t{}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    return "".join(line.format(version, symbol) for symbol, version in versions.items())


def parse_symvers(text: str) -> dict[str, int]:
    """Return the versions in a Module.symvers: those that a driver has which is built now."""
    return {symbol: int(version, 16) for version, symbol, *_ in map(str.split, text.splitlines())}


MODULES_LOAD = "/usr/lib/systemd/system/systemd-modules-load.service"
_VENDOR_PACKAGES = {  # module -> DKMS package
    **{family.pci_drivers[0]: family.dkms[0] for family in PLUGIN_ONLY},
    EFA_PEERMEM: "efa-nv-peermem",
}
# Modules of every kernel, which no description names.
ALWAYS_ON_DISK = ("rdma_ucm",)
_EXPORTS = {
    "ib_register_client": "ib_core",
    "ib_uverbs_get_ucontext_file": "ib_uverbs",
    "rdma_create_id": "rdma_cm",
    "mlx5_core_create_mkey": "mlx5_core",
    "nvidia_p2p_get_pages": "nvidia",
    "nvUvmInterfaceRegisterUvmCallbacks": "nvidia",
}
OFED_SYMVERS = "/usr/src/ofa_kernel/default/Module.symvers"


@dataclass
class Modinfo:
    """modinfo(8): the fields of each module's file, which a fault may change."""

    files: dict[str, dict[str, str]] = field(default_factory=dict)

    def __call__(self, argv: tuple[str, ...], seconds: float) -> Maybe[str]:
        """Return the fields of the named modules or files; unknown ones are left out. `-k` names a kernel."""
        names, below = argv[1:], "/lib/modules/"
        if names[:1] == ("-k",):
            names, below = names[2:], f"/lib/modules/{''.join(names[1:2])}/"
        by_file = {module_of_file(fields.get("filename", "")): fields for fields in self.files.values()}
        found = (self.files.get(name) or by_file.get(name) for name in names)
        blocks = [fields for fields in found if fields]
        blocks = [block for block in blocks if block.get("filename", below).startswith(below)]
        return "".join(
            f"{key + ':':<16}{line}\n"
            for block in blocks
            for key, value in block.items()
            for line in value.split("\n")
        )


def add_module_files(tree: Tree) -> None:
    """Add modinfo, the symbols to build against, DKMS, OFED and systemd-modules-load."""
    node = tree.description
    files = {name: _fields(node, name) for name in modules_on_disk(node)}
    tree.commands |= {"modinfo": Modinfo(files), "modprobe": VersionTable()}
    of_kernel = "0x1b2c3d4e\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n"
    tree.add(f"/lib/modules/{node.kernel}/build/Module.symvers", of_kernel)
    own = (name for module, name in _VENDOR_PACKAGES.items() if module in modules_on_disk(node))
    for name in ("nvidia", *(("mlnx-ofed-kernel",) if node.modules.ofed else ()), *own):
        _dkms(tree, name)
    if node.modules.ofed:
        tree.add(OFED_SYMVERS, symvers(OFED_VERSIONS))
        _add_versions(tree)
        tree.add("/usr/bin/ofed_info", "#!/bin/sh\n")
        tree.commands.setdefault("ofed_info", lambda argv, seconds: f"{node.system.ofed}:\n")
    tree.add(MODULES_LOAD, "[Unit]\nDescription=Load Kernel Modules\n")
    tree.link(
        "/usr/lib/systemd/system/sysinit.target.wants/systemd-modules-load.service",
        f"../{MODULES_LOAD.rpartition('/')[2]}",
    )
    tree.units["systemd-modules-load"] = "active"


def _add_versions(tree: Tree) -> None:
    """Add the versions of OFED's symbols: to what ib_core exports, and to what nvidia_peermem needs."""
    table, node = version_table(tree), tree.description
    base = f"/lib/modules/{node.kernel}"
    table.exported[f"{base}/{module_path(node, 'ib_core')}"] = OFED_VERSIONS
    table.needed[f"{base}/{module_path(node, PEERMEM)}"] = OFED_VERSIONS
    if "ib_core" in node.modules.live:
        tree.symbol_versions.update(OFED_VERSIONS)


def modinfo_of(tree: Tree) -> Modinfo:
    """Return the node's modinfo, for changes."""
    command = tree.commands["modinfo"]
    assert isinstance(command, Modinfo)
    return command


def set_modinfo(tree: Tree, module: str, field_name: str, value: str) -> None:
    """Set a modinfo field of a module, if its file exists."""
    if module in modinfo_of(tree).files:
        modinfo_of(tree).files[module][field_name] = value


def add_module_file(tree: Tree, name: str) -> None:
    """Add a module's file for the running kernel."""
    fields = modinfo_of(tree).files[name] = _fields(tree.description, name)
    if name == PEERMEM and fields["filename"] in (table := version_table(tree)).needed:
        table.needed[fields["filename"]] = parse_symvers(tree.text(OFED_SYMVERS))
    write_index(tree, modinfo_of(tree).files)


def add_driver_files(tree: Tree, by_dkms: bool) -> None:
    """Add the files of the NVIDIA driver's modules, built by DKMS or for the distribution's kernel."""
    for name in modules_on_disk(tree.description):
        if name.startswith("nvidia"):
            add_module_file(tree, name)
    if by_dkms:
        _dkms(tree, "nvidia")


def remove_module_file(tree: Tree, name: str) -> None:
    """Remove a module's file of the running kernel."""
    modinfo_of(tree).files.pop(name, None)
    path = f"/lib/modules/{tree.description.kernel}/modules.dep"
    lines = tree.text(path).splitlines(True)
    tree.add(path, "".join(line for line in lines if module_of_file(line.partition(":")[0]) != name))


def modinfo_fields(tree: Tree, name: str) -> dict[str, str]:
    """Return the modinfo fields of a module; empty if it has no file."""
    return modinfo_of(tree).files.get(name, {})


def _fields(node: NodeDescription, name: str) -> dict[str, str]:
    path = f"/lib/modules/{node.kernel}/{module_path(node, name)}"
    fields = {"filename": path}
    if name.startswith("nvidia"):
        fields["version"] = node.driver.version
        open_license = "Dual BSD/GPL" if name == "nvidia_peermem" else "Dual MIT/GPL"
        fields["license"] = open_license if node.driver.flavor == "open" else "NVIDIA"
    else:
        fields["license"] = "Dual BSD/GPL"
        fields["version"] = VERSIONS.get(name, "")
    fields["srcversion"] = srcversion_of(name)
    fields["depends"] = ",".join(
        need.replace("_", "-") if need.startswith("nvidia_") else need
        for need in dependencies_of(name, node.modules.ofed)
    )
    fields["name"] = name
    fields["vermagic"] = f"{node.kernel} SMP preempt mod_unload modversions"
    if node.architecture == "aarch64":
        fields["vermagic"] += " aarch64"
    if path.partition(node.kernel)[2].startswith("/kernel/"):
        fields["signer"] = "Build time autogenerated kernel key"
    return {key: value for key, value in fields.items() if value}


def _dkms(tree: Tree, name: str) -> None:
    """Add a package that is built and installed for the running kernel."""
    node = tree.description
    module = next((module for module, package in _VENDOR_PACKAGES.items() if package == name), "")
    version = node.driver.version if name == "nvidia" else VERSIONS.get(module, "24.10")
    below = f"{version}/{node.kernel}/{node.architecture}"
    file = f"{module}.ko" if module else "nvidia.ko" if name == "nvidia" else "ib_core.ko"
    tree.add(f"/var/lib/dkms/{name}/{below}/module/{file}", "")
    tree.link(f"/var/lib/dkms/{name}/kernel-{node.kernel}-{node.architecture}", below)


def add_module_index(tree: Tree) -> None:
    """Add modules.dep, modules.symbols, modules.builtin, and the modules to load at boot."""
    node = tree.description
    base = f"/lib/modules/{node.kernel}"
    names = modules_on_disk(node)
    write_index(tree, {name: _fields(node, name) for name in names})
    exports = {symbol: module for symbol, module in _EXPORTS.items() if module in names}
    if node.modules.ofed:
        exports["ib_register_peer_memory_client"] = "ib_core"
        exports["ib_unregister_peer_memory_client"] = "ib_core"
    tree.add(f"{base}/modules.symbols", "".join(f"alias symbol:{s} {m}\n" for s, m in exports.items()))
    tree.add(f"{base}/modules.builtin", "kernel/fs/ext4/ext4.ko\n")
    tree.add(
        "/etc/modules-load.d/nvidia.conf",
        "nvidia_peermem\n" if "nvidia_peermem" in node.modules.live else "# none\n",
    )


def modules_on_disk(node: NodeDescription) -> tuple[str, ...]:
    """Return the modules that have a file for the running kernel."""
    return (*node.modules.live, *node.modules.on_disk, *ALWAYS_ON_DISK)


def module_of_file(path: str) -> str:
    """Return the module name of a .ko path, with underscores."""
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def read_index(tree: Tree, file_names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return module -> direct and indirect dependencies, from modules.dep.

    `file_names`: of the modules whose files are named otherwise, as LoadingRules has them.
    """
    names = {file: module for module, file in file_names.items()}
    lines = tree.text(f"/lib/modules/{tree.description.kernel}/modules.dep").splitlines()
    index = {}
    for line in lines:
        file, _, dependencies = line.partition(":")
        modules = [module_of_file(path) for path in (file, *dependencies.split())]
        name, *needs = (names.get(module, module) for module in modules)
        index[name] = tuple(needs)
    return index


def write_index(tree: Tree, files: dict[str, dict[str, str]]) -> None:
    """Write modules.dep like `depmod -a`; `files` has the modinfo fields of each module."""
    base = f"/lib/modules/{tree.description.kernel}"
    paths = {name: fields["filename"].removeprefix(f"{base}/") for name, fields in files.items()}
    lines = []
    for name, path in paths.items():
        found: list[str] = []
        waiting = [name]
        while waiting:
            needs = files[waiting.pop(0)].get("depends", "").replace("-", "_").split(",")
            new = [need for need in needs if need in paths and need not in (*found, name)]
            found += new
            waiting += new
        lines.append(f"{path}: {' '.join(paths[need] for need in found)}".rstrip() + "\n")
    tree.add(f"{base}/modules.dep", "".join(lines))
