"""Files that depmod(8) writes on a simulated node."""

from __future__ import annotations

from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Tree, dependencies_of, module_path

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


def add_module_index(tree: Tree) -> None:
    """Add modules.dep, modules.symbols, modules.builtin, and the modules to load at boot."""
    node = tree.description
    base = f"/lib/modules/{node.kernel}"
    names = modules_on_disk(node)
    tree.add(f"{base}/modules.dep", "".join(_dependency_line(node, name) for name in names))
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


def read_index(tree: Tree) -> dict[str, tuple[str, ...]]:
    """Return module -> direct and indirect dependencies, from modules.dep."""
    lines = tree.text(f"/lib/modules/{tree.description.kernel}/modules.dep").splitlines()
    index = {}
    for line in lines:
        file, _, dependencies = line.partition(":")
        index[module_of_file(file)] = tuple(module_of_file(dependency) for dependency in dependencies.split())
    return index


def write_index(tree: Tree, files: dict[str, dict[str, str]]) -> None:
    """Write modules.dep like `depmod -a`; `files` has the modinfo fields of each module."""
    base = f"/lib/modules/{tree.description.kernel}"
    paths = {name: fields["filename"].removeprefix(f"{base}/") for name, fields in files.items()}

    def dependencies(name: str, seen: tuple[str, ...] = ()) -> list[str]:
        direct = files.get(name, {}).get("depends", "").replace("-", "_").split(",")
        found: list[str] = []
        for dependency in direct:
            if dependency in paths and dependency not in seen:
                found += [dependency, *dependencies(dependency, (*seen, name))]
        return found

    lines = [
        _line(path, [paths[dependency] for dependency in dict.fromkeys(dependencies(name))])
        for name, path in paths.items()
    ]
    tree.add(f"{base}/modules.dep", "".join(lines))


def _line(path: str, dependencies: list[str]) -> str:
    return f"{path}: {' '.join(dependencies)}".rstrip() + "\n"


def _dependency_line(node: NodeDescription, name: str) -> str:
    found: list[str] = []
    waiting = list(dependencies_of(node, name))
    while waiting:
        dependency = waiting.pop(0)
        if dependency not in found:
            found.append(dependency)
            waiting.extend(dependencies_of(node, dependency))
    return _line(module_path(node, name), [module_path(node, dependency) for dependency in found])
