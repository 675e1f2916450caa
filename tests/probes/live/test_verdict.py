"""The verdict says what the node's jobs do."""

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import exit_status, judge
from probes.live.verdict import examine_with_jobs, with_jobs
from probes.simulation.host import SimulatedHost
from probes.snapshot.verdict import State
from tests.probes.checks.doctor import examination_of


@pytest.mark.parametrize(
    ("name", "state", "said"),
    [
        ("hgx-h100+job-tcp", State.DEGRADED, "All 8 ranks of train.py"),
        ("hgx-h100+job-rank-staged", State.DEGRADED, "Slurm job 4711) copies through host memory"),
        ("gb200", State.READY, "likely GDR (DMA-BUF) on all 4 ranks. Run as root to confirm"),
        ("hgx-h100", State.ACTIVE, "registered via peermem"),
        ("hgx-h100+no-gdr-path", State.BROKEN, "nvidia_peermem is not loaded"),
        ("cloud-vm", State.UNKNOWN, "NCCL has no topology file"),
    ],
)
def test_a_job_without_gpudirect_degrades_a_green_verdict(name: str, state: State, said: str) -> None:
    judgment = judge(examine_with_jobs(SimulatedHost(name)))
    verdict = judgment.verdict
    causes = " ".join(finding.cause for finding in judgment.found)
    assert verdict.state is state
    assert said in f"{verdict.reason} {causes}"
    assert (exit_status(verdict) == 0) == (state in (State.ACTIVE, State.READY))


def test_unknown_processes_change_nothing() -> None:
    usability = examination_of("hgx-h100").usability
    assert with_jobs(usability, Unknown(Reason.NEEDS_ROOT), ()) is usability
