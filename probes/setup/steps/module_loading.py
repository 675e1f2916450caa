"""What no check knows about loading the modules of a path: the order, nvidia_peermem, and openibd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.base.plan import FileChange, Plan, Step, instruction, plan_or_none
from probes.base.unknown import Unknown
from probes.facts.gpudirect import GdrPath
from probes.facts.kernel.modules import PEERMEM
from probes.plans.common import reload_units_step
from probes.plans.load_modules import load_modules, load_peermem, peermem_options, persist_peermem
from probes.queries.modules import is_present, module_of
from probes.setup.manifests.modules_load import OPENIBD_FILE, drop_in_lines
from probes.setup.step import SetupStep, StepState
from probes.setup.steps.definition import SetupFacts
from probes.setup.steps.drivers import driver_is_operators
from probes.snapshot.examination import Examination

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
