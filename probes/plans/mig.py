"""Turning MIG off, which only an idle GPU does at once.

NVML, nvmlDeviceSetMigMode: where the GPU is in use, the new mode is pending until it is reset while idle;
nvidia-smi then warns ("MIG mode is in pending disable state … In use by another client") and ends with 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.checks.jobs import gpus_of, jobs_of
from probes.checks.wording import several
from probes.examination import Examination
from probes.gpus import Gpu
from probes.plan import Plan, Step, instruction

_MOST = 16


def mig_off(examination: Examination, gpus: Sequence[Gpu]) -> Plan:
    """Turns it off on these GPUs, where a job uses one of them once that has ended."""
    steps = [
        Step(
            f"turns it off on GPU{gpu.index}, where nothing uses it",
            ("nvidia-smi", "-i", gpu.bdf, "-mig", "0"),
            undo=("nvidia-smi", "-i", gpu.bdf, "-mig", "1"),
        )
        for gpu in gpus[:_MOST]
    ]
    jobs, bdfs = jobs_of(examination), {gpu.bdf for gpu in gpus}
    users = [str(one.pid) for one in jobs.processes if bdfs & set(gpus_of(examination, one))]
    if users or jobs.unseen:
        seen = f" (processes {several(users)} now)" if users else ""
        hidden = f"; not all can be seen: {jobs.unseen}" if jobs.unseen else ""
        steps.insert(0, instruction(f"let the jobs on these GPUs end first{seen}, and DCGM{hidden}"))
    return Plan(
        "Turn MIG off where training is wanted",
        tuple(steps),
        reversible=False,
        disturbs="the instances of these GPUs are gone, and jobs cannot be started in them any more",
        note="while a program uses a GPU, nvidia-smi calls the change pending and ends with 0 all the same: "
        "nvidia-smi -q -d MIG tells what is in force",
    )
