"""The steps of setup: those of steps.toml, with what builds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from probes.bandwidth.model.request import MemoryPath, Request, Scope
from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity
from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.checks.judgment import conclude
from probes.facts.gpudirect import GdrPath, hardware_of
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.node import host_name
from probes.facts.rdma.cable_ends import NOT_INSTALLED, ends_of_port
from probes.facts.system.platform import is_guest
from probes.facts.system.tool_names import NCCL_TESTS
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.plans.common import reboot_step as reboot_command
from probes.queries.finding import Finding
from probes.setup.env.advice import Advice, lines_of
from probes.setup.env.advice import State as AdviceState
from probes.setup.env.recommend import recommend
from probes.setup.step import OPEN_STATES, REBOOT, BuiltStep, SetupFacts, SetupStep, StepDefinition, StepState
from probes.setup.steps.checked import CheckedStep
from probes.setup.steps.drivers import (
    complete_boot,
    complete_modules,
    gpu_driver_step,
    nic_driver_step,
    with_operators,
)
from probes.setup.steps.measured import CableStep, MeasuredStep, two_node_step
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State


def environment_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if the defaults fit, or /etc/nccl.conf has what the node needs."""
    examination, step = facts.examination, partial(definition.step, command="gdrtop env")
    advice = recommend(examination, facts.situation.cloud)
    if advice.nothing:
        return step(StepState.BLOCKED, advice.nothing)
    if advice.vendor and not advice.settings:
        reason = f"{advice.vendor}: its own software sets the variables"
        return step(StepState.DONE, reason)
    if not advice.settings:
        open_notes = [note.variable for note in advice.notes if note.state is AdviceState.MEASURE]
        more = f"; {join_limited(open_notes)} may help: measure it first" if open_notes else ""
        return step(StepState.DONE, f"no variable is required{more}")
    evidence = tuple(
        Evidence(f"{setting.name}={setting.value}", setting.reason) for setting in advice.settings
    )
    names = join_limited(setting.name for setting in advice.settings)
    reason = f"{plural(len(advice.settings), 'variable')} to set: {names}"
    plan = None if advice.vendor else _plan(definition.title, examination, advice)
    return step(StepState.TO_DO, reason, evidence, plan)


def _plan(title: str, examination: Examination, advice: Advice) -> Plan | None:
    """Write /etc/nccl.conf if there is none; a file that exists is changed by hand."""
    names = [setting.name for setting in advice.settings if setting.name.startswith("NCCL_")]
    if not names:
        return None
    conf = map_known(examination.processes, lambda facts: facts.nccl_conf)
    if isinstance(conf, Unknown) and conf.reason is Reason.NOT_THERE:
        lines = lines_of(advice, known(host_name(examination.node), "this node"), "nccl-conf")
        change = FileChange(NCCL_CONF, "\n".join(lines) + "\n")
        step = Step(f"Write {', '.join(names)} to {NCCL_CONF}", file=change)
        return Plan(title, (step,), note="Running jobs keep their variables until they restart.")
    steps = (
        instruction(f"Add this line to {NCCL_CONF}: {setting.name}={setting.value}")
        for setting in advice.settings
        if setting.name in names
    )
    return Plan(title, tuple(steps))


# The last steps: the reboot that proves the setup, and the report that hands the node over.

_CONTINUES = "Then open setup again: it continues from here."
# Only showing the steps writes nothing.
_REMEMBER = "First press Enter here, or run gdrtop setup reboot --run: gdrtop then knows this boot."


def reboot_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done in a boot in which gdrtop never saw an open step, after an earlier boot.

    A boot in which something was loaded or set by hand proves nothing, even if the path is usable now.
    """
    boot_id, boots = facts.boot_id, facts.record.boots
    if isinstance(boot_id, Unknown):
        return definition.step(StepState.UNKNOWN, f"the boot ID is unknown: {boot_id}")
    if all(boot == boot_id for boot in boots):
        reason = "not rebooted since setup began"
    elif boots.get(boot_id):
        reason = "not rebooted since the last step was completed"
    else:
        verdict = conclude(facts.examination.usability, tuple(facts.findings.values()))
        if verdict.state.is_usable or facts.choice.is_staged:
            return definition.step(StepState.DONE, "the path is usable after a reboot")
        reason = f"after the reboot: {verdict.state.value}, {verdict.reason}"
        if verdict.state is State.UNKNOWN:
            return definition.step(StepState.UNKNOWN, reason)
    plan = Plan(
        definition.title,
        (
            instruction("See what the reboot will change: gdrtop forecast", needs_root=False),
            reboot_command("Drain the node, then reboot it"),
        ),
        needs_reboot=True,
        disturbs=REBOOT_ENDS_JOBS,
        note=_CONTINUES if boots else f"{_REMEMBER} {_CONTINUES}",
    )
    return definition.step(StepState.TO_DO, reason, plan=plan)


def report_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if a report of this node was written."""
    file = facts.record.reported
    state = StepState.DONE if file else StepState.TO_DO
    reason = f"written to {file}" if file else "not written yet"
    return definition.step(state, reason, command="gdrtop report FILE")


HARDWARE, _OTHERS = "hardware", "others"
_NO_VERBS = "perftest needs verbs, which Slingshot NICs do not have"
_WHOLE_NODE = "no-gdr-path"  # the sum of what the other steps are about


@dataclass(frozen=True, kw_only=True)
class _OtherFindings(CheckedStep):
    """The step for what the doctor found and no other step is about."""

    def findings_of(self, facts: SetupFacts) -> list[Finding]:
        """Return the critical findings and warnings that no other step covers."""
        others = [step for step in STEPS if isinstance(step, CheckedStep)]
        return [
            finding
            for finding in facts.findings.values()
            if finding.is_present
            and finding.severity is not Severity.NOTE
            and finding.id != _WHOLE_NODE
            and finding.part_of not in facts.findings  # it ends with its cause
            and not any(step.covers(finding.id) for step in others)
        ]


def _if_judged(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Leave the other findings unknown while the node cannot be judged."""
    verdict = facts.examination.usability
    if verdict.state is not State.UNKNOWN or step.state is not StepState.DONE:
        return step
    return replace(step, state=StepState.UNKNOWN, reason=f"the node cannot be judged: {verdict.reason}")


def _with_impossibility(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Say why no other step can help where GPUDirect RDMA can never work."""
    if not facts.choice.is_impossible:
        return step
    if not facts.choice.is_staged:
        return replace(step, state=StepState.BLOCKED, reason=facts.choice.reason)
    is_done = step.state is StepState.DONE
    return replace(step, reason=f"by design: {facts.choice.reason}") if is_done else step


def _with_devices(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Block the ports of a node that has no RDMA device: no check finds fault with them."""
    if hardware_of(facts.examination.node.rdma) or step.state is not StepState.DONE:
        return step
    return replace(step, state=StepState.BLOCKED, reason="no RDMA device exists yet")


def _with_far_ends(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Say whether the ends of Ethernet cables are known; without an answer of lldpd, the step is optional."""
    step, node, ends = _with_devices(facts, step), facts.examination.node, facts.examination.cable_ends
    is_of_lldp = all(name.startswith("cable-") for name in step.findings)
    if isinstance(ends, Unknown) or isinstance(node.rdma, Unknown) or not is_of_lldp:
        return step
    active = [port for device in node.rdma.devices for port in device.ports if port.is_active]
    heard = [end for port in active for end in ends_of_port(ends, port).values()]
    unread = [end for end in heard if isinstance(end, Unknown)]
    if not heard or is_guest(node.platform) is True or step.state in OPEN_STATES:
        return step  # a virtual machine's cables are its host's
    if unread and NOT_INSTALLED not in unread:
        why = unread[0].detail or unread[0].reason.value
        reason = f"the other end of {len(unread)} of {plural(len(heard), 'cable')} is unknown: {why}"
        return replace(step, state=StepState.UNKNOWN, reason=reason, is_optional=True)
    said = (
        f"{NOT_INSTALLED.detail}, so their ends are unknown" if unread else f"{len(heard)} switch ports known"
    )
    return step if step.findings else replace(step, reason=f"{step.reason}; {said}")


def _without_verbs(facts: SetupFacts, step: SetupStep) -> SetupStep:
    """Skip perftest on a node with Slingshot NICs, which have no verbs."""
    if facts.path is not GdrPath.CXI:
        return step
    return replace(step, state=StepState.SKIPPED, reason=_NO_VERBS, plan=None)


_COMPLETE = {
    HARDWARE: _with_impossibility,
    "containers": with_operators,
    "modules": complete_modules,
    "ports": _with_devices,
    "cables": _with_far_ends,
    "boot": complete_boot,
    "tools": _without_verbs,
    _OTHERS: _if_judged,
}
"""What no check knows, by step."""
_FUNCTIONS = {
    "nic-driver": nic_driver_step,
    "gpu-driver": gpu_driver_step,
    "environment": environment_step,
    REBOOT: reboot_step,
    "report": report_step,
    "cable-nccl": two_node_step,
}
_REQUESTS = {
    "measure-host": Request(memory=MemoryPath.HOST),
    "measure-pair": Request(memory=MemoryPath.COMPARE),
    "measure-staged": Request(tool=NCCL_TESTS[0], over_network=True, memory=MemoryPath.COMPARE),
    "measure-all": Request(scope=Scope.SWEEP),
    "cable-pair": Request(),
    "cable-rails": Request(scope=Scope.SWEEP),
}


def _defined(row: dict[str, Any]) -> StepDefinition:
    """Return the step of a row of steps.toml."""
    id_ = row["id"]
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    if id_ in _FUNCTIONS:
        return BuiltStep(**fields, function=_FUNCTIONS[id_])
    if id_ in _REQUESTS:
        make = CableStep if "command" in row else MeasuredStep
        return make(**fields, request=_REQUESTS[id_])
    if "only" in row:
        fields["only"] = GdrPath(row["only"])
    kind = _OtherFindings if id_ == _OTHERS else CheckedStep
    return kind(**fields, complete=_COMPLETE.get(id_))


STEPS = tuple(map(_defined, read_toml(__package__, "steps.toml")["step"]))


def definition_of(id_: str) -> StepDefinition:
    """Return the definition of a step by its id."""
    return next(step for step in STEPS if step.id == id_)


def check_steps(steps: Iterable[StepDefinition]) -> None:
    """Raise ValueError for an id that occurs twice, or an `after` that is not the id of an earlier step."""
    earlier: set[str] = set()
    for step in steps:
        if step.id in earlier:
            raise ValueError(f"two steps have the id {step.id!r}")
        for name in step.after:
            if name not in earlier:
                raise ValueError(f"{step.id!r} comes after {name!r}, which is not an earlier step")
        earlier.add(step.id)


check_steps(STEPS)
