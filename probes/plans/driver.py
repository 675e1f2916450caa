"""Swap or rebuild the NVIDIA driver's modules, turn GPU persistence on, and MIG off."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.plan import NothingToDo, Plan, Step, instruction, make_plan
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.facts.kernel.module_files import DRIVER_PACKAGES, DkmsModule
from probes.facts.kernel.modules import PEERMEM, KernelModule
from probes.facts.pci.functions import is_for_guests
from probes.facts.system.services import Service, ServiceState
from probes.plans.common import SWAP_ENDS_JOBS, service_step, start_at_boot_step
from probes.plans.load_modules import load_step
from probes.plans.packages import FABRIC_MANAGER, fabric_manager_steps, header_step, in_driver_container
from probes.queries.modules import module_of
from probes.snapshot.examination import Examination

_FIND_POD = "kubectl get pods -A -o wide -l app=nvidia-driver-daemonset"  # of the GPU Operator
# In the order in which they are stopped. Fabric Manager is last: on GPUs before H100 this aborts CUDA jobs.
_SERVICES = ("nvidia-dcgm", "nvidia-persistenced", FABRIC_MANAGER)
_UNLOAD_ORDER = (
    *("gdrdrv", "nvidia_fs", "nv_peer_mem", "nvidia_peermem"),
    *("nvidia_drm", "nvidia_modeset", "nvidia_uvm"),
)


def exchange_driver(examination: Examination, nvidia: KernelModule, on_disk: str) -> Plan:
    """Stop the services that use the driver, swap the driver, and start them again."""
    services = examination.services
    running = [
        name
        for name in _SERVICES
        if not isinstance(services, Unknown) and services.services[name].state is ServiceState.ACTIVE
    ]
    order = [
        name
        for name in _UNLOAD_ORDER
        # nvidia_drm uses nvidia_modeset, not nvidia; modprobe -r accepts a module that is not loaded.
        if name in nvidia.used_by or (name == "nvidia_drm" and "nvidia_modeset" in nvidia.used_by)
    ]
    aborts = {FABRIC_MANAGER: "; on pre-H100 GPUs this aborts running CUDA jobs"}
    return make_plan(
        "Swap the driver without a reboot",
        *matching_fabric_manager(examination, on_disk),
        "Drain the node and check with nvidia-smi that every job on its GPUs has ended.",
        *(
            service_step(f"Stop {name}, which uses the driver{aborts.get(name, '')}", "stop", name)
            for name in running
        ),
        Step("Unload the driver and the modules that use it", ("modprobe", "-r", *order, "nvidia")),
        Step("Load the new driver", ("modprobe", "nvidia")),
        *(Step(f"Load {name} again", ("modprobe", name)) for name in reversed(order)),
        *(service_step(f"Start {name} again", "start", name) for name in reversed(running)),
        disturbs=SWAP_ENDS_JOBS,
    )


def matching_fabric_manager(examination: Examination, on_disk: str) -> tuple[Step, ...]:
    """Upgrade Fabric Manager to the new driver's version, if it runs and may have another version."""
    services, tools = examination.services, examination.tools
    if isinstance(services, Unknown) or services.services[FABRIC_MANAGER].state is not ServiceState.ACTIVE:
        return ()
    version = tools if isinstance(tools, Unknown) else tools.fabric_manager
    if version == on_disk:
        return ()
    if isinstance(version, Unknown):
        text = f"Check that nv-fabricmanager --version prints {on_disk}, and install that version if not."
        return (instruction(text),)
    return fabric_manager_steps(examination, on_disk)


_DEPMOD = "Update the module dependency list"


def rebuild_steps(examination: Examination) -> tuple[Step, ...]:
    """Rebuild the loaded driver's modules with DKMS, or in its container, and load nvidia_peermem."""
    if in_driver_container(examination):
        return (
            instruction(f"Find this node's driver pod: {_FIND_POD}", needs_root=False),
            instruction(
                "Delete that pod (kubectl delete pod). The new pod rebuilds its modules", needs_root=False
            ),
            instruction(
                "If it reuses the old modules, set FORCE_REINSTALL=true for k8s-driver-manager", False
            ),
        )
    release = examination.node.kernel_release
    of_kernel = () if isinstance(release, Unknown) else ("-k", release)
    driver = next((package for package in _driver_packages(examination) if package.installed), None)
    depmod = Step(_DEPMOD, ("depmod", "-a"))
    load = load_step(examination, PEERMEM)
    if driver is None:
        first = instruction("Rebuild the NVIDIA driver's modules or install the driver's DKMS package.")
        return (first, depmod, load)
    name = f"{driver.name}/{driver.version}"
    return (
        Step("Rebuild the driver's modules", ("dkms", "build", name, *of_kernel, "--force")),
        Step("Install the built modules", ("dkms", "install", name, *of_kernel, "--force")),
        depmod,
        load,
    )


def _driver_packages(examination: Examination) -> list[DkmsModule]:
    """Return DKMS's packages of the driver, by name: nvidia-fs is a separate one.

    Debian can install several: the one that modprobe loads, whose module is named like the package, is first.
    """
    dkms, driver = examination.dkms, module_of(examination, "nvidia")
    packages = () if isinstance(dkms, Unknown) else dkms.modules
    path = "" if isinstance(driver, Unknown) else known(driver.on_disk, "")
    ours = (package for package in packages if package.name in DRIVER_PACKAGES)
    return sorted(ours, key=lambda package: f"/{package.name}.ko" not in path)


def rebuild_plan(examination: Examination, release: str, has_bad_files: bool = False) -> Plan:
    """Build every DKMS package for a kernel release.

    `has_bad_files`: files of the GPU driver are damaged or for another kernel. Where DKMS has installed the
    driver, autoinstall leaves them as they are (dkms 3.0.10), so they are installed again.
    """
    packages = _driver_packages(examination) if has_bad_files else []
    again = tuple(
        Step(
            "Install the driver's modules again",
            ("dkms", "install", f"{package.name}/{package.version}", "-k", release, "--force"),
        )
        for package in packages
        if release in package.installed
    )
    steps = (
        header_step(examination),
        *(
            again
            or (Step("Build every DKMS module for this kernel", ("dkms", "autoinstall", "-k", release)),)
        ),
        Step(_DEPMOD, ("depmod", "-a", release)),
    )
    return Plan(
        "Build the modules for this kernel",
        steps,
        note="Load the modules afterward. A loaded driver stays loaded until the next reboot.",
    )


# Turn GPU persistence on and MIG off.
#
# Persistence keeps the driver's state between two programs. NVIDIA recommends the daemon nvidia-
# persistenced; `nvidia-smi -pm` is older and lasts until a reboot (https://docs.nvidia.com/deploy/driver-
# persistence/index.html).

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
    step = start_at_boot_step("Start the daemon now and at boot", PERSISTENCE_DAEMON)
    if daemon.enabled is True:
        why = "Start the daemon (already enabled at boot)"
        step = service_step(why, "start", PERSISTENCE_DAEMON, undo="stop")
    return make_plan(_TITLE, step)


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
    named = join_limited(f"GPU{gpu.index}" for gpu in gpus)
    return make_plan(
        "Turn MIG off if these GPUs are meant for multi-GPU training",
        "Keep MIG if it is on for a reason. On Kubernetes, mig-manager would turn it on again.",
        f"Drain the node. Turning MIG off deletes the instances of {named}.",
        f"Run nvidia-smi -i {gpus[0].bdf} -mig 0, and the same for every GPU. A100 GPUs then need a reset. "
        "nvidia-smi --query-gpu=index,mig.mode.current --format=csv shows the mode of each.",
        disturbs="every job on a MIG instance of these GPUs",
    )
