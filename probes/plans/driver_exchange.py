"""Exchanging the NVIDIA driver that is loaded for the one on disk, without a reboot."""

from __future__ import annotations

from probes.examination import Examination
from probes.modules import KernelModule
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import SWAP_ENDS_JOBS
from probes.services import ServiceState
from probes.unknown import Unknown

_MANAGER = "nvidia-fabricmanager"
_HOLDERS = ("nvidia-dcgm", _MANAGER, "nvidia-persistenced")
_UNLOAD_ORDER = (
    "gdrdrv",
    "nvidia_fs",
    "nv_peer_mem",
    "nvidia_peermem",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia_uvm",
)


def exchange_driver(examination: Examination, nvidia: KernelModule, on_disk: str) -> Plan:
    """Stops what holds the driver, exchanges it, and starts that again."""
    services = examination.services
    running = [
        name
        for name in _HOLDERS
        if not isinstance(services, Unknown) and services.services[name].state is ServiceState.ACTIVE
    ]
    order = [
        name
        for name in _UNLOAD_ORDER
        # nvidia_drm holds nvidia_modeset alone; modprobe -r is content where it is not loaded.
        if name in nvidia.used_by or (name == "nvidia_drm" and "nvidia_modeset" in nvidia.used_by)
    ]
    return Plan(
        "Exchange the driver without a reboot",
        (
            *matching_fabric_manager(examination, on_disk),
            instruction("drain the node: every job on its GPUs has to end"),
            *(Step(f"stops {name}, which holds the driver", ("systemctl", "stop", name)) for name in running),
            Step("unloads the driver and what uses it", ("modprobe", "-r", *order, "nvidia")),
            Step("loads the new driver", ("modprobe", "nvidia")),
            *(Step(f"loads {name} again", ("modprobe", name)) for name in reversed(order)),
            *(Step(f"starts {name} again", ("systemctl", "start", name)) for name in reversed(running)),
        ),
        reversible=False,
        disturbs=SWAP_ENDS_JOBS,
    )


def matching_fabric_manager(examination: Examination, on_disk: str) -> tuple[Step, ...]:
    """Has Fabric Manager brought to the new driver's version, where it runs and is not seen to be of that."""
    services, tools = examination.services, examination.tools
    if isinstance(services, Unknown) or services.services[_MANAGER].state is not ServiceState.ACTIVE:
        return ()
    version = tools if isinstance(tools, Unknown) else tools.fabric_manager
    if version == on_disk:
        return ()
    if isinstance(version, Unknown):
        told = f"make sure that nv-fabricmanager --version says {on_disk}, and install that one if not"
    else:
        told = f"install {_MANAGER} {on_disk}: it is {version} now"
    return (
        instruction(
            f"{told}; Fabric Manager starts with its own version of the driver alone, CUDA not without it"
        ),
    )
