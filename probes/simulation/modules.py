"""The kernel modules of a simulated node: those loaded, what holds them, and the index of those on disk."""

from __future__ import annotations

from probes.simulation.description import NodeDescription
from probes.simulation.liveliness import phase, regions
from probes.simulation.tree import Content, Tree, file_of, hash_of, needs_of

_EXPORTS = {
    "ib_register_client": "ib_core",
    "ib_uverbs_get_ucontext_file": "ib_uverbs",
    "rdma_create_id": "rdma_cm",
    "mlx5_core_create_mkey": "mlx5_core",
    "nvidia_p2p_get_pages": "nvidia",
    "nvUvmInterfaceRegisterUvmCallbacks": "nvidia",
}


def grow_modules(tree: Tree) -> None:
    """Adds what the kernel and depmod(8) say of modules, and the counters of memory peers."""
    node = tree.description
    base = f"/lib/modules/{node.kernel}"
    on_disk = [*node.modules.live, *node.modules.on_disk]
    tree.add(f"{base}/modules.dep", "".join(_dependency_line(node, name) for name in on_disk))
    exports = {symbol: module for symbol, module in _EXPORTS.items() if module in on_disk}
    if node.modules.ofed:
        exports["ib_register_peer_memory_client"] = "ib_core"
        exports["ib_unregister_peer_memory_client"] = "ib_core"
    tree.add(f"{base}/modules.symbols", "".join(f"alias symbol:{s} {m}\n" for s, m in exports.items()))
    tree.add(f"{base}/modules.builtin", "kernel/fs/ext4/ext4.ko\n")
    tree.add(
        "/etc/modules-load.d/nvidia.conf",
        "nvidia_peermem\n" if "nvidia_peermem" in node.modules.live else "# none\n",
    )
    tree.add("/proc/modules", lambda seconds: _proc_modules(tree, seconds))
    for name in node.modules.live:
        tree.add(f"/sys/module/{name}/initstate", "live\n")
        tree.add(f"/sys/module/{name}/refcnt", _refcnt_file(tree, name))
        tree.add(f"/sys/module/{name}/srcversion", f"{abs(hash_of(name)):024X}"[:24] + "\n")
        tree.directory(f"/sys/module/{name}/parameters")
        if name.startswith("nvidia"):
            tree.add(f"/sys/module/{name}/version", f"{node.driver.version}\n")
    if "nvidia_peermem" in node.modules.live:
        tree.add("/sys/module/nvidia_peermem/parameters/peerdirect_support", "0\n")
        tree.add("/sys/module/nvidia_peermem/parameters/persistent_api_support", "1\n")
    if node.gpudirect.memory_peers:
        _memory_peers(tree)


def _refcnt_file(tree: Tree, name: str) -> Content:
    return lambda seconds: f"{_refcnt(tree, name, seconds)}\n"


def _dependency_line(node: NodeDescription, name: str) -> str:
    found: list[str] = []
    waiting = list(needs_of(node, name))
    while waiting:
        need = waiting.pop(0)
        if need not in found:
            found.append(need)
            waiting.extend(needs_of(node, need))
    return f"{file_of(node, name)}: {' '.join(file_of(node, need) for need in found)}".rstrip() + "\n"


def _users_of(tree: Tree, name: str) -> list[str]:
    """The loaded modules that hold a module."""
    return [user for user in tree.live_modules if name in needs_of(tree.description, user)]


def _refcnt(tree: Tree, name: str, seconds: float) -> int:
    """A module's reference count: its users, and what processes hold."""
    count = len(_users_of(tree, name))
    if name == "nvidia_peermem":
        return regions(tree.description.gpudirect.regions, phase(tree.seed, "regions"), seconds)
    if name == "nvidia":
        return count + 4 * len(tree.gpus)
    return count + (2 * len(tree.gpus) if name in ("nvidia_uvm", "ib_uverbs") else 0)


def _proc_modules(tree: Tree, seconds: float) -> str:
    lines = []
    for name in reversed(tree.live_modules):
        users = "".join(f"{user}," for user in _users_of(tree, name)) or "-"
        taint = " (OE)" if name.startswith("nvidia") else ""
        lines.append(f"{name} 65536 {_refcnt(tree, name, seconds)} {users} Live 0x0000000000000000{taint}\n")
    return "".join(lines)


def _memory_peers(tree: Tree) -> None:
    base = "/sys/kernel/mm/memory_peers/nv_mem"
    angle = phase(tree.seed, "regions")
    count = tree.description.gpudirect.regions
    region_bytes = 64 << 20

    def live(seconds: float) -> int:
        return regions(count, angle, seconds)

    tree.add(f"{base}/version", f"{tree.description.driver.version}\n")
    tree.add(f"{base}/num_alloc_mrs", lambda seconds: f"{4 * count + live(seconds)}\n")
    tree.add(f"{base}/num_dealloc_mrs", f"{4 * count}\n")
    tree.add(f"{base}/num_reg_bytes", lambda seconds: f"{(4 * count + live(seconds)) * region_bytes}\n")
    tree.add(f"{base}/num_dereg_bytes", f"{4 * count * region_bytes}\n")
