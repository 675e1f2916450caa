"""Loaded kernel modules of a simulated node: /proc/modules, /sys/module, and their users."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import VERBS_MODULES
from probes.facts.rdma.port_health import PORT_DATA
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.jobs.programs import peermem_regions
from probes.simulation.node.model.tree import (
    PEERMEM_REGION_BYTES,
    VENDOR_PREFIXES,
    Tree,
    Via,
    dependencies_of,
    hash_of,
)
from probes.simulation.node.system.services import ONESHOT

PEERMEM_PARAMETERS = {"peerdirect_support": "0", "persistent_api_support": "1"}
# Of vendors' modules that name one (amzn-drivers, MODULE_VERSION).
VERSIONS = {"efa": "2.15.3g", "efa_nv_peermem": "1.2.2"}
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
        for name in PORT_DATA:
            path = f"{port_of(nic)}/counters/{name}"
            if path in tree.files:
                tree.add(path, "3200000000\n")


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
