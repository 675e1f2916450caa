"""Load nvidia_peermem again after openibd, which unloads it at each restart and may come late at boot."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import FileChange, Plan, Step
from probes.base.unknown import Unknown
from probes.plans.load_modules import peermem_options
from probes.queries.modules import PEERMEM
from probes.setup.manifests.modules_load import OPENIBD_FILE, drop_in_lines
from probes.setup.step import SetupStep, StepState
from probes.snapshot.examination import Examination

_REASON = "a restart of openibd unloads nvidia_peermem, and nothing loads it again"
_HEAD = "# Written by gdrtop setup: openibd unloads nvidia_peermem when it restarts."


def with_openibd_drop_in(examination: Examination, step: SetupStep) -> SetupStep:
    """Add the drop-in where openibd starts at boot and no unit loads nvidia_peermem.

    As on Azure's images (azhpc-images, components/setup_sku_customizations.sh): modules-load.d is not enough.
    """
    facts = examination.services
    if isinstance(facts, Unknown) or step.state not in (StepState.DONE, StepState.TO_DO):
        return step
    if facts.services["openibd"].enabled is not True or PEERMEM in facts.modprobe:
        return step
    text = "\n".join((_HEAD, *drop_in_lines(peermem_options(examination)))) + "\n"
    steps = (
        Step("Load nvidia_peermem after each start of openibd", file=FileChange(OPENIBD_FILE, text)),
        Step("Let systemd read it", ("systemctl", "daemon-reload")),
    )
    if step.state is StepState.DONE:
        return replace(step, state=StepState.TO_DO, reason=_REASON, plan=Plan(step.title, steps))
    if step.plan is None:
        return step
    return replace(step, plan=replace(step.plan, steps=(*steps, *step.plan.steps)))
