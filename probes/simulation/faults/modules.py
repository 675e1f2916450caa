"""Faults of kernel modules: not loaded, kept out, of another build than the kernel or the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.simulation.faults.fault import Fault
from probes.simulation.node.description import NodeDescription
from probes.simulation.node.module_files import modinfo_of, remove_module_file, set_modinfo
from probes.simulation.node.module_loading import refuse_module, remove_modules
from probes.simulation.node.tree import Refusal, Tree

_PEERMEM = "nvidia_peermem"
_OF_DRIVER = ("nvidia_fs", "gdrdrv", _PEERMEM, "nvidia_uvm", "nvidia")
_RDMA = ("mlx5_ib", "ib_uverbs", "rdma_cm", "ib_core")
OTHER_KERNEL = "6.8.0-58-generic"


def take_driver_from_disk(tree: Tree) -> None:
    """Takes the files of the whole NVIDIA driver away, and DKMS's record of it."""
    for name in ("nvidia", "nvidia_uvm", _PEERMEM):
        remove_module_file(tree, name)
    tree.remove("/var/lib/dkms/nvidia")


def _unloaded(*names: str) -> Callable[[Tree], None]:
    return lambda tree: remove_modules(tree, *names)


def _blacklisted(tree: Tree) -> None:
    tree.add("/etc/modprobe.d/blacklist-gdr.conf", "# hardening\nblacklist nvidia-peermem\n")


def _install_false(tree: Tree) -> None:
    remove_modules(tree, _PEERMEM)
    tree.add("/etc/modprobe.d/disable-peermem.conf", "install nvidia-peermem /bin/false\n")


def _module_blacklist(description: NodeDescription) -> NodeDescription:
    return replace(description, cmdline=f"{description.cmdline} module_blacklist={_PEERMEM}")


def _modules_disabled(tree: Tree) -> None:
    tree.add("/proc/sys/kernel/modules_disabled", "1\n")


def _lockdown(tree: Tree) -> None:
    remove_modules(tree, _PEERMEM)
    tree.add("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n")


def _enforced(tree: Tree) -> None:
    remove_modules(tree, _PEERMEM)
    tree.add("/sys/module/module/parameters/sig_enforce", "Y\n")


def _key_rejected(tree: Tree) -> None:
    said = ((5, "Loading of module with unavailable key is rejected"),)
    refuse_module(tree, _PEERMEM, Refusal("Key was rejected by service", said), 14.2)


def _other_vermagic(tree: Tree) -> None:
    remove_modules(tree, _PEERMEM)
    set_modinfo(tree, _PEERMEM, "vermagic", f"{OTHER_KERNEL} SMP preempt mod_unload modversions")


def _built_for_other_kernel(tree: Tree) -> None:
    remove_modules(tree, *_OF_DRIVER)
    take_driver_from_disk(tree)
    version, machine = tree.description.driver.version, tree.description.architecture
    tree.add(f"/var/lib/dkms/nvidia/{version}/{OTHER_KERNEL}/{machine}/module/nvidia.ko", "")
    tree.link(f"/var/lib/dkms/nvidia/kernel-{OTHER_KERNEL}-{machine}", f"{version}/{OTHER_KERNEL}/{machine}")


def _build_failed(tree: Tree) -> None:
    tree.remove("/var/lib/dkms/mlnx-ofed-kernel")
    log = "fatal error: linux/version.h: No such file or directory\n"
    tree.add("/var/lib/dkms/mlnx-ofed-kernel/24.10/build/make.log", log)


def _half_updated(tree: Tree) -> None:
    for name, fields in modinfo_of(tree).files.items():
        if name.startswith("nvidia"):
            fields["version"] = "570.133.20"
            fields["srcversion"] = fields["srcversion"][::-1]


def _stale(tree: Tree) -> None:
    set_modinfo(tree, "mlx5_core", "srcversion", "51A01A7E51A01A7E51A01A7E")


def _fault(name: str, spoil: Callable[[Tree], None], *excludes: str, on: str = "hgx-h100") -> Fault:
    return Fault(name, frozenset({name}), spoil=spoil, on=on, excludes=frozenset(excludes))


# Faults that take the module's file away hide those that look into it.
NO_FILE = ("peermem-not-on-disk", "peermem-not-on-disk-other-kernel", "peermem-not-on-disk-old-driver")

FAULTS: tuple[Fault, ...] = (
    # Those that leave hardly anything to be judged stay apart from the others' combinations.
    _fault("ib-core-not-loaded", _unloaded(*_RDMA), on="pcie-l40s"),
    _fault("mlx5-core-not-loaded", _unloaded("mlx5_ib", "mlx5_core"), on="pcie-l40s"),
    _fault("mlx5-ib-not-loaded", _unloaded("mlx5_ib"), on="pcie-l40s"),
    _fault("ib-uverbs-not-loaded", _unloaded("mlx5_ib", "ib_uverbs"), on="pcie-l40s"),
    _fault("nvidia-not-loaded", _unloaded(*_OF_DRIVER), on="pcie-l40s"),
    _fault("nvidia-uvm-not-loaded", _unloaded("nvidia_uvm")),
    _fault("module-blacklisted", _blacklisted, "module-blacklisted-cmdline"),
    _fault("module-blacklisted-install", _install_false),
    Fault(
        "module-blacklisted-cmdline",
        frozenset({"module-blacklisted-cmdline"}),
        describe=_module_blacklist,
        spoil=_unloaded(_PEERMEM),
    ),
    _fault("kernel-forbids-modules-disabled", _modules_disabled),
    _fault("kernel-forbids-modules-lockdown", _lockdown, *NO_FILE),
    _fault("secure-boot-unsigned", _enforced, *NO_FILE),
    _fault("secure-boot-key-rejected", _key_rejected),
    _fault("module-wrong-vermagic", _other_vermagic, *NO_FILE),
    Fault(
        "dkms-not-built-for-kernel",
        frozenset({"dkms-not-built-for-kernel", "nvidia-not-loaded"}),
        spoil=_built_for_other_kernel,
        on="pcie-l40s",
    ),
    _fault("dkms-build-failed", _build_failed),
    Fault(
        "driver-half-updated",
        frozenset({"driver-half-updated", "driver-upgrade-blocked"}),
        spoil=_half_updated,
    ),
    _fault("initramfs-stale", _stale),
)
