"""Products that packages bring to a simulated node, and that a new node does not have yet."""

from __future__ import annotations

from probes.facts.system.tool_names import PERFTEST, PROGRAMS
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.system.services import stop

DRIVER, FABRIC_MANAGER, SUBNET_MANAGER, IMEX, TESTS = (
    "driver",
    FABRIC_MANAGER,
    "nvlsm",
    "nvidia-imex",
    "perftest",
)

# How the names of its files begin; the first that matches counts. "": no package of setup brings them.
_FILES = (
    *((name, TESTS) for name in PERFTEST),
    *(("nv-fabricmanager", FABRIC_MANAGER), (FABRIC_MANAGER, FABRIC_MANAGER), ("nvlsm", SUBNET_MANAGER)),
    *((name, DRIVER) for name in ("libcuda.so", "libnvidia-", "nvidia-smi", "nvidia-modprobe")),
    *(("nvidia-persistenced", DRIVER), ("nvidia-imex", IMEX)),
    *((name, "") for name in ("libgdrapi", "libnccl", "nvidia-dcgm", "nv-hostengine")),
    *((program.name, "") for program in PROGRAMS),
)
_SERVICES = ("nvidia-", "nv-")
_DRIVER_DIRECTORY = "/usr/share/nvidia"
_REPOSITORIES = {
    "ubuntu": "/etc/apt/sources.list.d",
    "debian": "/etc/apt/sources.list.d",
    "sles": "/etc/zypp/repos.d",
}


def remove_products(tree: Tree) -> None:
    """Stop NVIDIA's services, and remove NVIDIA's files and all benchmark tools until packages bring them."""
    tree.directory(_REPOSITORIES.get(tree.description.system.id, "/etc/yum.repos.d"))
    for service in [name for name in tree.units if name.startswith(_SERVICES)]:
        stop(tree, service)
    for path in [*tree.files, *tree.links]:
        name = path.rpartition("/")[2]
        found = (product for beginning, product in _FILES if name.startswith(beginning))
        product = DRIVER if path.startswith(_DRIVER_DIRECTORY) else next(found, None)
        if product is not None:
            removed = tree.remove(path)
            tree.not_installed.setdefault(product, []).append(removed)


def install_product(tree: Tree, product: str) -> None:
    """Bring the files that were missing; those of modules are modinfo's."""
    for removed in tree.not_installed.pop(product, ()):
        tree.restore(removed)
