"""`gdrtop explain`: what a user of a job sees of it, and what they can change themselves."""

from __future__ import annotations

import io
import re

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.command_line.options import OutputOptions
from tui.commands.explain import write_explanation


def explained(name: str, pid: int | None = None, job: str = "") -> tuple[int, str]:
    out, clock = io.StringIO(), SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    status = write_explanation(SimulatedHost(name, clock=clock), out, pid, job, OutputOptions(), wait)
    return status, out.getvalue()


def test_a_process_has_its_devices_distances_limits_and_paths() -> None:
    status, text = explained("dgx-a100", 41001)
    assert status == 0
    assert "train.py (alice, Slurm job 4711, pid 41001)" in text
    assert "GPU1 (" in text
    assert "PXB" in text
    assert "sees 10 of 10" in text
    assert "locked memory: no limit" in text
    assert "NCCL 2.27.7: nvidia-peermem" in text
    assert "nothing to change" in text


def test_what_the_user_can_change_is_apart_from_what_needs_an_admin() -> None:
    status, text = explained("hgx-h100+nccl-gdr-level-off,acs-on", 43002)
    assert status == 1
    own, admin = text.index("What you can change"), text.index("What to ask your admin for")
    assert own < text.index("Remove NCCL_NET_GDR_LEVEL") < admin
    assert "acs-redirect-enabled" in text[admin:]
    assert "NCCL 2.27.7: copies through host memory" in text


@pytest.mark.slow
def test_ucx_and_nixl_agree_on_a_missing_cuda_module() -> None:
    _, text = explained("hgx-h100+nixl-ucx-without-cuda", 47002)
    assert "NIXL: copies through host memory" in text
    assert "UCX: copies through host memory" in text


@pytest.mark.slow
def test_an_engine_without_devices_or_module_uses_tcp() -> None:
    _, text = explained("hgx-h100+kv-over-tcp", 47002)
    assert "Mooncake 0.3.13.post1: TCP (no RDMA device is in its container)" in text
    assert "NCCL 2.27.7: TCP (no RDMA device is in its container)" in text
    _, text = explained("hgx-h100+ucx-without-verbs", 47002)
    assert "UCX: TCP (this UCX has no module for InfiniBand and RoCE (libuct_ib))" in text
    assert "NCCL 2.27.7: DMA-BUF" in text
    _, text = explained("slingshot", 41000)  # whose NICs have no device files of verbs
    assert "no RDMA device is in its container" not in text


def test_a_setting_of_the_user_that_helps_comes_before_the_admins_module() -> None:
    _, text = explained("pcie-l40s+mooncake-needs-peermem", 43037)
    assert "Mooncake: none (its default: nvidia-peermem, which does not work here)" in text
    assert text.index("What you can change") < text.index("WITH_NVIDIA_PEERMEM=0")
    assert "What to ask your admin for" not in text


def test_other_jobs_problems_are_not_this_ones() -> None:
    status, text = explained("hgx-h100+nccl-gdr-level-off", 41000)
    assert status == 0
    assert "NCCL_NET_GDR_LEVEL" not in text


def test_a_job_has_all_of_its_processes() -> None:
    _, text = explained("hgx-h100", job="Slurm job 4711")
    assert "8 processes: likely GDR (peermem) on 8" in text
    assert "pid 41000)" in text
    assert all(
        str(pid) in text.partition("7 more, but for their GPUs and NICs: ")[2] for pid in range(41001, 41008)
    )


def test_of_a_job_what_to_change_stands_first_and_like_processes_once() -> None:
    status, text = explained("hgx-h100+dev-infiniband-near-nic-missing", job="Slurm job 4711")
    assert status == 1
    assert "9 processes: likely GDR (peermem) on 8, likely no NIC in use on 1" in text
    assert text.index("What you can change") < text.index("pid 41000)") < text.index("pid 44002)")
    assert text.count("Path now") == 2


@pytest.mark.slow
def test_a_process_that_sees_fewer_nics_or_has_a_farther_one_is_not_like_the_others() -> None:
    _, text = explained("pcie-l40s", job="Slurm job 4711")
    blocks = text.split("Path now")[1:]
    nearest = [re.search(r"nearest NICs: \S+ (\w+)", block)[1] for block in blocks]  # type: ignore[index]
    assert len(set(nearest)) == len(nearest) > 1
    _, text = explained("hgx-h100+dev-infiniband-near-nic-missing", job="Slurm job 4711")
    assert re.search(r"sees mlx5_[^;]* of 10", text)
    assert "sees 10 of 10" in text


@pytest.mark.slow
def test_the_list_marks_who_has_something_to_change() -> None:
    status, text = explained("hgx-h100+nccl-gdr-level-off")
    assert status == 1
    assert re.findall(r"^[✗x] (\d+)", text, re.M) == ["43002"]


@pytest.mark.slow
def test_without_a_choice_the_processes_are_listed() -> None:
    status, text = explained("hgx-h100")
    assert status == 0
    assert text.count("train.py") == 8
    assert "gdrtop explain PID" in text


@pytest.mark.slow
def test_a_path_other_than_that_of_the_settings_is_explained() -> None:
    status, text = explained("hgx-h100", 41000)
    assert "NCCL takes DMA-BUF for a process that starts now" in text
    assert "▲" not in text
    assert (status, "nothing to change" in text) == (0, True)


@pytest.mark.parametrize(
    ("name", "pid", "why", "expected"),
    [
        ("pcie-l40s+rdma-devices-in-pods", 41000, "may be in another network namespace", 3),
        ("hgx-h100+nvshmem-ibgda-driver-options", 43035, "GPUs may post to DEVX queues", 1),
    ],
)
def test_nics_that_gdrtop_cannot_see_are_unknown_and_not_none(
    name: str, pid: int, why: str, expected: int
) -> None:
    status, text = explained(name, pid)
    assert "Path now    unknown: " in text
    assert why in text
    assert "NICs        use unknown" in text
    assert not re.search("uses none|sees 0|✓|nothing to change", text)
    assert status == expected
    assert ("cannot tell whether something has to change" in text) == (expected == 3)


@pytest.mark.parametrize(("pid", "job"), [(5, ""), (None, "Slurm job 1")])
def test_what_is_not_there_is_said(pid: int | None, job: str) -> None:
    status, text = explained("hgx-h100", pid, job)
    assert status == 3
    assert "is not among the processes with a GPU or RDMA" in text


@pytest.mark.parametrize("words", [["41000"], ["--job", "4711"], ["5"], []])
def test_json_is_what_its_schema_says(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["explain", "--demo", "hgx-h100+acs-on", "--json", *words])
    document = valid("explain", capsys.readouterr().out)
    assert document["exit_status"] == status


def test_a_variable_is_explained_by_another_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--demo", "hgx-h100", "NCCL_IB_HCA"]) == 3
    assert "gdrtop env --explain NCCL_IB_HCA" in capsys.readouterr().err


def test_two_choices_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--demo", "hgx-h100", "41000", "--job", "4711"]) == 3
    assert "one of" in capsys.readouterr().err


def test_a_pod_shows_what_it_has_and_a_request_that_can_be_pasted() -> None:
    status, text = explained("pcie-l40s+dev-infiniband-refused")
    assert status == 1
    assert text.index("This container") < text.index("Request for your admin")
    assert "Please change the pod pcie-l40s so that it can use GPUDirect RDMA:\n1. Add rdma/NAME: 1" in text
    _, healthy = explained("pcie-l40s+in-pod", 41000)
    assert "This container" in healthy
    assert "Request for" not in healthy
    assert "This container" not in explained("pcie-l40s", 41000)[1]


def test_root_on_the_host_sees_a_pod_by_name_with_its_devices() -> None:
    status, text = explained("pcie-l40s+rdma-devices-in-pods-root", 41000)
    assert status == 0
    assert "pod 1b2c3d4e" in text
    assert "nearest NICs: mlx5_0 PIX" in text
    assert "uses mlx5_0; sees 2 of 2" in text
    assert "claim team/pair, dra.net: 0000-1b-00.0" in text
    assert "Given" not in explained("pcie-l40s", 41000)[1]


def test_a_pod_in_its_own_namespace_with_a_far_nic_only_is_found() -> None:
    host = SimulatedHost("pcie-l40s+rdma-devices-in-pods-root", clock=SteppedClock())
    host.tree.remove("/proc/41000/root/dev/infiniband/uverbs0")
    out = io.StringIO()
    assert write_explanation(host, out, 41000, "", OutputOptions()) == 1
    assert "sees mlx5_1 of 2" in out.getvalue()
    assert "dev-infiniband-near-nic-missing" in out.getvalue()


@pytest.mark.parametrize("pod", ["trainer-0", "team/trainer-0", "1b2c3d4e", "1b2c3d4e-5f60"])
def test_a_pod_is_found_by_its_name_or_uid(pod: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--pod", pod, "--demo", "pcie-l40s+rdma-devices-in-pods-root"]) == 1
    assert "4 processes" in capsys.readouterr().out
    assert main(["explain", "--pod", "other", "--demo", "pcie-l40s+rdma-devices-in-pods-root"]) == 3
    assert "has no pod other" in capsys.readouterr().err
