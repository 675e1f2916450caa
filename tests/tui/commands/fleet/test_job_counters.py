"""`gdrtop live --begin JOB` and `--end JOB`, as a prolog and an epilog run them."""

import io
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.tui.commands.test_schema import valid
from tui.cli import main
from tui.commands.fleet.job_counters import begin_job, end_job


def test_what_grew_between_begin_and_end_is_printed_and_the_file_is_deleted(tmp_path: Path) -> None:
    now = [5000.0]
    host = SimulatedHost("oci-h100+nic-slow,congestion", clock=lambda: now[0])
    out = io.StringIO()
    assert begin_job(host, "4711", out, False, str(tmp_path)) == 0
    (file,) = tmp_path.iterdir()
    assert file.name == "job-4711.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert out.getvalue().partition("\n")[2] == f"Saved the counters of 18 ports for job 4711 in {file}\n"
    now[0] += 3600.0
    out = io.StringIO()
    assert end_job(host, "4711", out, False, False, str(tmp_path)) == 0
    assert out.getvalue().partition("\n")[2].startswith("Job 4711, 1 h 0 min: 4 problems\n! mlx5_12 carried ")
    assert not list(tmp_path.iterdir())


def test_the_json_document_is_as_the_schema_says(tmp_path: Path) -> None:
    now = [5000.0]
    host = SimulatedHost("hgx-h100+nic-flapping", clock=lambda: now[0])
    begin_job(host, "4711", io.StringIO(), False, str(tmp_path))
    now[0] += 100.0
    out = io.StringIO()
    end_job(host, "4711", out, False, True, str(tmp_path))
    document = valid("job-counters", out.getvalue())
    assert (document["job"], document["seconds"], document["problems"]) == ("4711", 100.0, 1)
    assert document["node"] == "hgx-h100"


def test_the_command_line_saves_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tui.files.job_file.ROOTS_DIRECTORY", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("tui.files.job_file.why_not_as_root", lambda _: "")
    assert main(["live", "--demo", "cloud-vm", "--begin", "4711"]) == 0
    assert main(["live", "--demo", "cloud-vm", "--end", "4711"]) == 0
    assert "Job 4711, 0 s: no problem" in capsys.readouterr().out


@pytest.mark.parametrize("job", ["", "../4711", "47 11", "x" * 65, ".hidden", "a/b"])
def test_a_job_id_never_leaves_the_directory(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--demo", "cloud-vm", "--begin", job]) == 3
    assert "is not a job ID" in capsys.readouterr().err


def test_an_end_without_a_begin_and_a_damaged_file_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = SimulatedHost("cloud-vm", clock=lambda: 5000.0)
    assert end_job(host, "4711", io.StringIO(), False, False, str(tmp_path)) == 3
    assert "does not exist; run gdrtop live --begin" in capsys.readouterr().err
    (tmp_path / "job-4711.json").write_text("{}")
    assert end_job(host, "4711", io.StringIO(), False, False, str(tmp_path)) == 3
    assert "was not written by gdrtop live --begin; delete it" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    host = SimulatedHost("cloud-vm", clock=lambda: 5000.0)
    assert begin_job(host, "4711", io.StringIO(), False, str(tmp_path / "file" / "x")) == 3
    assert "cannot be created: Not a directory" in capsys.readouterr().err
