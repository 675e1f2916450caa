"""The devices of a job, as slurmd names them, and the findings that concern it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.checks.new_jobs import rows_against_jobs, rows_for
from probes.slurm.slurm_node import devices_of, parse_job
from tests.support.doctor import examination_of

NO_FILE = Unknown(Reason.NOT_THERE, "gres.conf")


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "0,2,5-7"}, ("0", "2", "5", "6", "7")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}, ("3",)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"SLURM_JOB_GPUS": ""}, ()),
        ({}, ()),
        (
            {"CUDA_VISIBLE_DEVICES": "GPU-51a01a7e-d000-0000-0000-000000000002"},
            ("GPU-51a01a7e-d000-0000-0000-000000000002",),
        ),
    ],
)
def test_gpus_by_number_or_uuid(environment: dict[str, str], gpus: tuple[str, ...]) -> None:
    job = parse_job(environment)
    assert job.gpus == gpus
    assert not job.unreadable


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["SLURM_JOB_GPUS", "SLURM_JOB_ID"]), st.text()))
def test_any_environment_is_read(environment: dict[str, str]) -> None:
    job = parse_job(environment)
    assert len(job.gpus) <= 256
    assert job.id == "" or job.id.isdecimal()


def test_a_word_that_is_no_gpu_is_told() -> None:
    assert parse_job({"SLURM_JOB_GPUS": "0,all"}).unreadable == "all"


def test_gpus_bring_their_near_nics() -> None:
    examination = examination_of("hgx-h100")
    devices = devices_of(parse_job({"SLURM_JOB_GPUS": "0,1"}), examination, NO_FILE)
    topology = examination.topology
    assert devices.gpus == tuple(gpu.id for gpu in topology.gpus[:2])
    assert devices.nics == tuple(topology.best_nic[gpu] for gpu in devices.gpus)
    by_uuid = devices_of(parse_job({"CUDA_VISIBLE_DEVICES": _uuid(0)}), examination, NO_FILE)
    assert by_uuid.gpus == devices.gpus[:1]


def _uuid(index: int) -> str:
    gpus = examination_of("hgx-h100").node.gpus
    return str(gpus.gpus[index].uuid)  # type: ignore[union-attr]


def test_a_gpu_that_is_not_there_is_named() -> None:
    devices = devices_of(parse_job({"SLURM_JOB_GPUS": "7,8"}), examination_of("hgx-h100"), NO_FILE)
    assert len(devices.gpus) == 1
    assert devices.unplaced == ("8",)


@pytest.mark.parametrize(
    ("node", "gpus", "found"),
    [
        # GPU 5 is lost: that is nothing to a job with the others.
        ("hgx-h100+xid-79-fell-off-bus", "5", ["xid-79-fell-off-bus"]),
        ("hgx-h100+xid-79-fell-off-bus", "0-4,6,7", []),
        # No single device is at fault.
        ("hgx-h100+no-gdr-path", "0", ["peermem-not-loaded"]),
    ],
)
def test_only_findings_of_its_own_devices_concern_a_job(node: str, gpus: str, found: list[str]) -> None:
    examination = examination_of(node)
    rows = rows_against_jobs(judge(examination), {})
    assert rows
    devices = devices_of(parse_job({"SLURM_JOB_GPUS": gpus}), examination, NO_FILE)
    own = rows_for(rows, examination.topology, (*devices.gpus, *devices.nics))
    assert [row.id for row in own] == found
