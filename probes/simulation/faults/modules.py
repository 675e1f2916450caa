"""Faults of kernel modules: not loaded, blocked, built for others; the node before its setup, with none."""

from __future__ import annotations

from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import VERBS_MODULES
from probes.simulation.faults.fault import described, refused, unloaded
from probes.simulation.node.model.tree import Tree
from probes.simulation.node.modules.loading import KEY_REJECTED, remove_modules
from probes.simulation.node.modules.modules import (
    end_programs,
    modinfo_fields,
    modinfo_of,
    remove_module_file,
    set_modinfo,
)
from probes.simulation.node.system.software import remove_products

_OF_DRIVER = ("nvidia_fs", "gdrdrv", PEERMEM, "nvidia_uvm", "nvidia")
_RDMA = (*VERBS_MODULES, "ib_uverbs", "rdma_cm", "ib_core")
_OTHER_KERNELS = {".el9": "5.14.0-427.11.1.el9_4.x86_64", ".el8": "4.18.0-553.5.1.el8_10.x86_64"}


def take_driver_from_disk(tree: Tree) -> None:
    """Remove the files of the NVIDIA driver, and DKMS's record of them."""
    for name in ("nvidia", "nvidia_uvm", PEERMEM):
        remove_module_file(tree, name)
    tree.remove("/var/lib/dkms/nvidia")


def other_kernel(tree: Tree) -> str:
    """Return another kernel of the node's distribution."""
    running = tree.description.kernel
    names = (name for mark, name in _OTHER_KERNELS.items() if mark in running)
    return next(names, "6.8.0-58-generic")


def _built_for_other_kernel(tree: Tree) -> None:
    remove_modules(tree, *_OF_DRIVER)
    take_driver_from_disk(tree)
    version, machine = tree.description.driver.version, tree.description.architecture
    kernel = other_kernel(tree)
    tree.add(f"/var/lib/dkms/nvidia/{version}/{kernel}/{machine}/module/nvidia.ko", "")
    tree.link(f"/var/lib/dkms/nvidia/kernel-{kernel}-{machine}", f"{version}/{kernel}/{machine}")


_without_rdma_stack = unloaded(*_RDMA)
_key_rejected = refused(PEERMEM, KEY_REJECTED, 14.2)


def _built_for_other(tree: Tree) -> None:
    set_modinfo(tree, PEERMEM, "vermagic", f"{other_kernel(tree)} SMP preempt mod_unload modversions")


def _damaged(tree: Tree) -> None:
    modinfo_of(tree).files.pop("nvidia", None)


def _half_updated(tree: Tree) -> None:
    for name, fields in modinfo_of(tree).files.items():
        if name.startswith("nvidia"):
            fields["version"] = "595.71.05"
            fields["srcversion"] = fields["srcversion"][::-1]


def _other_architecture(tree: Tree) -> None:
    remove_modules(tree, *_OF_DRIVER)
    for name in ("nvidia", "nvidia_uvm", PEERMEM):
        magic = modinfo_fields(tree, name).get("vermagic", "")
        other = magic.removesuffix(" aarch64") if magic.endswith(" aarch64") else f"{magic} aarch64"
        set_modinfo(tree, name, "vermagic", other)


# From those that use others to those that are used.
_DRIVER_MODULES = (
    *("nvidia_fs", "gdrdrv", "efa_nv_peermem", "nvidia_peermem"),
    *("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"),
)
_DRIVER_FILES = ("/proc/driver/nvidia", "/dev/nvidia", "/etc/modules-load.d/nvidia")


def _nothing_installed(tree: Tree) -> None:
    """Leave only the distribution, and nothing of NVIDIA's."""
    end_programs(tree)
    remove_modules(tree, *(name for name in _DRIVER_MODULES if name in tree.live_modules))
    take_driver_from_disk(tree)
    remove_products(tree)
    if tree.description.system.id == "rhcos":
        tree.add("/etc/machine-config-daemon/currentconfig", "{}")
    for path in [path for path in tree.files if path.startswith(_DRIVER_FILES)]:
        tree.remove(path)


FAULTS = tuple(described("modules", globals()))
NEW_NODES = [fault for fault in FAULTS if fault.name.startswith("new-node")]
