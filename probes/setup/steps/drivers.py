"""The two drivers: the NIC's first, then the GPU's, which is built against it."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction, sentences
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage, module_flavor
from probes.facts.gpudirect import GdrPath
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.distribution import Family
from probes.queries.finding import Evidence
from probes.queries.modules import has_efa_only, mlx4_functions
from probes.setup.situation import Situation
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.install_commands import gpu_driver_steps, header_step, ofed_steps

_NIC = ("nic-driver", "Install the NIC driver")
_GPU = ("gpu-driver", "Install the NVIDIA driver")
_NIC_WHY = "The NIC driver comes first: the NVIDIA driver's nvidia_peermem is built against it."
_GPU_WHY = "DMA-BUF needs the open kernel modules; nvidia_peermem needs driver 470 or newer."
_FIRST_PEERMEM_DRIVER = 470  # nvidia-peermem's README: it is in the driver from 470 on
_FIRST_OPEN_ONLY = 620  # no proprietary kernel modules any more
_EFA = "Install AWS's EFA software as root: efa_installer.sh of aws-efa-installer"
_CONNECTX_3 = "Install MLNX_OFED 4.9 LTS, the last one for ConnectX-3, from NVIDIA's download page"
_OFFLINE = "This node has no default route: install from a local mirror, or copy the packages to it."
_SIGNING = (
    "Secure Boot is on: modules built on this node load only after their key was enrolled"
    " (gdrtop setup signatures)."
)
_PEER_STACKS = (NicStack.MLNX_OFED, NicStack.DOCA_OFED, NicStack.CONTAINER)
_IMMUTABLE = (Family.COREOS, Family.TALOS, Family.CONTAINER_OS)


def nic_driver_step(situation: Situation, path: GdrPath | None) -> SetupStep:
    """Return the step for the NIC driver: the kernel's own is enough for DMA-BUF, not for peermem."""
    driver = situation.nic_driver
    stack = driver.stack if isinstance(driver, NicDriver) else driver
    if isinstance(stack, Unknown):
        if stack.reason is Reason.NOT_THERE:
            return _nic(situation, StepState.TO_DO, "no RDMA driver is installed", path)
        return _step(_NIC, _NIC_WHY, StepState.UNKNOWN, f"the NIC driver is unknown: {stack}")
    assert isinstance(driver, NicDriver)
    shown = "the kernel's own driver" if stack is NicStack.INBOX else stack.value
    name = f"{shown} {known(driver.version, '')}".strip()
    evidence = (Evidence("NIC driver", name),)
    if path is GdrPath.PEERMEM and stack not in _PEER_STACKS and not has_efa_only(situation.examination):
        if driver.exports_peer_memory is True:
            return _step(_NIC, _NIC_WHY, StepState.DONE, f"{name} supports nvidia_peermem", evidence)
        reason = f"nvidia_peermem needs MLNX_OFED or DOCA-OFED; this is {name}"
        return _nic(situation, StepState.TO_DO, reason, path)
    return _step(_NIC, _NIC_WHY, StepState.DONE, f"{name} is installed", evidence)


def _nic(situation: Situation, state: StepState, reason: str, path: GdrPath | None) -> SetupStep:
    if _is_immutable(situation):
        plan = Plan(
            _NIC[1],
            (instruction("Let the Network Operator install the driver: gdrtop manifest nicclusterpolicy"),),
        )
        return _step(_NIC, _NIC_WHY, state, reason, plan=plan)
    headers = header_step(situation.distribution, situation.examination.node.kernel_release)
    if has_efa_only(situation.examination):
        steps: tuple[Step, ...] = (headers, instruction(_EFA))
    elif known(mlx4_functions(situation.examination), ()):
        steps = (headers, instruction(_CONNECTX_3))
    elif path is GdrPath.PEERMEM:
        steps = ofed_steps(situation.distribution, headers)
    else:
        own = instruction("Load the kernel's own driver, or install DOCA-OFED if its tools are wanted.")
        steps = (own, *ofed_steps(situation.distribution, headers))
    note = sentences("Build the NVIDIA driver again afterwards", _signing_note(situation))
    plan = Plan(_NIC[1], (*_offline_step(situation), *steps), reversible=False, note=note)
    return _step(_NIC, _NIC_WHY, state, reason, plan=plan, needs_console=_needs_console(situation))


def gpu_driver_step(situation: Situation, path: GdrPath | None) -> SetupStep:
    """Return the step for the NVIDIA driver: its version, and open modules where DMA-BUF needs them."""
    driver = situation.gpu_driver
    version = driver.version if isinstance(driver, DriverPackage) else driver
    if isinstance(version, Unknown):
        if version.reason is Reason.NOT_THERE:
            return _gpu(situation, "no NVIDIA driver is installed")
        return _step(_GPU, _GPU_WHY, StepState.UNKNOWN, f"the driver's version is unknown: {version}")
    assert isinstance(driver, DriverPackage)
    branch = int(version.partition(".")[0]) if version.partition(".")[0].isdigit() else 0
    is_open: Maybe[bool] = True if branch >= _FIRST_OPEN_ONLY else driver.is_open
    modules = module_flavor(is_open)
    evidence = (Evidence("NVIDIA driver", f"{version}, {modules}"),)
    if path is GdrPath.PEERMEM:
        if branch < _FIRST_PEERMEM_DRIVER:
            return _gpu(situation, f"nvidia_peermem needs driver {_FIRST_PEERMEM_DRIVER}; this is {version}")
        if driver.prebuilt is True and _is_ofed(situation):
            reason = "the distributor built nvidia_peermem without the installed OFED; use the DKMS package"
            return _gpu(situation, reason)
    elif path is GdrPath.DMABUF and is_open is False:
        return _gpu(situation, f"DMA-BUF needs the open kernel modules; {version} has the proprietary ones")
    elif path is GdrPath.DMABUF and isinstance(is_open, Unknown):
        return _step(_GPU, _GPU_WHY, StepState.UNKNOWN, f"open or proprietary modules: {is_open}", evidence)
    return _step(_GPU, _GPU_WHY, StepState.DONE, f"{version} with {modules} is installed", evidence)


def _gpu(situation: Situation, reason: str) -> SetupStep:
    driver = situation.gpu_driver
    by_operator = isinstance(driver, DriverPackage) and driver.origin is DriverOrigin.CONTAINER
    if by_operator or _is_immutable(situation):
        plan = Plan(
            _GPU[1],
            (instruction("Let the GPU Operator install the driver: gdrtop manifest clusterpolicy"),),
        )
        return _step(_GPU, _GPU_WHY, StepState.TO_DO, reason, plan=plan)
    headers = header_step(situation.distribution, situation.examination.node.kernel_release)
    plan = Plan(
        _GPU[1],
        (*_offline_step(situation), *gpu_driver_steps(situation.distribution, headers)),
        reversible=False,
        needs_reboot=True,
        disturbs="every job on the GPUs",
        note=_signing_note(situation),
    )
    needs_console = _needs_console(situation)
    return _step(_GPU, _GPU_WHY, StepState.TO_DO, reason, plan=plan, needs_console=needs_console)


def _needs_console(situation: Situation) -> bool:
    """Return whether Secure Boot is on, so that the key of modules built here has to be enrolled."""
    kernel = situation.examination.node.kernel
    return not isinstance(kernel, Unknown) and kernel.secure_boot is True


def _signing_note(situation: Situation) -> str:
    return _SIGNING if _needs_console(situation) else ""


def _offline_step(situation: Situation) -> tuple[Step, ...]:
    """Say that there is no default route: a download would only time out."""
    network = situation.examination.node.network
    routes = network if isinstance(network, Unknown) else network.default_routes
    return (instruction(_OFFLINE),) if routes == frozenset() else ()


def _is_ofed(situation: Situation) -> bool:
    driver = situation.nic_driver
    return isinstance(driver, NicDriver) and driver.stack in _PEER_STACKS


def _is_immutable(situation: Situation) -> bool:
    distribution = situation.distribution
    return not isinstance(distribution, Unknown) and distribution.family in _IMMUTABLE


def _step(
    name: tuple[str, str],
    why: str,
    state: StepState,
    reason: str,
    evidence: tuple[Evidence, ...] = (),
    plan: Plan | None = None,
    needs_console: bool = False,
) -> SetupStep:
    return SetupStep(name[0], name[1], state, reason, why, evidence, plan, needs_console)
