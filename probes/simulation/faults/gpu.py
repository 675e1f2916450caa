"""Faults of GPUs, their driver, NVLink, and the NVLink fabric."""

from __future__ import annotations

from dataclasses import replace

from probes.facts.kernel.release import SMMU_SVA_OPTION
from probes.plans.packages import FABRIC_MANAGER
from probes.simulation.bandwidth.cuda import WITHOUT_SVA
from probes.simulation.faults.fault import as_change, bind, described, replace_content
from probes.simulation.node.devices.pci import real_path
from probes.simulation.node.jobs.processes import add_fabric_manager, library_directory
from probes.simulation.node.model.description import NodeDescription, NumaDescription, RootDescription
from probes.simulation.node.model.tree import Tree, log
from probes.simulation.node.modules.modules import set_modinfo
from probes.simulation.node.system.services import set_fabric_manager_version, stop, stop_nvlsm, uninstall
from probes.simulation.node.system.software import set_library_version

_MANAGER_PID, _RESTARTED_AT = 1390, 1800.0
_SXID = "20034, Data {0x0, 0x0}, Link 31 LTSSM Fault Up"


@as_change
def _bind(tree: Tree, bound: tuple[int, str]) -> None:
    """Bind a GPU to another driver, or to none ("")."""
    number, driver = bound
    bdf = tree.gpus[number].bdf
    bind(tree, real_path(tree, bdf), driver)
    tree.remove(f"/proc/driver/nvidia/gpus/{bdf}")


@as_change
def _xid(tree: Tree, error: tuple[int, str]) -> None:
    gpu, text = error
    log(tree, f"NVRM: Xid (PCI:{tree.gpus[gpu].bdf[:-2]}): {text}")


def _without_sva(tree: Tree) -> None:
    path = f"/boot/config-{tree.description.kernel}"
    replace_content(tree, path, tree.text(path).replace(f"{SMMU_SVA_OPTION}=y", WITHOUT_SVA))


def _refused_sva(tree: Tree) -> None:
    """Log the driver's error, on nodes that can have it."""
    if SMMU_SVA_OPTION not in tree.text(f"/boot/config-{tree.description.kernel}"):
        raise LookupError
    log(tree, f"NVRM: GPU {tree.gpus[0].bdf}: Enabling SMMU SVA feature failed! ret: -22", 20.0)


def _nics_elsewhere(node: NodeDescription) -> NodeDescription:
    """Attach the NICs of the first switch to root ports of their own, on the same socket."""
    roots = list(node.root)
    for place, root in enumerate(node.root):
        if root.bus == "0000:00":
            others = RootDescription("0000:20", root.numa, ports=["compute mlx5_0", "compute mlx5_1"])
            roots[place : place + 1] = replace(root, switch=root.switch[:1]), others
    return replace(node, root=tuple(roots))


def _numa_mode(node: NodeDescription) -> NodeDescription:
    """Turn GPU memory into NUMA nodes without CPUs."""
    count = len(node.numa) + 4  # one for each GPU
    distances = tuple(10 if number < len(node.numa) else 80 for number in range(count))
    cpus = tuple(replace(cpu, distances=distances) for cpu in node.numa)
    memory = NumaDescription("", node.gpu.memory_gib, distances)
    return replace(node, gpu_memory_mode="", numa=(*cpus, memory, memory, memory, memory))


def _no_libraries(tree: Tree) -> None:
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
        tree.remove(f"{library_directory(tree)}/{name}")


def _without_umad(tree: Tree) -> None:
    if "ib_umad" not in tree.live_modules:
        raise LookupError("ib_umad")  # no Fabric Manager of this node needs it
    stop(tree, FABRIC_MANAGER, "failed")
    tree.live_modules.remove("ib_umad")
    tree.remove("/sys/module/ib_umad")
    for number in range(len(tree.cards)):
        tree.remove(f"/dev/infiniband/umad{number}")


def _sxid(tree: Tree) -> None:
    log(tree, f"nvidia-nvswitch0: SXid (PCI:{tree.nvswitches[0]}): {_SXID}")


def _without_fabric_manager(tree: Tree) -> None:
    uninstall(tree, FABRIC_MANAGER)
    tree.remove("/usr/bin/nv-fabricmanager")


def _other_gsp_firmware(tree: Tree) -> None:
    version = tree.description.driver.version
    names = (f"nvidia/{version}/gsp_{chips}.bin" for chips in ("ga10x", "tu10x"))
    set_modinfo(tree, "nvidia", "firmware", "\n".join(names))


def _restart_manager(tree: Tree) -> None:
    add_fabric_manager(tree, _MANAGER_PID, _RESTARTED_AT)


_stop_nvlsm = stop_nvlsm
# fmt: off
FAULTS = tuple(described(
    "gpu", globals(), driver=_bind, xid=_xid, library_version=as_change(set_library_version),
    fabric_manager_version=as_change(set_fabric_manager_version),
))
