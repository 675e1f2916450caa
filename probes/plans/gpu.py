"""Keeping the driver's state between two programs: nvidia-persistenced, or persistence mode itself.

https://docs.nvidia.com/deploy/driver-persistence/index.html: the daemon is the way meant to be taken,
`nvidia-smi -pm` the older one, which a reboot ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import Plan, Step
from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import Gpu
from probes.facts.pci.functions import is_for_guests
from probes.facts.system.services import Service, ServiceState
from probes.snapshot.examination import Examination

_DAEMON = "nvidia-persistenced"
_TITLE = "Turn GPU persistence on"


def persistence_on(examination: Examination) -> Plan | str:
    """Starts the daemon where its unit is installed, else sets the mode of each GPU that has it off."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return f"the GPUs could not be read: {facts}"
    gpus = [gpu for gpu in facts.gpus if not is_for_guests(gpu.driver)]
    if not gpus:
        return "no NVIDIA GPU here"
    off, unknown = [], []
    for gpu in gpus:
        mode = gpu.nvml if isinstance(gpu.nvml, Unknown) else gpu.nvml.persistence
        if isinstance(mode, Unknown):
            unknown.append(f"the persistence mode of GPU{gpu.index} is unknown: {mode}")
        elif not mode:
            off.append(gpu)
    if not off:
        return unknown[0] if unknown else f"persistence mode is on in all {len(gpus)} GPUs"
    services = examination.services
    daemon = services if isinstance(services, Unknown) else services.services[_DAEMON]
    if isinstance(daemon, Unknown):
        return f"it is unknown whether {_DAEMON} is installed: {daemon}"
    if isinstance(daemon.path, Unknown) and daemon.path.reason is not Reason.NOT_THERE:
        return f"it is unknown whether {_DAEMON} is installed: {daemon.path}"
    if isinstance(daemon.path, Unknown) or daemon.masked or daemon.state is ServiceState.ACTIVE:
        return _set_mode(off, daemon, everywhere=len(off) == len(gpus))
    if isinstance(daemon.state, Unknown):
        return f"it is unknown whether {_DAEMON} runs: {daemon.state}"
    return Plan(_TITLE, (_start(daemon),))


def _start(daemon: Service) -> Step:
    if daemon.enabled is True:
        return Step(
            "Start the daemon (already enabled at boot)",
            ("systemctl", "start", _DAEMON),
            undo=("systemctl", "stop", _DAEMON),
        )
    return Step(
        "Start the daemon now and at boot",
        ("systemctl", "enable", "--now", _DAEMON),
        undo=("systemctl", "disable", "--now", _DAEMON),
    )


def _set_mode(off: Sequence[Gpu], daemon: Service, everywhere: bool) -> Plan:
    """nvidia-smi(1), -pm: of all GPUs, or of those that have it off."""
    runs = daemon.state is ServiceState.ACTIVE
    whom = "Make the daemon" if runs else "Make the driver"
    steps: tuple[Step, ...]
    if everywhere:
        step = Step(
            f"{whom} keep the state of all GPUs",
            ("nvidia-smi", "-pm", "1"),
            undo=("nvidia-smi", "-pm", "0"),
        )
        steps = (step,)
    else:
        steps = tuple(
            Step(
                f"{whom} keep the state of GPU{gpu.index}",
                ("nvidia-smi", "-i", gpu.bdf, "-pm", "1"),
                undo=("nvidia-smi", "-i", gpu.bdf, "-pm", "0"),
            )
            for gpu in off
        )
    lasting = (
        f"To make it permanent, remove --no-persistence-mode from the unit (systemctl edit {_DAEMON})."
        if runs
        else f"This lasts until the next reboot. To make it permanent, enable {_DAEMON}."
    )
    return Plan(_TITLE, steps, note=lasting)
