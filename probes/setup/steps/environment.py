"""The step that sets the variables which jobs of this node need."""

from __future__ import annotations

from probes.base.evidence import Evidence
from probes.base.plan import FileChange, Plan, Step, instruction
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.facts.node import host_name
from probes.setup.environment.advice import Advice, State, lines_of
from probes.setup.environment.recommend import recommend
from probes.setup.step import SetupFacts, SetupStep, StepDefinition, StepState
from probes.snapshot.examination import Examination

_COMMAND = "gdrtop env"


def environment_step(definition: StepDefinition, facts: SetupFacts) -> SetupStep:
    """Return the step: done if the defaults fit, or /etc/nccl.conf has what the node needs."""
    examination = facts.examination
    advice = recommend(examination, facts.situation.cloud)
    if advice.nothing:
        return definition.step(StepState.BLOCKED, advice.nothing, command=_COMMAND)
    if advice.vendor and not advice.settings:
        reason = f"{advice.vendor}: its own software sets the variables"
        return definition.step(StepState.DONE, reason, command=_COMMAND)
    if not advice.settings:
        open_notes = [note.variable for note in advice.notes if note.state is State.MEASURE]
        more = f"; {join_limited(open_notes)} may help: measure it first" if open_notes else ""
        return definition.step(StepState.DONE, f"no variable is required{more}", command=_COMMAND)
    evidence = tuple(
        Evidence(f"{setting.name}={setting.value}", setting.reason) for setting in advice.settings
    )
    names = join_limited(setting.name for setting in advice.settings)
    reason = f"{plural(len(advice.settings), 'variable')} to set: {names}"
    plan = None if advice.vendor else _plan(definition.title, examination, advice)
    return definition.step(StepState.TO_DO, reason, evidence, plan, command=_COMMAND)


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
