"""The two drivers, the NIC's first, then the GPU's, which is built against it; and the operators' pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from probes.base.evidence import Evidence
from probes.base.plan import FileChange, Plan, Step, instruction, plan_or_none, sentences
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.driver_package import DriverOrigin, DriverPackage, module_flavor
from probes.facts.gpu.generations import generation_named
from probes.facts.gpudirect import GdrPath
from probes.facts.gpudirect_probe import FIRST_OPEN_ONLY
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import CONNECTX_3
from probes.facts.rdma.nic_driver import NicDriver, NicStack
from probes.facts.system.kubernetes import ContainerState
from probes.plans.common import reload_units_step
from probes.plans.load_modules import load_modules, load_peermem, peermem_options, persist_peermem
from probes.plans.packages import header_step, is_immutable, ofed_steps, open_driver_steps
from probes.queries.modules import has_efa_only, is_present, module_of, nics_of
from probes.setup.manifests.immutable_hosts import OPENIBD_FILE, drop_in_lines
from probes.setup.situation import Situation, state_of
from probes.setup.step import SetupFacts, SetupStep, StepDefinition, StepState
from probes.snapshot.examination import Examination

# nvidia-peermem is in the driver from 470 on, whose CUDA is 11.4 (GPU Operator, GPUDirect RDMA).
_FIRST_PEERMEM_DRIVER = 470
_EFA = "Install AWS's EFA software as root: efa_installer.sh of aws-efa-installer"
_CONNECTX_3 = "Install MLNX_OFED 4.9 LTS, the last one for ConnectX-3, from NVIDIA's download page"
_OFFLINE = "This node has no default route: install from a local mirror, or copy the packages to it."
_SIGNING = (
    "Secure Boot is on: modules built on this node load only after their key is enrolled"
    " (gdrtop setup signatures)."
)
_PEER_STACKS = (NicStack.MLNX_OFED, NicStack.DOCA_OFED, NicStack.CONTAINER)
_MOST_LOG_LINES = 3
# What the step "build" mends without installing the driver again.
UNUSABLE_MODULES = (
    *("dkms-not-built-for-kernel", "dkms-build-failed", "module-file-unusable"),
    *("module-wrong-architecture", "modules-index-missing"),
)
_NO_CLUSTER = "this is not a Kubernetes node"
_FINISHED = "Completed"


def nic_driver_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step for the NIC driver: the kernel's own is enough for DMA-BUF, not for peermem."""
    situation, path = facts.situation, facts.path
    driver = situation.nic_driver
    stack = driver.stack if isinstance(driver, NicDriver) else driver
    if isinstance(stack, Unknown):
        if stack.reason is Reason.NOT_THERE:
            return _install_nic_driver(definition, facts, "no RDMA driver is installed")
        return definition.step(StepState.UNKNOWN, f"the NIC driver is unknown: {stack}")
    assert isinstance(driver, NicDriver)
    shown = "the kernel's own driver" if stack is NicStack.INBOX else stack.value
    name = f"{shown} {known(driver.version, '')}".strip()
    evidence = (Evidence("NIC driver", name),)
    if path is GdrPath.PEERMEM and stack not in _PEER_STACKS and not has_efa_only(situation.examination):
        if driver.exports_peer_memory is True:
            return definition.step(StepState.DONE, f"{name} supports nvidia_peermem", evidence)
        reason = f"nvidia_peermem needs MLNX_OFED or DOCA-OFED; this is {name}"
        return _install_nic_driver(definition, facts, reason)
    return definition.step(StepState.DONE, f"{name} is installed", evidence)


def _install_nic_driver(definition: StepDefinition, facts: SetupFacts, reason: str) -> SetupStep:
    situation = facts.situation
    examination = situation.examination
    if is_immutable(examination):
        return definition.step(StepState.TO_DO, reason, plan=Plan(definition.title, ofed_steps(examination)))
    headers = header_step(examination)
    if has_efa_only(examination):
        steps: tuple[Step, ...] = (headers, instruction(_EFA))
    elif known(nics_of(examination, CONNECTX_3), ()):
        steps = (headers, instruction(_CONNECTX_3))
    elif facts.path is GdrPath.PEERMEM:
        steps = ofed_steps(examination)
    else:
        own = instruction("Load the kernel's own driver, or install DOCA-OFED if you want its tools.")
        steps = (own, *ofed_steps(examination))
    note = sentences("Rebuild the NVIDIA driver afterward", _signing_note(situation))
    plan = Plan(definition.title, (*_offline_step(situation), *steps), note=note)
    return definition.step(StepState.TO_DO, reason, plan=plan, needs_console=_needs_console(situation))


def gpu_driver_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step for the NVIDIA driver: its version, and open modules where DMA-BUF needs them."""
    situation, path = facts.situation, facts.path
    driver = situation.gpu_driver
    version = driver.version if isinstance(driver, DriverPackage) else driver
    if isinstance(version, Unknown):
        if version.reason is Reason.NOT_THERE:
            return _without_module(definition, facts)
        return definition.step(StepState.UNKNOWN, f"the driver's version is unknown: {version}")
    assert isinstance(driver, DriverPackage)
    branch = int(version.partition(".")[0]) if version.partition(".")[0].isdigit() else 0
    is_open: Maybe[bool] = True if branch >= FIRST_OPEN_ONLY[0] else driver.is_open
    modules = module_flavor(is_open)
    evidence = (Evidence("NVIDIA driver", f"{version}, {modules}"),)
    if reason := _too_old(situation.examination, version, branch):
        return _install_gpu_driver(definition, situation, reason)
    if path is GdrPath.PEERMEM:
        if branch < _FIRST_PEERMEM_DRIVER:
            reason = (
                f"nvidia_peermem needs driver {_FIRST_PEERMEM_DRIVER} (CUDA 11.4) or newer; this is {version}"
            )
            return _install_gpu_driver(definition, situation, reason)
        nic_driver = situation.nic_driver
        has_ofed = isinstance(nic_driver, NicDriver) and nic_driver.stack in _PEER_STACKS
        if driver.prebuilt is True and has_ofed:
            reason = "the distribution built nvidia_peermem without the installed OFED; use the DKMS package"
            return _install_gpu_driver(definition, situation, reason)
    elif path is GdrPath.DMABUF and is_open is False:
        reason = f"DMA-BUF needs the open kernel modules; {version} has the proprietary ones"
        return _install_gpu_driver(definition, situation, reason)
    elif path is GdrPath.DMABUF and isinstance(is_open, Unknown):
        return definition.step(
            StepState.UNKNOWN, f"cannot tell open from proprietary modules: {is_open}", evidence
        )
    return definition.step(StepState.DONE, f"{version} with {modules} is installed", evidence)


def _too_old(examination: Examination, version: str, branch: int) -> str:
    """Return why this driver cannot know a GPU of this node; "": nothing says so."""
    gpus = examination.node.gpus
    names = () if isinstance(gpus, Unknown) else tuple(gpu.name for gpu in gpus.gpus)
    rows = ((name, generation_named(name)) for name in names)
    older = ((name, row.first_branch) for name, row in rows if row is not None and branch < row.first_branch)
    return next((f"{name} needs driver {first} or newer; this is {version}" for name, first in older), "")


def _without_module(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step where no module of the driver is for this kernel: perhaps it only has to be built."""
    situation = facts.situation
    if not isinstance(situation.gpu_driver, DriverPackage):
        return _install_gpu_driver(definition, situation, "no NVIDIA driver is installed")
    if any(facts.findings[id_].is_present for id_ in UNUSABLE_MODULES if id_ in facts.findings):
        return definition.step(StepState.DONE, "the driver is installed; its modules come in a later step")
    return _install_gpu_driver(definition, situation, "the installed driver has no module for this kernel")


def _install_gpu_driver(definition: StepDefinition, situation: Situation, reason: str) -> SetupStep:
    steps = open_driver_steps(situation.examination)
    if driver_is_operators(situation) or is_immutable(situation.examination):
        return definition.step(StepState.TO_DO, reason, plan=Plan(definition.title, steps))
    plan = Plan(
        definition.title,
        (*_offline_step(situation), *steps),
        needs_reboot=True,
        disturbs="every job on the GPUs",
        note=_signing_note(situation),
    )
    return definition.step(StepState.TO_DO, reason, plan=plan, needs_console=_needs_console(situation))


def _needs_console(situation: Situation) -> bool:
    """Return whether Secure Boot is on, so that the key of modules built here has to be enrolled."""
    kernel = situation.examination.node.kernel
    return not isinstance(kernel, Unknown) and kernel.secure_boot is True


def _signing_note(situation: Situation) -> str:
    return _SIGNING if _needs_console(situation) else ""


def _offline_step(situation: Situation) -> tuple[Step, ...]:
    """Say that there is no default route: a download would only time out."""
    routes = map_known(situation.examination.node.network, lambda network: network.default_routes)
    return (instruction(_OFFLINE),) if routes == frozenset() else ()


def with_operators(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Add the containers that are not ready to the step of the checks."""
    cluster = facts.situation.kubernetes
    if isinstance(cluster, Unknown):
        is_absent = cluster.reason is Reason.NOT_THERE and step.state is StepState.DONE and not step.findings
        return replace(step, state=StepState.SKIPPED, reason=_NO_CLUSTER) if is_absent else step
    listed = cluster.containers
    if isinstance(listed, Unknown):
        return step
    waiting = [container for container in listed if not container.ready and container.reason != _FINISHED]
    if not waiting:
        return step
    evidence = tuple(dict.fromkeys((*step.evidence, *_evidence(waiting))))
    if step.state is StepState.TO_DO:
        return replace(step, evidence=evidence)
    return replace(step, state=StepState.TO_DO, reason=state_of(waiting[0]), evidence=evidence)


def _evidence(waiting: Iterable[ContainerState]) -> Iterable[Evidence]:
    for container in waiting:
        pod = f"{container.namespace}/{container.pod}" if container.namespace else container.pod
        yield Evidence(pod, state_of(container))
        for line in container.log[-_MOST_LOG_LINES:]:
            yield Evidence(container.name, line)


def driver_is_operators(situation: Situation) -> bool:
    """Return whether the GPU Operator owns the driver: changes on the node itself do not last."""
    driver = situation.gpu_driver
    return isinstance(driver, DriverPackage) and driver.origin is DriverOrigin.CONTAINER


# What no check knows about loading the modules of a path: the order, nvidia_peermem, and openibd.

_OPERATOR_LOADS = "Set driver.rdma.enabled to true in the ClusterPolicy: gdrtop manifest clusterpolicy"
_UNLOADED = "a restart of openibd unloads nvidia_peermem, and nothing loads it again"
_HEAD = "# Written by gdrtop setup: openibd unloads nvidia_peermem when it restarts."


def complete_modules(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Load all missing modules in their order first; what the checks still miss follows."""
    if step.state is StepState.TO_DO:
        plan = plan_or_none(load_modules(facts.examination))
        step = step if plan is None else replace(step, plan=plan)
    if facts.path is not GdrPath.PEERMEM:
        return step
    return _with_peermem(facts, step, load_peermem, "is not loaded")


def complete_boot(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Load nvidia_peermem at boot, also after openibd, where the path needs it."""
    if facts.path is not GdrPath.PEERMEM:
        return step
    step = _with_peermem(facts, step, persist_peermem, "is not loaded at boot")
    return step if driver_is_operators(facts.situation) else _with_openibd_drop_in(facts.examination, step)


def _with_peermem(
    facts: SetupFacts, step: SetupStep, plan_of: Callable[[Examination], Plan | str], lack: str
) -> SetupStep:
    """Add nvidia_peermem to a step: the checks do not miss it on a node that can use DMA-BUF."""
    module = module_of(facts.examination, PEERMEM)
    if step.state not in (StepState.DONE, StepState.UNKNOWN) or isinstance(module, Unknown):
        return step
    is_there = is_present(module) if plan_of is load_peermem else module.persistent is not None
    if is_there:
        return step
    if driver_is_operators(facts.situation):  # a modules-load entry would fail: the node has no such file
        if plan_of is persist_peermem:
            return replace(step, state=StepState.DONE, reason="the GPU Operator's driver pod loads it")
        reason = f"nvidia_peermem {lack}; the GPU Operator has to load it"
        set_it = Plan(step.title, (instruction(_OPERATOR_LOADS),))
        return replace(step, state=StepState.TO_DO, reason=reason, plan=set_it)
    plan = plan_of(facts.examination)
    state = StepState.BLOCKED if isinstance(plan, str) else StepState.TO_DO
    reason = plan if isinstance(plan, str) else f"nvidia_peermem {lack}"
    return replace(step, state=state, reason=reason, plan=plan_or_none(plan))


def _with_openibd_drop_in(examination: Examination, step: SetupStep) -> SetupStep:
    """Add the drop-in where openibd starts at boot and no unit loads nvidia_peermem.

    openibd unloads nvidia_peermem at each restart and may come late at boot, so modules-load.d is not enough;
    Azure's images do the same (azhpc-images, components/setup_sku_customizations.sh).
    """
    services = examination.services
    if isinstance(services, Unknown) or step.state not in (StepState.DONE, StepState.TO_DO):
        return step
    if services.services["openibd"].enabled is not True or PEERMEM in services.modprobe:
        return step
    text = "\n".join((_HEAD, *drop_in_lines(peermem_options(examination)))) + "\n"
    steps = (
        Step("Load nvidia_peermem after each start of openibd", file=FileChange(OPENIBD_FILE, text)),
        reload_units_step(),
    )
    if step.state is StepState.DONE:
        return replace(step, state=StepState.TO_DO, reason=_UNLOADED, plan=Plan(step.title, steps))
    if step.plan is None:
        return step
    return replace(step, plan=replace(step.plan, steps=(*steps, *step.plan.steps)))
