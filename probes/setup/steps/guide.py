"""Setup of one node: where it stands, which path it should use, and the steps in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from probes.bandwidth.model.result import Result
from probes.base.frozen import frozen
from probes.base.plan import Plan, Step, instruction, plan_or_none
from probes.base.unknown import Maybe, Unknown
from probes.checks.judgment import conclude
from probes.facts.gpudirect import GdrPath, hardware_of
from probes.facts.system.platform import in_container
from probes.host.protocol import Host
from probes.plans.load_modules import load_modules, load_peermem, persist_peermem
from probes.plans.pcie import pass_through_option
from probes.queries.acs_redirects import redirects_of
from probes.queries.finding import Finding
from probes.queries.modules import PEERMEM, is_present, module_of
from probes.setup.path_choice import PathChoice, choose_path
from probes.setup.situation import Situation, read_situation
from probes.setup.step import SetupRecord, SetupStep, StepState
from probes.setup.steps.boot_commands import for_this_node, pass_through_plan, redirects_off_plan
from probes.setup.steps.checked import CHECKED, checked_step, is_reboot, other_step
from probes.setup.steps.drivers import gpu_driver_step, nic_driver_step
from probes.setup.steps.environment import environment_step
from probes.setup.steps.handover import reboot_step, report_step
from probes.setup.steps.install_commands import perftest_steps
from probes.setup.steps.measured import MEASURED, measured_step
from probes.setup.steps.operators import driver_is_operators, operators_step
from probes.setup.steps.persistence import with_openibd_drop_in
from probes.snapshot.examination import Examination

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OPEN = (StepState.TO_DO, StepState.BLOCKED)
_NO_PATH = "GPUDirect RDMA cannot work on this node"
_IN_CONTAINER = "this is a container; run gdrtop setup on the node itself"
_OPERATOR_LOADS = "Set driver.rdma.enabled to true in the ClusterPolicy: gdrtop manifest clusterpolicy"
_INSIDE = ("environment", "measure-host", "measure-pair", "measure-all", "report")  # possible in a container

# Step → the steps that must be finished first.
AFTER: Mapping[str, tuple[str, ...]] = {
    "gpu-driver": ("hardware", "nic-driver"),
    "build": ("nic-driver", "gpu-driver"),
    "signatures": ("gpu-driver", "build"),
    "modules": ("nic-driver", "gpu-driver", "rival", "build", "signatures"),
    "dmabuf": ("gpu-driver",),
    "fabric": ("gpu-driver", "modules"),
    "acs": ("iommu",),
    "ports": ("nic-driver",),
    "boot": ("modules",),
    "tools": (),
    "measure-host": ("modules", "ports"),
    "measure-pair": ("modules", "fabric", "tools", "measure-host"),
    "measure-staged": ("modules", "fabric", "measure-host"),
    "measure-all": ("measure-pair",),
    "reboot": ("modules", "fabric", "iommu", "acs", "boot"),
    "report": ("measure-all", "reboot"),
}
ORDER = (
    "hardware",
    "nic-driver",
    "gpu-driver",
    "containers",
    "rival",
    "build",
    "signatures",
    "modules",
    "peermem-parameters",
    "dmabuf",
    "fabric",
    "iommu",
    "acs",
    "pcie",
    "ports",
    "memlock",
    "nccl",
    "environment",
    "boot",
    "tools",
    "measure-host",
    "measure-pair",
    "measure-staged",
    "measure-all",
    "others",
    "reboot",
    "report",
)


@frozen
class Guide:
    """Everything that setup shows at one moment."""

    situation: Situation
    choice: PathChoice
    path: GdrPath | None  # chosen by the admin, else recommended; None: none can work here
    steps: tuple[SetupStep, ...]
    boot_id: Maybe[str]
    path_by: str = ""  # "chosen by root on 2026-11-22"; "": the recommended path

    @property
    def is_impossible(self) -> bool:
        """Return whether GPUDirect RDMA can never work on this node: setup has nothing to do."""
        return self.choice.is_impossible

    @property
    def next_step(self) -> SetupStep | None:
        """Return the first step that can be done now."""
        return next((step for step in self.steps if step.state is StepState.TO_DO), None)

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to do."""
        return not any(step.is_open for step in self.steps)

    @property
    def is_prepared(self) -> bool:
        """Return whether everything before the reboot is done, so that a reboot can prove it."""
        return all(step.state not in _OPEN for step in self.steps if step.id in AFTER["reboot"])

    def step(self, id_: str) -> SetupStep | None:
        """Return a step by its id."""
        return next((step for step in self.steps if step.id == id_), None)


def read_guide(
    host: Host,
    examination: Examination,
    findings: Sequence[Finding],
    results: Sequence[Result],
    record: SetupRecord,
) -> Guide:
    """Read what setup needs besides an examination, and return the guide; may take seconds.

    `results`: all saved ones, also of other nodes.
    """
    platform = examination.node.platform
    name = platform if isinstance(platform, Unknown) else platform.hostname
    own = [result for result in results if result.node == name]
    situation = read_situation(host, examination)
    return build_guide(situation, findings, own, record, host.read(BOOT_ID))


def build_guide(
    situation: Situation,
    findings: Sequence[Finding],
    results: Sequence[Result],
    record: SetupRecord,
    boot_id: Maybe[str],
) -> Guide:
    """Return the guide for a node; `findings` are all of the node's, `results` those of this node."""
    examination = situation.examination
    choice = choose_path(examination)
    chosen = next((path for path in GdrPath if path.value == record.path), None)
    path = None if choice.is_impossible else chosen or choice.recommended
    by_id = {finding.id: finding for finding in findings}
    steps = {row.id: checked_step(row, by_id, path) for row in CHECKED}
    steps = {name: replace(step, plan=for_this_node(situation, step.plan)) for name, step in steps.items()}
    for step in (nic_driver_step(situation, path), gpu_driver_step(situation, path)):
        steps[step.id] = step
    for row in MEASURED:
        steps[row.id] = measured_step(row, examination, results, path)
    steps["modules"] = _in_load_order(examination, steps["modules"])
    if path is GdrPath.PEERMEM:
        steps["modules"] = _with_peermem(situation, steps["modules"], load_peermem, "is not loaded")
        boot = _with_peermem(situation, steps["boot"], persist_peermem, "is not loaded at boot")
        steps["boot"] = boot if driver_is_operators(situation) else with_openibd_drop_in(examination, boot)
    steps["iommu"] = _with_boot_loader(situation, steps["iommu"])
    steps["acs"] = _with_boot_option(situation, steps["acs"])
    steps["containers"] = operators_step(situation, steps["containers"])
    steps["environment"] = environment_step(situation)
    steps["others"] = other_step(by_id, path)
    if not hardware_of(examination.node.rdma) and steps["ports"].state is StepState.DONE:
        steps["ports"] = replace(steps["ports"], state=StepState.BLOCKED, reason="no RDMA device exists yet")
    steps["tools"] = _with_install(situation, steps["tools"])
    if path is GdrPath.CXI:
        reason = "perftest needs verbs, which Slingshot NICs do not have"
        steps["tools"] = replace(steps["tools"], state=StepState.SKIPPED, reason=reason, plan=None)
    steps["reboot"] = reboot_step(conclude(examination.usability, findings), record, boot_id)
    steps["report"] = report_step(record)
    if choice.is_impossible:
        steps["hardware"] = replace(steps["hardware"], state=StepState.BLOCKED, reason=choice.reason)
        for name in steps.keys() - {"hardware"}:
            steps[name] = replace(steps[name], state=StepState.SKIPPED, reason=_NO_PATH, plan=None)
    if in_container(examination.node.platform):
        steps = {name: _in_container(step) for name, step in steps.items()}
    ordered = _in_order(steps, record.skipped or {})
    return Guide(situation, choice, path, ordered, boot_id, record.path_by if chosen and path else "")


def _in_order(steps: Mapping[str, SetupStep], skipped: Mapping[str, str]) -> tuple[SetupStep, ...]:
    """Order the steps; those that the admin skipped and those that others block say so."""
    done: dict[str, SetupStep] = {}
    for name in ORDER:
        step = steps[name]
        if name in skipped and step.state is not StepState.DONE:
            step = replace(step, state=StepState.SKIPPED, reason=skipped[name])
        elif step.state is StepState.TO_DO or (name == "reboot" and step.state is StepState.DONE):
            first = next((done[other] for other in AFTER.get(name, ()) if done[other].state in _OPEN), None)
            if first is not None:
                step = replace(step, state=StepState.BLOCKED, reason=f"waiting for: {first.title}")
        done[name] = step
    return tuple(done.values())


def _in_container(step: SetupStep) -> SetupStep:
    """Block what only the node itself can do: its modules, boot files and settings."""
    if step.state is not StepState.TO_DO or step.id in _INSIDE:
        return step
    return replace(step, state=StepState.BLOCKED, reason=_IN_CONTAINER, plan=None)


def _with_boot_loader(situation: Situation, step: SetupStep) -> SetupStep:
    """Name the commands of this node's boot loader in the plan that sets the IOMMU to passthrough."""
    if step.plan is None or "iommu-translated" not in step.findings:
        return step
    option = pass_through_option(situation.examination)
    return replace(step, plan=pass_through_plan(situation, option, step.plan))


def _with_boot_option(situation: Situation, step: SetupStep) -> SetupStep:
    """Clear the ACS redirects now and at every boot; the step before this one stops the translation."""
    ports = redirects_of(situation.examination).ports
    if step.plan is None or step.findings != ("acs-redirect-enabled",) or not ports:
        return step
    return replace(step, plan=redirects_off_plan(situation, ports))


def _in_load_order(examination: Examination, step: SetupStep) -> SetupStep:
    """Load all missing modules in their order first; what the checks still miss follows."""
    if step.state is not StepState.TO_DO:
        return step
    plan = plan_or_none(load_modules(examination))
    return step if plan is None else replace(step, plan=plan)


def _with_peermem(
    situation: Situation,
    step: SetupStep,
    plan_of: Callable[[Examination], Plan | str],
    lack: str,
) -> SetupStep:
    """Add nvidia_peermem to a step: the checks do not miss it on a node that can use DMA-BUF."""
    examination = situation.examination
    module = module_of(examination, PEERMEM)
    if step.state not in (StepState.DONE, StepState.UNKNOWN) or isinstance(module, Unknown):
        return step
    is_there = is_present(module) if plan_of is load_peermem else module.persistent is not None
    if is_there:
        return step
    if driver_is_operators(situation):  # a modules-load entry would fail at boot: the node has no such file
        if plan_of is persist_peermem:
            return replace(step, state=StepState.DONE, reason="the GPU Operator's driver pod loads it")
        reason = f"nvidia_peermem {lack}; the GPU Operator has to load it"
        set_it = Plan(step.title, (instruction(_OPERATOR_LOADS),))
        return replace(step, state=StepState.TO_DO, reason=reason, plan=set_it)
    plan = plan_of(examination)
    state = StepState.BLOCKED if isinstance(plan, str) else StepState.TO_DO
    reason = plan if isinstance(plan, str) else f"nvidia_peermem {lack}"
    return replace(step, state=state, reason=reason, plan=plan_or_none(plan))


def _with_install(situation: Situation, step: SetupStep) -> SetupStep:
    """Add the distribution's package to the step whose checks miss perftest."""
    steps = perftest_steps(situation.distribution)
    if step.state is not StepState.TO_DO or "perftest-missing" not in step.findings or not steps:
        return step
    return replace(step, plan=Plan(step.title, steps, reversible=False))


def remaining_plans(guide: Guide) -> tuple[Plan, ...]:
    """Return the commands that are left, a plan for each step in order; a reboot comes last, and once."""
    plans = []
    reboot: Step | None = None
    for step in guide.steps:
        if step.state not in _OPEN or step.plan is None or step.id == "reboot":  # no script reboots for it
            continue
        # A manual step that comes after another one may then be done, or be another.
        if step.state is StepState.BLOCKED and all(one.is_instruction for one in step.plan.steps):
            continue
        reason = f": {step.reason}" if step.state is StepState.TO_DO else ""
        reboot = next(filter(is_reboot, step.plan.steps), reboot)
        left = tuple(one for one in step.plan.steps if not is_reboot(one))
        plans.append(replace(step.plan, title=f"{step.title}{reason}", steps=left))
    if reboot is not None:
        plans.append(Plan("Reboot", (reboot,), needs_reboot=True))
    return tuple(plans)
