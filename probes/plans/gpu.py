"""Turn GPU persistence on and MIG off.

Persistence keeps the driver's state between two programs. NVIDIA recommends the daemon nvidia-persistenced;
`nvidia-smi -pm` is older and lasts until a reboot
(https://docs.nvidia.com/deploy/driver-persistence/index.html).
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import NothingToDo, Plan, Step, make_plan
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown
from probes.facts.gpu.gpus import Gpu
from probes.facts.pci.functions import is_for_guests
from probes.facts.system.services import Service, ServiceState
from probes.plans.common import service_step, start_at_boot_step
from probes.queries.evidence_list import join_limited
from probes.snapshot.examination import Examination

PERSISTENCE_DAEMON = "nvidia-persistenced"
_TITLE = "Turn GPU persistence on"


def persistence_on(examination: Examination) -> Plan | str:
    """Start the daemon if its unit is installed, else set the mode of each GPU that has it off."""
    facts = examination.node.gpus
    if isinstance(facts, Unknown):
        return f"the GPUs could not be read: {facts}"
    gpus = [gpu for gpu in facts.gpus if not is_for_guests(gpu.driver)]
    if not gpus:
        return "this node has no NVIDIA GPU"
    off, unknown = [], []
    for gpu in gpus:
        mode = gpu.nvml if isinstance(gpu.nvml, Unknown) else gpu.nvml.persistence
        if isinstance(mode, Unknown):
            unknown.append(f"the persistence mode of GPU{gpu.index} is unknown: {mode}")
        elif not mode:
            off.append(gpu)
    if not off:
        on = f"persistence mode is on for all {plural(len(gpus), 'GPU')}"
        return unknown[0] if unknown else NothingToDo(on)
    services = examination.services
    daemon = services if isinstance(services, Unknown) else services.services[PERSISTENCE_DAEMON]
    if isinstance(daemon, Unknown):
        return f"cannot tell whether {PERSISTENCE_DAEMON} is installed: {daemon}"
    if isinstance(daemon.path, Unknown) and daemon.path.reason is not Reason.NOT_THERE:
        return f"cannot tell whether {PERSISTENCE_DAEMON} is installed: {daemon.path}"
    if isinstance(daemon.path, Unknown) or daemon.masked or daemon.state is ServiceState.ACTIVE:
        return _set_mode(off, daemon, everywhere=len(off) == len(gpus))
    if isinstance(daemon.state, Unknown):
        return f"cannot tell whether {PERSISTENCE_DAEMON} is running: {daemon.state}"
    return make_plan(_TITLE, _start(daemon))


def _start(daemon: Service) -> Step:
    if daemon.enabled is True:
        return service_step(
            "Start the daemon (already enabled at boot)", "start", PERSISTENCE_DAEMON, undo="stop"
        )
    return start_at_boot_step("Start the daemon now and at boot", PERSISTENCE_DAEMON)


def _set_mode(off: Sequence[Gpu], daemon: Service, everywhere: bool) -> Plan:
    """Set persistence mode with nvidia-smi(1) -pm, for all GPUs or for those that have it off."""
    runs = daemon.state is ServiceState.ACTIVE
    subject = "Make the daemon" if runs else "Make the driver"
    chosen = [(f"GPU{gpu.index}", ("-i", gpu.bdf)) for gpu in off]
    steps = tuple(
        Step(
            f"{subject} keep {name} initialized",
            ("nvidia-smi", *option, "-pm", "1"),
            undo=("nvidia-smi", *option, "-pm", "0"),
        )
        for name, option in ([("all GPUs", ())] if everywhere else chosen)
    )
    lasting = (
        "To make it permanent, remove --no-persistence-mode from the unit"
        f" (systemctl edit {PERSISTENCE_DAEMON})."
        if runs
        else f"This lasts until the next reboot. To make it permanent, enable {PERSISTENCE_DAEMON}."
    )
    return Plan(_TITLE, steps, note=lasting)


def mig_off(gpus: Sequence[Gpu]) -> Plan:
    """Explain how to turn MIG off; gdrtop runs none of it.

    Turning MIG off deletes the node's partitions, and a node with MIG usually has it on purpose. While a
    program uses the GPU, the new mode is pending until a reset (NVML, nvmlDeviceSetMigMode).
    """
    first = gpus[0].bdf
    named = join_limited(f"GPU{gpu.index}" for gpu in gpus)
    return make_plan(
        "Turn MIG off if these GPUs are meant for multi-GPU training",
        "Keep MIG if it is on for a reason. On Kubernetes, mig-manager would turn it on again.",
        f"Drain the node. Turning MIG off deletes the instances of {named}.",
        f"Run nvidia-smi -i {first} -mig 0, and the same for every GPU. A100 GPUs then need a reset. "
        "nvidia-smi -q -d MIG shows the current mode.",
        disturbs="every job on a MIG instance of these GPUs",
    )
