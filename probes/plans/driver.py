"""Exchanging the NVIDIA driver that is loaded for the one on disk, without a reboot."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Unknown
from probes.facts.kernel.modules import KernelModule
from probes.facts.system.services import ServiceState
from probes.plans.common import SWAP_ENDS_JOBS
from probes.snapshot.examination import Examination

_MANAGER = "nvidia-fabricmanager"
# In the order in which they are stopped. Fabric Manager goes last: before H100 its end aborts CUDA jobs.
_HOLDERS = ("nvidia-dcgm", "nvidia-persistenced", _MANAGER)
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
    """Stop what holds the driver, exchange the driver, and start the holders again."""
    services = examination.services
    running = [
        name
        for name in _HOLDERS
        if not isinstance(services, Unknown) and services.services[name].state is ServiceState.ACTIVE
    ]
    order = [
        name
        for name in _UNLOAD_ORDER
        # nvidia_drm holds nvidia_modeset, not nvidia; modprobe -r accepts a module that is not loaded.
        if name in nvidia.used_by or (name == "nvidia_drm" and "nvidia_modeset" in nvidia.used_by)
    ]
    return Plan(
        "Exchange the driver without a reboot",
        (
            *matching_fabric_manager(examination, on_disk),
            instruction("Drain the node, and check that every job on its GPUs has ended (nvidia-smi)."),
            *(Step(_why_stop(name), ("systemctl", "stop", name)) for name in running),
            Step("Unload the driver and the modules that use it", ("modprobe", "-r", *order, "nvidia")),
            Step("Load the new driver", ("modprobe", "nvidia")),
            *(Step(f"Load {name} again", ("modprobe", name)) for name in reversed(order)),
            *(Step(f"Start {name} again", ("systemctl", "start", name)) for name in reversed(running)),
        ),
        reversible=False,
        disturbs=SWAP_ENDS_JOBS,
    )


def _why_stop(name: str) -> str:
    aborts = "; on GPUs before H100 this aborts running CUDA jobs" if name == _MANAGER else ""
    return f"Stop {name}, which uses the driver{aborts}"


def matching_fabric_manager(examination: Examination, on_disk: str) -> tuple[Step, ...]:
    """Bring Fabric Manager to the new driver's version, where it runs and is not known to have it."""
    services, tools = examination.services, examination.tools
    if isinstance(services, Unknown) or services.services[_MANAGER].state is not ServiceState.ACTIVE:
        return ()
    version = tools if isinstance(tools, Unknown) else tools.fabric_manager
    if version == on_disk:
        return ()
    if isinstance(version, Unknown):
        told = f"Check that nv-fabricmanager --version prints {on_disk}, and install that version if not."
    else:
        told = f"Install {_MANAGER} {on_disk} (now {version})."
    return (
        instruction(
            f"{told} Fabric Manager starts only with a driver of its own version, and CUDA needs it."
        ),
    )
