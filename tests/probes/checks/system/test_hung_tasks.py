"""Processes that hang in a driver."""

from __future__ import annotations

from probes.queries.finding import Status
from tests.support.changed_facts import said, with_log
from tests.support.doctor import examination_of

HGX = examination_of("hgx-h100")
HUNG = "INFO: task {name}:{pid} blocked for more than 120 seconds."


def test_a_process_that_waits_in_a_driver_is_named_with_the_driver() -> None:
    log = (
        HUNG.format(name="kworker/u64:3", pid=812),
        "task:kworker/u64:3 state:D stack:0 pid:812",
        " __schedule+0x2cb/0x760",
        " mlx5_cmd_exec+0x2e/0x60 [mlx5_core]",
        " nvidia_ioctl+0x1/0x2 [nvidia]",
    )
    finding = said("task-hung-in-driver", with_log(HGX, *log))
    assert finding.status is Status.FOUND
    assert finding.devices == ("mlx5_core",)
    assert "kworker/u64:3 (pid 812)" in finding.cause


def test_a_job_that_hangs_is_found_without_a_stack() -> None:
    finding = said("task-hung-in-driver", with_log(HGX, HUNG.format(name="python3", pid=41000)))
    assert finding.status is Status.FOUND
    assert "a GPU or an RDMA device open" in finding.cause
    assert not finding.data_path  # it has gone on since


def test_a_rank_that_still_waits_degrades_the_node() -> None:
    finding = said("task-hung-in-driver", examination_of("hgx-h100+task-hung-in-driver"))
    assert "python3 (pid 41000) still waits (state D)" in finding.cause
    assert finding.data_path
    assert finding.fix is not None
    assert "if it still waits" not in str(finding.fix)


def test_a_process_that_waits_for_a_disk_is_none_of_it() -> None:
    log = (HUNG.format(name="jbd2/sda1-8", pid=400), " io_schedule+0x46/0x70", " ext4_sync+0x1/0x2 [ext4]")
    assert said("task-hung-in-driver", with_log(HGX, *log)).status is Status.PASSED


def test_the_driver_of_another_message_is_not_taken() -> None:
    log = (
        HUNG.format(name="jbd2/sda1-8", pid=400),
        "NVRM: Xid (PCI:0000:18:00): 31, pid=1, MMU Fault",
        " nvidia_ioctl+0x1/0x2 [nvidia]",
    )
    assert said("task-hung-in-driver", with_log(HGX, *log)).status is Status.PASSED
