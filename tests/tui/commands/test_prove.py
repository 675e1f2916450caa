"""`gdrtop prove`: what it prints, when it asks, and how it ends."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import replace

import pytest

from probes.bandwidth.prove import GpuTrial, Outcome, PairResult, PathResult, plan_registration
from probes.base.origin import Origin, Source
from probes.queries.unproven_paths import IN_GUEST, OVER_C2C
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tui.bandwidth.processes import ToolProcess
from tui.bandwidth.prove.session import RegistrationSession
from tui.bandwidth.simulated_processes import SimulatedProcessStarter
from tui.cli import main
from tui.command_line.options import OutputOptions
from tui.commands.bench.output import BenchOutput
from tui.commands.prove import Proof, exit_status
from tui.runtime import lock
from widgets.bandwidth.prove import draw_doubts
from widgets.base.lines import plain


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["prove", *words])
    return status, capsys.readouterr().out


def test_every_pair_of_a_healthy_node_registers(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = printed(capsys, "--demo", "hgx-h100")
    assert status == 0
    assert "80 of 80 GPU–NIC pairs register." in text
    assert "simulated: no GPU and no NIC is used" in text
    assert "does not show that data arrives" in text
    assert "107 to 555 MiB" in text.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "status", "words"),
    [
        ("hgx-h100+no-gdr-path", 1, "10 refused"),
        ("hgx-h100+p2p-topology-refused", 0, "ENOTSUPP (524)"),
        ("hgx-h100+dev-infiniband-denied", 2, "no access to /dev/infiniband"),
        ("hgx-h100+fabric-manager-down", 2, "CUDA error 802"),
        ("hgx-h100+mig-with-gdr", 2, "MIG is on"),
        ("slingshot", 2, "Slingshot has no verbs"),
        (
            "hgx-h100+vm-pair-unproven",
            2,  # a script that trusts status 0 would use a path on which data is lost
            "pairs register (2 of them may deliver wrong data)",
        ),
    ],
)
def test_what_does_not_register_says_why(
    capsys: pytest.CaptureFixture[str], node: str, status: int, words: str
) -> None:
    ended, text = printed(capsys, "--demo", node, "--gpu", "0")
    assert words in text.replace("\n    ", " ")
    assert ended == status


@pytest.mark.parametrize(
    ("doubt", "status", "note", "advice"),
    [
        (IN_GUEST, 2, "1 of them may deliver wrong data", "gdrtop check shows why"),
        (
            OVER_C2C,
            0,
            "1 of them only over C2C, where transfers may fail",
            "gdrtop help topology explains it",
        ),
    ],
)
def test_efas_over_c2c_which_every_p6e_has_do_not_fail_the_proof(
    doubt: str, status: int, note: str, advice: str
) -> None:
    registers = PathResult(Outcome.REGISTERS)
    pairs = [
        PairResult("GPU0", "0008:06:00.0", f"rdmap{n}s0", registers, registers, doubt * n) for n in (0, 1)
    ]
    assert exit_status(pairs, "") == (status, f"2 of 2 GPU–NIC pairs register ({note}).")
    assert advice in "\n".join(map(plain, draw_doubts(pairs, 100)))


@pytest.mark.parametrize("words", [["--gpu", "99"], ["--nic", "mlx5_99"]])
def test_what_is_not_there_is_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["prove", "--demo", "hgx-h100", *words]) == 3
    assert "there is no" in capsys.readouterr().err


def test_json_is_what_its_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(capsys, "--demo", "hgx-h100+no-gdr-path", "--gpu", "0", "--json")
    document = valid("prove", text)
    assert document["exit_status"] == 1
    assert {pair["outcome"] for pair in document["pairs"]} == {"refused"}
    _, text = printed(capsys, "--demo", "hgx-h100", "--dry-run", "--json")
    assert valid("prove", text)["pairs"] == []


def test_nothing_runs_where_nothing_may_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--read-only", "prove", "--demo", "hgx-h100"]) == 2
    assert "--read-only" in capsys.readouterr().err


class _Real(SimulatedHost):
    """A node that counts as a real one, so that gdrtop asks about its jobs."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        super().__init__(name, clock=self.clock)
        self.origin = Origin(Source.LIVE)
        self.tried: list[str] = []

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def start(self, trial: GpuTrial, seconds: float) -> ToolProcess:
        self.tried.append(trial.label)
        begun = self.begin_registration(trial.bdf, trial.words)
        return SimulatedProcessStarter(self, self.wait).follow(begun, seconds)


def prove(host: _Real, words: Sequence[str] = ()) -> tuple[int, str]:
    out = io.StringIO()
    options = argparse.Namespace(gpu=None, nic=None, dry_run=False, yes="--yes" in words, json=False)
    session = RegistrationSession(host, start=host.start)
    output = BenchOutput(out, OutputOptions())
    return Proof(host, session, output, options, io.StringIO("")).run(), out.getvalue()


@pytest.fixture(autouse=True)
def own_lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(tmp_path_factory.mktemp("lock"))
    monkeypatch.setattr(lock, "runtime_directory", lambda: directory)


def test_gpus_of_jobs_are_left_out_without_consent() -> None:
    host = _Real("hgx-h100")
    status, text = prove(host)
    assert status == 2
    assert host.tried == []
    assert "train.py" in text
    assert "--yes tries it too" in text


def test_gpus_of_jobs_are_tried_with_consent() -> None:
    host = _Real("hgx-h100")
    assert prove(host, ["--yes"])[0] == 0
    assert len(host.tried) == 8


def test_a_job_that_starts_meanwhile_keeps_its_gpu_to_itself() -> None:
    host = _Real("hgx-h100")
    session = RegistrationSession(host, start=host.start)
    (planned,) = plan_registration(examine(host), "0000:18:00.0")  # type: ignore[misc]
    free = replace(planned, users="")
    results = session.run(examine(host), [free], lambda _: None)
    assert isinstance(results, tuple)
    assert "a job has started on it (used by train.py" in results[0].dmabuf.why
    assert host.tried == []


def test_an_interrupted_run_keeps_its_results_and_tries_no_further_gpu() -> None:
    host = _Real("hgx-h100")
    session = RegistrationSession(host, start=host.start)
    planned = plan_registration(examine(host))
    assert isinstance(planned, tuple)
    results = session.run(examine(host), planned, lambda _: session.stop())
    assert isinstance(results, tuple)
    assert host.tried == ["GPU0"]
    assert results[0].outcome is Outcome.REGISTERS
    assert results[-1].dmabuf.why == "canceled"
    status, reason = exit_status(results, "interrupted")
    assert (status, reason) == (130, "10 of 80 GPU–NIC pairs register; interrupted.")


def test_two_at_once_do_not_run() -> None:
    with lock.ActionLock():
        host = _Real("hgx-h100")
        status, _ = prove(host, ["--yes"])
    assert status == 2
    assert host.tried == []
