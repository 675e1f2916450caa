"""The port counters of a job, as the Prolog saves and the Epilog compares them."""

import json
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.documents import valid
from tui.commands.slurm.epilog import difference_since, save_counters
from tui.files.job_file import JobFileError, is_job_id


def test_what_grew_is_in_the_document_and_the_file_is_deleted(tmp_path: Path) -> None:
    now = [5000.0]
    host = SimulatedHost("hgx-h100+nic-flapping", clock=lambda: now[0])
    save_counters(host, "4711", str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.name == "job-4711.json"
    assert file.stat().st_mode & 0o777 == 0o600
    now[0] += 100.0
    found = valid("job-counters", json.dumps(difference_since(host, "4711", str(tmp_path))))
    assert (found["job"], found["seconds"], found["problems"]) == ("4711", 100.0, 1)
    assert found["node"] == "hgx-h100"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("job", ["", "../4711", "47 11", "x" * 65, ".hidden", "a/b"])
def test_a_job_id_never_leaves_the_directory(job: str) -> None:
    assert not is_job_id(job)


def test_an_epilog_without_a_prolog_and_a_damaged_file_say_so(tmp_path: Path) -> None:
    host = SimulatedHost("cloud-vm", clock=lambda: 5000.0)
    with pytest.raises(JobFileError, match="does not exist: the Prolog saves it"):
        difference_since(host, "4711", str(tmp_path))
    (tmp_path / "job-4711.json").write_text("{}")
    with pytest.raises(JobFileError, match="was not written by gdrtop prolog; delete it"):
        difference_since(host, "4711", str(tmp_path))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    host = SimulatedHost("cloud-vm", clock=lambda: 5000.0)
    with pytest.raises(JobFileError, match="cannot be created: Not a directory"):
        save_counters(host, "4711", str(tmp_path / "file" / "x"))
