"""Jobs: which processes belong together, their names, rates and paths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.model.sample import LiveProcess, PathJudgment, PathWord, PortSample, Role
from probes.live.processes.jobs import jobs_of, parse_scontrol, path_summary, scheduler_id
from probes.live.processes.tracked_process import role_of
from tests.support.live_node import MIB, THREADS, LiveNode, Samples, joined, resources_of

NO = Unknown(Reason.NOT_THERE, "test")
DMABUF = PathJudgment(PathWord.DMABUF, True)
STAGED = PathJudgment(PathWord.STAGED, True)


@pytest.fixture
def host(tmp_path: Path) -> LiveNode:
    return LiveNode(tmp_path)


def processes_of(host: LiveNode) -> tuple[LiveProcess, ...]:
    found = Samples(host).next().processes
    assert not isinstance(found, Unknown)
    return found


def ranks(host: LiveNode, first: int, count: int, device: str = "mlx5_0", **changes: object) -> None:
    """Add ranks of one job, each with connected queue pairs on its own device."""
    for number in range(count):
        values: dict[str, object] = {"environ": f"RANK={number}\0WORLD_SIZE=16\0", **changes}
        host.add_process(first + number, **values)  # type: ignore[arg-type]
        host.threads[first + number] = THREADS
    assert not isinstance(host.resources, Unknown)
    assert not callable(host.resources)
    parts = [resources_of((first + n, [4 * MIB]), device=f"{device[:-1]}{n}") for n in range(count)]
    host.resources = joined(host.resources, *parts)


def port(device: str, sent: Maybe[float] = 100.0) -> PortSample:
    return PortSample(device, 1, NO, "ACTIVE", 400.0, sent, sent)


PORTS = (port("mlx5_0"), port("mlx5_1"), port("mlx5_2"))


def test_ranks_of_one_program_user_and_job_are_one_job(host: LiveNode) -> None:
    ranks(host, 40, 2)
    (job,) = jobs_of(processes_of(host), PORTS)
    assert (job.id, job.name) == ("pid:40:train.py", "train.py (alice)")
    assert (job.role, job.pids, job.world_size) == (Role.NCCL, (40, 41), 16)
    assert job.nics == ("mlx5_0", "mlx5_1")
    assert (job.sent_gbps, job.received_gbps) == (200.0, 200.0)


def test_ranks_are_in_their_order(host: LiveNode) -> None:
    ranks(host, 40, 2)
    host.add_process(40, environ="RANK=1\0")
    host.add_process(41, environ="RANK=0\0")
    (job,) = jobs_of(processes_of(host), PORTS)
    assert job.pids == (41, 40)


def test_nccl_jobs_with_the_most_ranks_come_first(host: LiveNode) -> None:
    host.add_process(30, program="ib_write_bw")
    host.resources = joined(resources_of((30, [4 * MIB]), device="mlx5_9"))
    ranks(host, 40, 1, program="small.py")
    ranks(host, 50, 3, program="large.py")
    jobs = jobs_of(processes_of(host), PORTS)
    assert [job.name for job in jobs] == ["large.py (alice)", "small.py (alice)", "ib_write_bw (alice)"]
    assert jobs[2].role is Role.PERFTEST


def test_a_nic_of_two_jobs_has_no_rate_for_either(host: LiveNode) -> None:
    ranks(host, 40, 1, program="a.py")
    ranks(host, 50, 1, program="b.py")
    for job in jobs_of(processes_of(host), PORTS):
        assert isinstance(job.sent_gbps, Unknown)
        assert job.sent_gbps.detail == "another job also has connected queue pairs on mlx5_0"
        assert (job.nics, job.own_nics) == (("mlx5_0",), ())


def test_a_rate_that_is_unknown_makes_the_sum_unknown(host: LiveNode) -> None:
    ranks(host, 40, 2)
    (job,) = jobs_of(processes_of(host), (port("mlx5_0"), port("mlx5_1", NO)))
    assert isinstance(job.sent_gbps, Unknown)
    (job,) = jobs_of(processes_of(host), ())
    assert isinstance(job.sent_gbps, Unknown)


def test_a_job_without_connected_queue_pairs_has_no_rate(host: LiveNode) -> None:
    host.add_process(40)
    host.gpus["0000:18:00.0"] = (40,)
    (job,) = jobs_of(processes_of(host), PORTS)
    assert job.nics == ()
    assert isinstance(job.sent_gbps, Unknown)


def test_unknown_processes_are_no_jobs() -> None:
    assert jobs_of(NO, PORTS) == ()


def test_two_jobs_of_one_user_are_told_apart_by_their_launchers(host: LiveNode) -> None:
    ranks(host, 40, 2, parent=30)
    ranks(host, 50, 2, parent=31)
    assert [job.pids for job in jobs_of(processes_of(host), PORTS)] == [(40, 41), (50, 51)]


def test_the_id_stays_when_the_first_rank_ends(host: LiveNode) -> None:
    ranks(host, 40, 2)
    samples = Samples(host)
    samples.next()
    host.end(40)
    (job,) = jobs_of(samples.next().processes, PORTS)
    assert (job.id, job.pids) == ("pid:40:train.py", (41,))


def test_two_programs_of_one_slurm_job_have_two_ids(host: LiveNode) -> None:
    cgroup = "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
    ranks(host, 40, 2, cgroup=cgroup)
    ranks(host, 50, 1, cgroup=cgroup, program="eval.py")
    jobs = jobs_of(processes_of(host), PORTS)
    assert [(job.id, job.name) for job in jobs] == [
        ("slurm:4711", "train.py (alice, Slurm job 4711)"),
        ("slurm:4711:eval.py", "eval.py (alice, Slurm job 4711)"),
    ]


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("Slurm job 4711", "slurm:4711"),
        ("pod 1b2c3d4e", "pod:1b2c3d4e"),
        ("container 3f4e5d6c7b8a", "container:3f4e5d6c7b8a"),
        ("", ""),
        ("Slurm job x", ""),
    ],
)
def test_the_id_of_a_scheduled_job(job: str, name: str) -> None:
    assert scheduler_id(job) == name


def test_the_summary_of_paths(host: LiveNode) -> None:
    ranks(host, 40, 8)
    members = [replace(process, path=DMABUF) for process in processes_of(host)]
    assert path_summary(members) == "likely GDR (DMA-BUF) on all 8 ranks"
    members[5] = replace(members[5], path=STAGED)
    assert path_summary(members) == "likely GDR (DMA-BUF) on 7 of 8 ranks, likely staged on rank 5"
    members[4] = replace(members[4], path=PathJudgment(PathWord.UNKNOWN, why="needs root"))
    assert path_summary(members) == (
        "likely GDR (DMA-BUF) on 6 of 8 ranks, unknown on rank 4 (needs root), likely staged on rank 5"
    )
    nameless = [replace(process, rank=NO) for process in members]
    assert path_summary(nameless) == (
        "likely GDR (DMA-BUF) on 6 of 8 ranks, unknown on pid 44 (needs root), likely staged on pid 45"
    )
    assert path_summary([members[4]]) == "unknown: needs root"
    assert path_summary([]) == ""


@pytest.mark.parametrize(
    ("program", "threads", "libraries", "has_rdma", "role"),
    [
        ("train.py", THREADS, (), True, Role.NCCL),
        ("train.py", ("python3",), ("libnccl.so.2",), False, Role.NCCL),
        ("train.py", ("python3",), ("libnccl.so.2", "libucp.so.0"), True, Role.UCX),
        ("app", NO, ("libnccl.so.2", "libucp.so.0"), True, Role.NCCL),
        ("app", ("app",), ("libnvshmem_host.so.3", "nvshmem_bootstrap_uid.so.3"), True, Role.NVSHMEM),
        # Each job of PyTorch 2.11 maps NVSHMEM's library; seen on an H200 with one rank.
        ("train.py", ("python3",), ("libnccl.so.2", "libnvshmem_host.so.3"), False, Role.NCCL),
        ("ib_write_bw", ("ib_write_bw",), (), True, Role.PERFTEST),
        ("ib_send_lat", ("ib_send_lat",), ("libucp.so.0",), True, Role.PERFTEST),
        ("ib_tool", ("ib_tool",), (), True, Role.OTHER),
        ("mmfsd", ("mmfsd",), (), True, Role.STORAGE),
        ("wekanode", ("wekanode",), (), True, Role.STORAGE),
        ("daos_engine", ("daos_engine",), (), True, Role.STORAGE),
        ("serve.py", ("python3",), (), False, Role.GPU),
        ("serve.py", ("python3",), (), True, Role.OTHER),
    ],
)
def test_what_a_process_is(
    host: LiveNode,
    program: str,
    threads: Maybe[tuple[str, ...]],
    libraries: tuple[str, ...],
    has_rdma: bool,
    role: Role,
) -> None:
    maps = "".join(f"7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/{name}\n" for name in libraries)
    host.add_process(40, program=program, libraries=maps)
    host.gpus["0000:18:00.0"] = (40,)
    (process,) = processes_of(host)
    assert role_of(process.process, threads, has_rdma) is role


def test_names_of_slurm_jobs() -> None:
    line = "JobId=4711 JobName=llama 70b UserId=alice(1001) GroupId=users(100) MCS_label=N/A\n"
    assert parse_scontrol(line) == {"Slurm job 4711": "llama 70b"}
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") == {}


@given(st.text())
def test_no_output_stops_the_parsers(text: str) -> None:
    for name in parse_scontrol(f"JobId=1 JobName={text} UserId=x").values():
        assert name.isprintable()
