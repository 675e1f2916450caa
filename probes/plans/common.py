"""What ends jobs or cuts the network: a reboot, a driver swap, netdevs that go down."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from probes.base.plan import Plan, Step, make_plan

if TYPE_CHECKING:
    from probes.facts.network.network_dependencies import Netdev, NetworkDependencyFacts

REBOOT_ENDS_JOBS = "every job on this node"
SWAP_ENDS_JOBS = "every job on the GPUs"
POD_ENDS_JOBS = "every job on the GPUs: the driver pod restarts"
_REBOOT = ("systemctl", "reboot")
_OFED_DRIVERS = ("mlx4_core", "mlx5_core")
_NETWORK_SERVICES = ("NetworkManager", "network", "networking", "systemd-networkd")
_NO_NETDEVS = ("nvidia", "nv_peer_mem", "gdrdrv")
# Unloading these removes IPoIB netdevs; Ethernet netdevs of the same NICs stay.
_INFINIBAND_MODULES = ("ib_ipoib", "mlx4_ib", "mlx5_ib", "ib_core")


REBUILD_INITRAMFS = "Rebuild the initramfs"
_UPDATE, _DRACUT = ("update-initramfs", "-u", "-k", "all"), "dracut --regenerate-all --force"


def initramfs_instruction(note: str = "") -> Step:
    """Return how to rebuild the boot images of all kernels: dracut -f alone rebuilds the running one's."""
    why = f"{REBUILD_INITRAMFS}{f' ({note})' if note else ''}"
    return Step(f"{why}: `{' '.join(_UPDATE)}` (Debian) or `{_DRACUT}` (RPM)", rebuilds_initramfs=True)


def initramfs_steps() -> tuple[Step, ...]:
    """Return the same as a step that gdrtop can run on Debian, and what to run elsewhere."""
    return (
        Step(f"{REBUILD_INITRAMFS} (Debian, Ubuntu)", _UPDATE, rebuilds_initramfs=True),
        Step(f"On RPM distributions run `{_DRACUT}` instead", rebuilds_initramfs=True),
    )


def start_at_boot_step(why: str, service: str) -> Step:
    """Return the step that starts a service now and at each boot."""
    enable, disable = ("systemctl", "enable", "--now", service), ("systemctl", "disable", "--now", service)
    return Step(why, enable, undo=disable)


def modprobe_step(why: str, module: str) -> Step:
    """Return the step that loads a module which nothing else needs; `modprobe -r` undoes it."""
    return Step(why, ("modprobe", module), undo=("modprobe", "-r", module))


def reboot_step(why: str = "Reboot the node") -> Step:
    """Return the step that reboots the node; `why` says what it achieves."""
    return Step(why, _REBOOT)


def is_reboot(step: Step) -> bool:
    """Return whether the step reboots the node."""
    return step.argv == _REBOOT


def reboot_plan(
    title: str, *steps: Step | str, needs_root: bool = True, reversible: bool = True, note: str = ""
) -> Plan:
    """Return a plan with a reboot, which ends every job on the node; its texts are manual steps."""
    return make_plan(
        title,
        *steps,
        needs_root=needs_root,
        reversible=reversible,
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note=note,
    )


def driver_option_plan(title: str, *changes: str) -> Plan:
    """Return the plan that changes an option of the NVIDIA driver, which takes effect at a reboot."""
    reboot = reboot_step("Reboot to load the driver with its new options")
    return reboot_plan(title, *changes, initramfs_instruction(), reboot)


def may_take_down_netdevs(argv: Sequence[str]) -> bool:
    """Return whether a command can take netdevs down."""
    return _chosen(argv) is not None


def netdevs_taken_down(argv: Sequence[str], facts: NetworkDependencyFacts) -> tuple[str, ...]:
    """Return the netdevs that a command takes down, even for a moment.

    The command decides and not the plan, because the undo of a step comes from the log.
    """
    chosen = _chosen(argv)
    if isinstance(chosen, str):
        return (chosen,)
    if chosen is None:
        return ()
    return tuple(name for name, netdev in facts.netdevs.items() if chosen(netdev, facts))


_Choice: TypeAlias = "Callable[[Netdev, NetworkDependencyFacts], bool]"


def _chosen(argv: Sequence[str]) -> _Choice | str | None:
    """Return which netdevs a command takes down, or the one that it names; None if it takes down none."""
    program, words = argv[0] if argv else "", list(argv[1:])
    if program == "systemctl" and words[:1] in (["restart"], ["stop"], ["reload"]):
        units = {word.removesuffix(".service") for word in words[1:]}
        if units & set(_NETWORK_SERVICES):
            return lambda netdev, facts: True
        if "openibd" in units:
            return lambda netdev, facts: netdev.driver in _OFED_DRIVERS
    elif program == "rmmod" or (program == "modprobe" and {"-r", "--remove"} & set(words)):
        modules = {word.replace("-", "_") for word in words if not word.startswith("-")}
        if all(module.startswith(_NO_NETDEVS) for module in modules):
            return None
        infiniband = bool(modules & set(_INFINIBAND_MODULES))
        return lambda netdev, facts: (
            netdev.driver.replace("-", "_") in modules or (infiniband and netdev.is_infiniband)
        )
    elif program == "ip" and {"down", "mtu"} & set(words[2:]) and words[:2] == ["link", "set"]:
        return words[3] if words[2] == "dev" else words[2]
    elif program == "ibportstate" and {"disable", "reset"} & set(words):
        named = words[words.index("-C") + 1] if "-C" in words[:-1] else ""
        return lambda netdev, facts: not named or facts.rdma_devices.get(named) == netdev.bdf
    elif program == "mlxfwreset" or (program == "devlink" and words[:2] == ["dev", "reload"]):
        cards = {
            _card(found) for word in words for found in re.findall(r"[0-9a-f:]{4,}:[0-9a-f]{2}\.[0-7]", word)
        }
        return lambda netdev, facts: _card(netdev.bdf) in cards
    elif program == "mlxlink" and {"--port_state", "-a"} & set(words):
        return lambda netdev, facts: netdev.bdf in words
    return None


def _card(bdf: str) -> str:
    return bdf.rpartition(".")[0]
