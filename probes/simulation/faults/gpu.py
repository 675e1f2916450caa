"""Faults of GPUs, their driver and NVLink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probes.simulation.faults.fault import Fault
from probes.simulation.node.description import NodeDescription, RootDescription
from probes.simulation.node.services import UNITS, set_fabric_manager_version, stop, uninstall
from probes.simulation.node.software import install_library, set_library_version
from probes.simulation.node.tree import Tree, log

_LOST, _UNLISTED, _WITHOUT_DRIVER, _NOUVEAU, _FOR_GUESTS, _WITH_FEWER_NVLINKS = 5, 6, 7, 4, 2, 3


def _nvml(**changes: Any) -> Callable[[NodeDescription], NodeDescription]:
    """A fault of what NVML says."""
    return lambda node: replace(node, nvml=replace(node.nvml, **changes))


def _unlisted(number: int) -> Callable[[NodeDescription], NodeDescription]:
    return lambda node: replace(node, nvml=replace(node.nvml, unlisted=node.nvml.unlisted | {number}))


def _of_gpu(**changes: Any) -> Callable[[NodeDescription], NodeDescription]:
    """A fault of what the GPUs are."""
    return lambda node: replace(node, gpu=replace(node.gpu, **changes))


def _bound(number: int, driver: str) -> Callable[[Tree], None]:
    """A GPU that another driver holds, or none."""

    def spoil(tree: Tree) -> None:
        bdf = tree.gpus[number].bdf
        path = next(one for one in tree.files if one.endswith(f"/{bdf}/uevent")).rpartition("/")[0]
        lines = str(tree.files[f"{path}/uevent"]).splitlines(True)
        plain = "".join(line for line in lines if not line.startswith("DRIVER="))
        tree.add(f"{path}/uevent", f"DRIVER={driver}\n{plain}" if driver else plain)
        tree.remove(f"{path}/driver")
        tree.remove(f"/proc/driver/nvidia/gpus/{bdf}")

    return spoil


def _xid(gpu: int, text: str) -> Callable[[Tree], None]:
    """A fault that the kernel log shows."""

    def spoil(tree: Tree) -> None:
        log(tree, f"NVRM: Xid (PCI:{tree.gpus[gpu].bdf[:-2]}): {text}")

    return spoil


def _sxid(tree: Tree) -> None:
    text = "20034, Data {0x0, 0x0}, Link 31 LTSSM Fault Up"
    log(tree, f"nvidia-nvswitch0: SXid (PCI:{tree.nvswitches[0]}): {text}")


def _start_failed(tree: Tree) -> None:
    # On a GPU that NVML does not list: of one that answers now it would be a note.
    log(tree, f"NVRM: GPU {tree.gpus[_UNLISTED].bdf}: RmInitAdapter failed! (0x62:0x40:1860)")


def _other_libraries(tree: Tree) -> None:
    set_library_version(tree, "535.216.01")


def _daemon_without_mode(tree: Tree) -> None:
    command = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose"
    tree.add(f"{UNITS}/nvidia-persistenced.service", f"[Service]\nExecStart={command}\n")


def _without_manager(tree: Tree) -> None:
    uninstall(tree, "nvidia-fabricmanager")
    tree.remove("/usr/bin/nv-fabricmanager")


def _nics_elsewhere(node: NodeDescription) -> NodeDescription:
    """The NICs of the first switch are attached to root ports of their own, on the same socket."""
    roots: list[RootDescription] = []
    for root in node.root:
        if root.bus == "0000:00":
            roots.append(replace(root, switch=root.switch[:1]))
            roots.append(RootDescription("0000:20", root.numa, ports=["compute mlx5_0", "compute mlx5_1"]))
        else:
            roots.append(root)
    return replace(node, root=tuple(roots))


def _fault(
    name: str,
    spoil: Callable[[Tree], None] | None = None,
    describe: Callable[[NodeDescription], NodeDescription] | None = None,
    on: str = "hgx-h100",
    excludes: tuple[str, ...] = (),
) -> Fault:
    return Fault(
        name,
        frozenset({name}),
        describe=describe or replace,
        spoil=spoil or (lambda tree: None),
        on=on,
        excludes=frozenset(excludes),
    )


FAULTS: tuple[Fault, ...] = (
    _fault("gpu-without-driver", _bound(_WITHOUT_DRIVER, ""), _unlisted(_WITHOUT_DRIVER)),
    _fault("gpu-without-driver-nouveau", _bound(_NOUVEAU, "nouveau"), _unlisted(_NOUVEAU)),
    _fault("gpu-without-driver-passed-through", _bound(_FOR_GUESTS, "vfio-pci"), _unlisted(_FOR_GUESTS)),
    _fault(
        "driver-library-mismatch",
        _other_libraries,
        _nvml(refusal="driver/library version mismatch: reload the kernel modules or reboot"),
        on="dgx-a100",
    ),
    _fault(
        "xid-79-fell-off-bus",
        _xid(_LOST, "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        lambda node: replace(node, nvml=replace(node.nvml, lost=node.nvml.lost | {_LOST})),
    ),
    _fault("gpu-missing-from-nvml", describe=_unlisted(_UNLISTED)),
    _fault("gpu-driver-start-failed", _start_failed, _unlisted(_UNLISTED)),
    _fault("persistence-off", lambda tree: stop(tree, "nvidia-persistenced"), _nvml(persistence=False)),
    _fault(
        "persistence-off-daemon-runs",
        _daemon_without_mode,
        _nvml(persistence=False),
        excludes=("persistence-off",),
    ),
    _fault("gpu-without-near-nic", describe=_nics_elsewhere, on="dgx-a100"),
    _fault("mig-with-gdr", describe=_nvml(mig=True)),
    _fault("vgpu-without-gdr", describe=_nvml(is_vgpu=True), on="cloud-vm"),
    _fault("geforce-no-gdr", describe=_of_gpu(name="NVIDIA GeForce RTX 4090"), on="pcie-l40s"),
    _fault("gpu-too-old-for-gdr", describe=_of_gpu(capability=(2, 0)), on="pcie-l40s"),
    _fault("gdr-read-off-on-old-gpus", describe=_of_gpu(capability=(7, 0)), on="pcie-l40s"),
    _fault("confidential-computing-on", describe=_nvml(confidential_computing=True)),
    _fault(
        "c2c-grace-specifics",
        lambda tree: install_library(tree, "libnccl.so.2", "libnccl.so.2.26.2"),
        on="gb200",
    ),
    _fault("c2c-grace-specifics-gb10", describe=_of_gpu(name="NVIDIA GB10"), on="gb200"),
    _fault(
        "xid-119-gsp-timeout",
        _xid(0, "119, pid=4711, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!"),
    ),
    _fault(
        "xid-memory-error", _xid(1, "63, pid=4711, name=python3, Row Remapper: New row marked for remapping")
    ),
    _fault("xid-nvlink-error", _xid(0, "74, pid=4711, name=python3, NVLink: fatal error detected on link 6")),
    _fault("xid-of-a-program", _xid(1, "31, pid=4711, name=python3, MMU Fault: ENGINE GRAPHICS faulted")),
    _fault(
        "xid-other", _xid(0, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    ),
    _fault("sxid", _sxid),
    _fault(
        "fabric-manager-down",
        lambda tree: stop(tree, "nvidia-fabricmanager"),
        excludes=("fabric-manager-down-absent",),
    ),
    _fault("fabric-manager-down-absent", _without_manager),
    _fault(
        "fabric-manager-down-version",
        lambda tree: set_fabric_manager_version(tree, "570.86.15"),
        excludes=("fabric-manager-down-absent",),
    ),
    _fault("imex-down", lambda tree: stop(tree, "nvidia-imex"), on="gb200"),
    _fault("nvlink-down", describe=_nvml(with_fewer_nvlinks=frozenset({_WITH_FEWER_NVLINKS}))),
)
