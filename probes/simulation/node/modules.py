"""The loaded kernel modules of a simulated node: /proc/modules, /sys/module, and what uses them."""

from __future__ import annotations

from collections.abc import Mapping

from probes.simulation.node.services import ONESHOT
from probes.simulation.node.tree import Content, Tree, hash_of, needs_of
from probes.simulation.node.waves import phase, regions

PEERMEM = "nvidia_peermem"
PEERMEM_PARAMETERS = {"peerdirect_support": "0", "persistent_api_support": "1"}
_MEMORY_PEERS = "/sys/kernel/mm/memory_peers/nv_mem"


def grow_modules(tree: Tree) -> None:
    """Adds what the kernel says of the modules that are loaded, and the counters of memory peers."""
    node = tree.description
    tree.add("/proc/modules", lambda seconds: _proc_modules(tree, seconds))
    for name in node.modules.live:
        version = node.driver.version if name.startswith("nvidia") else ""
        show_module(tree, name, version, srcversion_of(name))
    if node.gpudirect.memory_peers and node.offers_gdr:
        show_memory_peers(tree, node.gpudirect.regions)


def srcversion_of(name: str) -> str:
    """The checksum of a module's source, as its file and /sys/module have it."""
    return f"{abs(hash_of(name)):024X}"[:24]


def show_module(
    tree: Tree, name: str, version: str, srcversion: str, parameters: Mapping[str, str] | None = None
) -> None:
    """What /sys/module has of a loaded module; parameters that are not given have their defaults."""
    base = f"/sys/module/{name}"
    tree.add(f"{base}/initstate", "live\n")
    tree.add(f"{base}/refcnt", _refcnt_file(tree, name))
    tree.add(f"{base}/srcversion", f"{srcversion}\n")
    tree.directory(f"{base}/parameters")
    if version:
        tree.add(f"{base}/version", f"{version}\n")
    defaults = PEERMEM_PARAMETERS if name == PEERMEM else {}
    for parameter, value in {**defaults, **(parameters or {})}.items():
        tree.add(f"{base}/parameters/{parameter}", f"{value}\n")


def hold_modules(tree: Tree) -> None:
    """The references of services and of the training job that has been running since before."""
    gpus = len(tree.gpus)
    for service in tree.units:
        hold_by_service(tree, service)
    of_services = sum(count(0.0) for (module, _), count in tree.holds.items() if module == "nvidia")
    # Whoever has a verbs device open holds ib_uverbs and the device's driver (ib_uverbs_open).
    counts = {
        "nvidia": 4 * gpus - of_services,
        **dict.fromkeys(("nvidia_uvm", "ib_uverbs", "mlx4_ib", "mlx5_ib"), 2 * gpus),
    }
    for module, count in counts.items():
        if module in tree.live_modules:
            _hold(tree, module, "job", count)
    if PEERMEM in tree.live_modules and tree.description.offers_gdr:
        mean, angle = tree.description.gpudirect.regions, phase(tree.seed, "regions")
        tree.holds[PEERMEM, "job"] = lambda seconds: regions(mean, angle, seconds)


def end_rdma_traffic(tree: Tree) -> None:
    """The job uses no RDMA: the NICs' byte counters stand still, and it holds no memory region."""
    tree.holds.pop((PEERMEM, "job"), None)
    for nic in tree.nics:
        for name in ("port_xmit_data", "port_rcv_data"):
            path = f"{nic.path}/infiniband/{nic.name}/ports/1/counters/{name}"
            if path in tree.files:
                tree.add(path, "3200000000\n")


def hold_by_service(tree: Tree, service: str) -> None:
    """A service of the driver opens its device files."""
    if not service.startswith("nvidia-") or service in ONESHOT or "nvidia" not in tree.live_modules:
        return
    _hold(tree, "nvidia", service, len(tree.gpus) if service == "nvidia-persistenced" else 1)


def _hold(tree: Tree, module: str, holder: str, count: int) -> None:
    tree.holds[module, holder] = lambda seconds: count


def users_of(tree: Tree, name: str) -> list[str]:
    """The loaded modules that hold a module."""
    return [user for user in tree.live_modules if name in needs_of(tree.description, user)]


def refcnt(tree: Tree, name: str, seconds: float) -> int:
    """A module's reference count: its users, and what processes hold."""
    held = sum(count(seconds) for (module, _), count in list(tree.holds.items()) if module == name)
    return held + len(users_of(tree, name))


def _refcnt_file(tree: Tree, name: str) -> Content:
    return lambda seconds: f"{refcnt(tree, name, seconds)}\n"


def _proc_modules(tree: Tree, seconds: float) -> str:
    lines = []
    for name in reversed(tree.live_modules):
        users = "".join(f"{user}," for user in users_of(tree, name)) or "-"
        taint = " (OE)" if name.startswith("nvidia") else ""
        lines.append(f"{name} 65536 {refcnt(tree, name, seconds)} {users} Live 0x0000000000000000{taint}\n")
    return "".join(lines)


def show_memory_peers(tree: Tree, earlier: int) -> None:
    """The counters of nv_mem, which began with so many regions that came and went."""
    region_bytes = 64 << 20

    def live(seconds: float) -> int:
        return refcnt(tree, PEERMEM, seconds)

    tree.add(f"{_MEMORY_PEERS}/version", f"{tree.description.driver.version}\n")
    tree.add(f"{_MEMORY_PEERS}/num_alloc_mrs", lambda seconds: f"{4 * earlier + live(seconds)}\n")
    tree.add(f"{_MEMORY_PEERS}/num_dealloc_mrs", f"{4 * earlier}\n")
    tree.add(
        f"{_MEMORY_PEERS}/num_reg_bytes", lambda seconds: f"{(4 * earlier + live(seconds)) * region_bytes}\n"
    )
    tree.add(f"{_MEMORY_PEERS}/num_dereg_bytes", f"{4 * earlier * region_bytes}\n")
