"""Steps that many plans share, and what a step does: undone, ends jobs, cuts the network, only reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from probes.base.plan import Plan, Step, make_plan
from probes.facts.kernel.boot import InitramfsTool
from probes.facts.pci.nic_families import RDMA_MODULE_OF

if TYPE_CHECKING:
    from probes.facts.network.network_dependencies import Netdev, NetworkDependencyFacts


REBOOT_ENDS_JOBS = "every job on this node"
SWAP_ENDS_JOBS = "every job on the GPUs"
POD_ENDS_JOBS = "every job on the GPUs: the driver pod restarts"
_SYSTEMCTL = "systemctl"
REBOOT = (_SYSTEMCTL, "reboot")
_NETWORK_SERVICES = ("NetworkManager", "network", "networking", "systemd-networkd")
_NO_NETDEVS = ("nvidia", "nv_peer_mem", "gdrdrv")
# Unloading these removes IPoIB netdevs; Ethernet netdevs of the same NICs stay.
_INFINIBAND_MODULES = ("ib_ipoib", *RDMA_MODULE_OF.values(), "ib_core")


def _patterns(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def service_step(why: str, verb: str, *units: str, undo: str = "") -> Step:
    """Return the step that runs systemctl(1) with a verb such as "restart", and undoes it with another."""
    undone = (_SYSTEMCTL, *undo.split(), *units) if undo else ()
    return Step(why, (_SYSTEMCTL, *verb.split(), *units), undo=undone)


def start_at_boot_step(why: str, service: str) -> Step:
    """Return the step that starts a service now and at each boot."""
    return service_step(why, "enable --now", service, undo="disable --now")


def reload_units_step() -> Step:
    """Return the step after which systemd knows new unit files and drop-ins."""
    return service_step("Reload systemd's unit files", "daemon-reload")


def modprobe_step(why: str, module: str) -> Step:
    """Return the step that loads a module which nothing else needs; `modprobe -r` undoes it."""
    return Step(why, ("modprobe", module), undo=("modprobe", "-r", module))


def reboot_step(why: str = "Reboot the node") -> Step:
    """Return the step that reboots the node; `why` says what it achieves."""
    return Step(why, REBOOT)


def is_reboot(step: Step) -> bool:
    """Return whether the step reboots the node."""
    return step.argv == REBOOT


# What programs are asked for in plans; `gdrtop do` runs some of it, a person the rest.
_READS = _patterns(
    r"(?:dcb|devlink|rdma)(?: .*)? show(?: .*)?",
    r"(?:ethtool|mlnx_qos -i) [\w.-]+",
    r"ibportstate -C \w+ -P \d+ -D 0 \d+",
    r"journalctl(?: -b)? -[ku].*",
    r"kubectl get .*",
    r"mlxfwmanager --query",
    r"mlxlink -d \S+(?: -[mc])*",
    r"nvidia-smi (?:-q|nvlink --status)",
    r"rdma_topo check",
    r"show_gids|sminfo -C \w+ -P \d+|ss --listening .*",
)
_AFFECTS_JOBS = _patterns(
    r"systemctl (?:stop|restart|reload|disable --now|reboot)(?: .*)?",
    r"ip link set .* (?:down|mtu .*)",
    r"ibportstate .* (?:disable|reset)",
    r"mlxfwreset .*",
    r"nvidia-smi .*(?:--gpu-reset|-r|-mig|-e|-c) .*",
    r"setpci .*",
)
# They add what no running job uses yet, or write what the next boot, build or reset reads.
_AFFECTS_NO_JOB = _patterns(
    r"(?:modprobe|nvidia-modprobe|mkdir|mknod|ln|depmod|dkms|mokutil) .*",
    rf"(?:{'|'.join(tool.value for tool in InitramfsTool)}) .*",
    r"(?:apt-get update|(?:curl|git clone|wget) .*)",
    r"chmod 0?666 .*",
    r"ip link set .* up",
    r"ibportstate .* enable",
    r"mlxconfig .*",
    r"nvidia-smi .*-pm 1",
    r"perfquery .*",
    r"scontrol update .*",
    r"(?:kubectl|oc adm) (?:un)?cordon .*",
    r"sysctl -w kernel\.numa_balancing=[0-3]",
    r"cpupower frequency-set .*",
    r"systemctl (?:daemon-reload|(?:enable --now|start) nvidia-[\w-]+)",
)


class Undo(Enum):
    """How much of what steps change can be undone."""

    WHOLE = "can be undone"
    PART = "can be undone in part"
    NO = "cannot be undone"
    NOTHING = "changes nothing"  # they only read


def only_reads(argv: Sequence[str]) -> bool:
    """Return whether a command is known to change nothing."""
    return _READS.fullmatch(" ".join(argv)) is not None


def undo_of(steps: Iterable[Step]) -> Undo | None:
    """Return how much of these commands and file changes can be undone; None: there is none but a reboot.

    gdrtop keeps the file that it replaces. What a person does in a manual step is not counted.
    """
    commands = [step for step in steps if not step.is_instruction and not is_reboot(step)]
    changes = [bool(step.undo or step.file) for step in commands if step.file or not only_reads(step.argv)]
    if not changes:
        return Undo.NOTHING if commands else None
    return Undo.WHOLE if all(changes) else Undo.PART if any(changes) else Undo.NO


def unloaded_by(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that a command unloads by name, as /proc/modules spells them."""
    program = argv[0] if argv else ""
    if program != "rmmod" and (program != "modprobe" or {"-r", "--remove"}.isdisjoint(argv)):
        return ()
    return tuple(word.replace("-", "_") for word in argv[1:] if not word.startswith("-"))


def affects_jobs(step: Step) -> bool | None:
    """Return whether a step may affect running jobs, whatever its plan says; None: that is unknown."""
    command = " ".join(step.argv)
    if unloaded_by(step.argv) or _AFFECTS_JOBS.fullmatch(command):
        return True
    is_harmless = step.file is not None or only_reads(step.argv) or _AFFECTS_NO_JOB.fullmatch(command)
    return False if is_harmless else None


def reboot_plan(title: str, *steps: Step | str, disturbs: str = REBOOT_ENDS_JOBS, note: str = "") -> Plan:
    """Return a plan with a reboot, which ends every job on the node; its texts are manual steps."""
    return make_plan(title, *steps, needs_reboot=True, disturbs=disturbs, note=note)


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
    if program == _SYSTEMCTL and words[:1] in (["restart"], ["stop"], ["reload"]):
        units = {word.removesuffix(".service") for word in words[1:]}
        if units & set(_NETWORK_SERVICES):
            return lambda netdev, facts: True
        if "openibd" in units:
            return lambda netdev, facts: netdev.driver in RDMA_MODULE_OF
    elif modules := unloaded_by(argv):
        if all(module.startswith(_NO_NETDEVS) for module in modules):
            return None
        infiniband = not set(modules).isdisjoint(_INFINIBAND_MODULES)
        return lambda netdev, facts: (
            netdev.driver.replace("-", "_") in modules or (infiniband and netdev.is_infiniband)
        )
    elif program == "ip" and {"down", "mtu"} & set(words[2:]) and words[:2] == ["link", "set"]:
        return words[3] if words[2] == "dev" else words[2]
    elif program == "ibportstate" and {"disable", "reset"} & set(words):
        named = words[words.index("-C") + 1] if "-C" in words[:-1] else ""
        return lambda netdev, facts: not named or facts.rdma_devices.get(named) == netdev.bdf
    elif program == "mlxfwreset" or (program == "devlink" and words[:2] == ["dev", "reload"]):
        bdfs = (bdf for word in words for bdf in re.findall(r"[0-9a-f:]{4,}:[0-9a-f]{2}\.[0-7]", word))
        cards = set(map(card_of, bdfs))
        return lambda netdev, facts: card_of(netdev.bdf) in cards
    elif program == "mlxlink" and {"--port_state", "-a"} & set(words):
        return lambda netdev, facts: netdev.bdf in words
    return None


def card_of(bdf: str) -> str:
    """Return the address of a card, which all of its functions share."""
    return bdf.rpartition(".")[0]
