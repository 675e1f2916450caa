"""The verdict says what the node's jobs do."""

import json
from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import exit_status, judge
from probes.live.job_examination import examine_with_jobs, with_jobs
from probes.simulation.host import SimulatedHost
from probes.snapshot.verdict import State
from tests.support.doctor import examination_of
from tui.cli import main
from widgets.base.lines import width_of
from widgets.node.verdict import forms


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


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("bare-roce", "READY, likely in use", "likely GDR (DMA-BUF) on all 8 ranks. Run as root to confirm"),
        ("slingshot", "READY", "cannot see which memory libfabric has registered"),
        ("hgx-h100", "ACTIVE", "registered via peermem"),
    ],
)
def test_without_root_every_output_says_that_a_path_is_likely_in_use(
    name: str, word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = judge(examine_with_jobs(SimulatedHost(name))).verdict
    assert verdict.word == word
    assert said in verdict.reason
    assert exit_status(verdict) == 0
    for command in ("check", "check --for nagios", "topo", "live --seconds 1", "fleet check"):
        main([*command.split(), "--demo", name])
        assert f"{word} via" in capsys.readouterr().out, command
    main(["check", "--json", "--demo", name])
    shown = json.loads(capsys.readouterr().out)["verdict"]
    assert shown["state"] == verdict.state.value
    assert shown["likely_in_use"] == (word != verdict.state.value)


def test_the_line_of_a_path_that_is_likely_in_use_fits_a_narrow_terminal() -> None:
    verdict = replace(judge(examine_with_jobs(SimulatedHost("bare-roce"))).verdict, critical=12, warnings=34)
    widths = [width_of(form) for form in forms(verdict, "d")]
    assert widths == sorted(widths, reverse=True)
    assert widths[-3] <= 60  # the counts of findings beside the word, before the word alone


def test_unknown_processes_change_nothing() -> None:
    usability = examination_of("hgx-h100").usability
    assert with_jobs(usability, Unknown(Reason.NEEDS_ROOT), ()) is usability
