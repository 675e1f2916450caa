"""Faults of area environment: limits, device files, driver containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.simulation.faults.fault import Fault
from probes.simulation.node.description import NodeDescription
from probes.simulation.node.processes import FIRST_RANK, add_rank, limits, put_in_container
from probes.simulation.node.tree import Tree

_SMALL = str(8 << 20)


def _fault(name: str, spoil: Callable[[Tree], None], on: str = "hgx-h100", *excludes: str) -> Fault:
    return Fault(name, frozenset({name}), spoil=spoil, on=on, excludes=frozenset(excludes))


def _memlock(tree: Tree) -> None:
    add_rank(tree, 44000)
    tree.add("/proc/44000/limits", limits(_SMALL, _SMALL))


def _scheduler(tree: Tree) -> None:
    tree.add("/etc/systemd/system/slurmd.service", "[Service]\nExecStart=/usr/sbin/slurmd -D\n")


def _runtime(tree: Tree) -> None:
    tree.add("/etc/systemd/system/containerd.service", "[Service]\nLimitMEMLOCK=64M\n")
    add_rank(tree, 44003)
    put_in_container(tree, 44003)
    tree.add("/proc/44003/limits", limits(str(64 << 20), str(64 << 20)))


def _login(tree: Tree) -> None:
    tree.add("/etc/security/limits.d/zz-hardening.conf", "* - memlock 65536\n")


def _shell(tree: Tree) -> None:
    tree.add("/proc/40000/limits", limits(_SMALL, _SMALL))


def _pid_namespace(tree: Tree) -> None:
    # The last rank: those before it stay in sight.
    tree.remove(f"/proc/{FIRST_RANK + len(tree.gpus) - 1}")


def _no_verbs(tree: Tree) -> None:
    tree.remove("/dev/infiniband")


def _one_less(tree: Tree) -> None:
    tree.remove("/dev/infiniband/uverbs9")


def _denied(tree: Tree) -> None:
    tree.denied.add("/dev/infiniband/uverbs1")


def _bare_container(tree: Tree) -> None:
    add_rank(tree, 44001)
    tree.remove("/proc/44001/root/dev")
    tree.remove("/proc/44001/fd")
    tree.link("/proc/44001/fd/3", "/dev/nvidia0")


def _far_nic(tree: Tree) -> None:
    add_rank(tree, 44002)
    for number in range(len(tree.nics) - 1):
        tree.remove(f"/proc/44002/root/dev/infiniband/uverbs{number}")


def _no_gpu_file(tree: Tree) -> None:
    tree.remove("/dev/nvidia1")


def _closed_driver(description: NodeDescription) -> NodeDescription:
    modules = description.modules
    live = tuple(name for name in modules.live if name != "nvidia_peermem")
    return replace(
        description,
        driver=replace(description.driver, flavour="proprietary"),
        modules=replace(modules, live=live),
    )


def _driver_container(tree: Tree) -> None:
    tree.add(f"/run/nvidia/driver/lib/modules/{tree.description.kernel}/modules.dep", "")


def _empty_driver_container(tree: Tree) -> None:
    tree.directory("/run/nvidia/driver/lib/modules")


def _mofed(tree: Tree) -> None:
    tree.directory("/run/mellanox/drivers")


def _storage_modules(tree: Tree) -> None:
    _mofed(tree)
    tree.live_modules.append("rpcrdma")


FAULTS: tuple[Fault, ...] = (
    _fault("memlock-or-ipc-lock", _memlock),
    _fault("memlock-scheduler", _scheduler),
    _fault("memlock-container-runtime", _runtime),
    _fault("memlock-login", _login),
    _fault("memlock-shell", _shell),
    _fault("pid-namespace-hides-users", _pid_namespace),
    _fault("dev-infiniband-missing", _no_verbs),
    _fault("dev-infiniband-incomplete", _one_less, "hgx-h100", "dev-infiniband-missing"),
    _fault("dev-infiniband-denied", _denied, "hgx-h100", "dev-infiniband-missing"),
    _fault("dev-infiniband-not-in-container", _bare_container),
    _fault("dev-infiniband-near-nic-missing", _far_nic),
    _fault("dev-nvidia-missing", _no_gpu_file),
    replace(_fault("k8s-rdma-not-enabled", _driver_container, "pcie-l40s"), describe=_closed_driver),
    _fault("k8s-waiting-for-mofed", _mofed),
    _fault("k8s-mofed-storage-modules", _storage_modules),
    _fault("k8s-peermem-ctr-crashloop", _empty_driver_container, "pcie-l40s"),
)
