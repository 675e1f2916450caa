"""Where jobs write their logs, and why a log was not found."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.nccl_conf import NcclConf
from probes.facts.jobs.processes import Process
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput, FileRange
from probes.live.model.sample import LiveSample
from probes.live.processes.job_logs import FoundLogs, find_logs, parse_output_file, setting
from tests.support.training_samples import training

PIDS = range(4711, 4719)


def sample_with(environment: Maybe[dict[str, str]], job: str = "Slurm job 4711") -> LiveSample:
    """A job of eight ranks with this environment, and a storage client."""
    sample = training(1, 1.0, 1.0)
    assert isinstance(sample.processes, tuple)
    none = Unknown(Reason.NOT_THERE)
    processes = tuple(
        replace(process, process=replace(process.process, environment=environment, nccl_conf=none, job=job))
        for process in sample.processes
    )
    return replace(sample, processes=processes)


class Node(LocalHost):
    """A tree with a host name and the streams of the ranks."""

    def __init__(self, root: Path, output: str = "") -> None:
        (root / "proc/sys/kernel").mkdir(parents=True)
        (root / "proc/sys/kernel/hostname").write_text("node1.cluster\n")
        (root / "tmp").mkdir()
        self._output = output
        super().__init__(str(root))

    def run(self, argv: object, seconds: float = 2.0) -> Maybe[CommandOutput]:
        if not self._output:
            return Unknown(Reason.NOT_THERE, "scontrol", "not installed")
        return CommandOutput(("scontrol",), 0, self._output, "")


def streams(root: Path, target: str, number: int = 1) -> None:
    for pid in PIDS:
        (root / f"proc/{pid}/fd").mkdir(parents=True, exist_ok=True)
        (root / f"proc/{pid}/fd/{number}").symlink_to(target)


def shown(found: FoundLogs) -> list[tuple[str, list[str]]]:
    return [(log.source, [file.shown for file in log.files]) for log in found.logs]


def test_one_file_behind_all_streams_is_one_log(tmp_path: Path) -> None:
    node = Node(tmp_path, "JobId=4711 StdErr=/x StdIn=/dev/null StdOut=/tmp/slurm.out Power= \n")
    (tmp_path / "tmp/slurm.out").write_text("x" * 50)
    streams(tmp_path, "/tmp/slurm.out")
    streams(tmp_path, "/tmp/slurm.out", 2)
    found = find_logs(node, sample_with({"NCCL_DEBUG": "INFO"}))
    assert shown(found) == [("stdout", ["/tmp/slurm.out"])]
    assert found.logs[0].files[0].path == "/tmp/slurm.out"  # still there when the job has ended
    assert found.logs[0].size_bytes == 50
    assert found.logs[0].name == "train.py (alice, Slurm job 4711)"
    assert not found.missing
    assert found.jobs == 1


def test_a_log_of_another_user_is_named_and_not_read(tmp_path: Path) -> None:
    class Shared(Node):
        """Where another user has put a file under the name of the job's log."""

        def read_range(self, path: str, offset: int, limit: int) -> Maybe[FileRange]:
            found = super().read_range(path, offset, limit)
            return found if isinstance(found, Unknown) else replace(found, owner=2002)

    node = Shared(tmp_path)
    log = tmp_path / "proc/4711/root/tmp/nccl.log"
    log.parent.mkdir(parents=True)
    log.write_text("forged")
    found = find_logs(node, sample_with({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}))
    assert not found.logs
    assert "NCCL_DEBUG_FILE /tmp/nccl.log belongs to user 2002, not to the job's user" in found.missing[0]


def test_a_pipe_of_the_launcher_is_no_log_but_slurms_file_is(tmp_path: Path) -> None:
    node = Node(tmp_path, "JobId=4711 StdOut=/tmp/with a blank.out Power=\n")
    os.mkfifo(tmp_path / "tmp/pipe")
    (tmp_path / "tmp/with a blank.out").write_text("")
    streams(tmp_path, "/tmp/pipe")
    found = find_logs(node, sample_with({"NCCL_DEBUG": "INFO"}))
    assert shown(found) == [("Slurm output file", ["/tmp/with a blank.out"])]
    assert found.missing == ("train.py (alice, Slurm job 4711): stdout is a pipe; stderr does not exist.",)


def test_the_debug_file_is_looked_for_inside_the_container(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for pid in PIDS:
        inside = tmp_path / f"proc/{pid}/root"
        (inside / "etc").mkdir(parents=True)
        (inside / "tmp").mkdir()
        (inside / "etc/hostname").write_text("pod-7.local\n")
        (inside / f"tmp/nccl.pod-7.{pid - 4700}.log").write_text("x")
        (tmp_path / f"proc/{pid}/status").write_text(f"Name:\tpython3\nNSpid:\t{pid}\t{pid - 4700}\n")
    environment: Maybe[dict[str, str]] = {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p.log", "NCCL_DEBUG": "INFO"}
    found = find_logs(node, sample_with(environment, job=""))
    assert [log.source for log in found.logs] == ["NCCL_DEBUG_FILE"]
    assert len(found.logs[0].files) == 8
    assert found.logs[0].files[0].shown == "/tmp/nccl.pod-7.11.log"
    assert found.logs[0].files[0].path == "/proc/4711/root/tmp/nccl.pod-7.11.log"


def test_a_debug_file_that_is_a_device_is_not_looked_at(tmp_path: Path) -> None:
    for name in ("/dev/stdout", "/proc/self/fd/1"):
        root = tmp_path / name.replace("/", "-")
        root.mkdir()
        found = find_logs(Node(root), sample_with({"NCCL_DEBUG_FILE": name, "NCCL_DEBUG": "INFO"}))
        assert not found.logs
        assert "NCCL_DEBUG_FILE" not in " ".join(found.missing)


def test_what_only_root_can_see_is_said(tmp_path: Path) -> None:
    class Guarded(Node):
        def link(self, path: str) -> Maybe[str]:
            return Unknown(Reason.NEEDS_ROOT, path)

    found = find_logs(Guarded(tmp_path), sample_with(Unknown(Reason.NEEDS_ROOT)))
    assert not found.logs
    words = "NCCL_DEBUG_FILE unknown (needs root); stdout unknown (needs root); stderr unknown (needs root)"
    assert found.missing == (f"train.py (alice, Slurm job 4711): {words}.",)


def test_a_job_without_debug_output_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "tmp/out").write_text("")
    streams(tmp_path, "/tmp/out")
    streams(tmp_path, "/tmp/out", 2)
    for environment, words in (({}, "NCCL_DEBUG is not set"), ({"NCCL_DEBUG": "WARN"}, "NCCL_DEBUG is WARN")):
        missing = find_logs(node, sample_with(environment)).missing
        assert len(missing) == 1
        assert words in missing[0]


def test_a_debug_file_that_the_program_has_set_itself_is_found_among_its_open_files(tmp_path: Path) -> None:
    """os.environ["NCCL_DEBUG_FILE"] = … in Python does not change /proc/PID/environ."""
    node = Node(tmp_path)
    for name in ("nccl.host0.4711.log", "checkpoint.bin", "nccl-tests.out"):
        (tmp_path / f"tmp/{name}").write_text("")
    streams(tmp_path, "/tmp/checkpoint.bin", 40)
    streams(tmp_path, "/dev/shm/nccl-a1B2c3", 41)
    streams(tmp_path, "/tmp/nccl.host0.4711.log", 42)
    streams(tmp_path, "/tmp/nccl-tests.out", 1)
    found = find_logs(node, sample_with({}))
    assert shown(found) == [("open file", ["/tmp/nccl.host0.4711.log"]), ("stdout", ["/tmp/nccl-tests.out"])]
    assert shown(find_logs(node, sample_with({"NCCL_DEBUG": "INFO"}))) == [
        ("stdout", ["/tmp/nccl-tests.out"])
    ]


def test_without_a_sample_nothing_is_found(tmp_path: Path) -> None:
    assert find_logs(LocalHost(str(tmp_path)), None) == FoundLogs()


def test_the_output_file_of_slurm() -> None:
    assert parse_output_file("JobId=1 JobName=a StdIn=/dev/null StdOut=/a/b c.out Power=\n") == "/a/b c.out"
    assert parse_output_file("JobId=1 StdOut=/a/b.out\n") == "/a/b.out"
    assert parse_output_file("JobId=1 StdOut=relative\n") == ""


@pytest.mark.parametrize(
    ("environment", "user", "expected"),
    [
        ({"NCCL_DEBUG_FILE": "/env"}, NcclConf({"NCCL_DEBUG_FILE": "/user"}, ()), "/env"),
        ({}, NcclConf({"NCCL_DEBUG_FILE": "/user"}, ()), "/user"),
        ({}, NcclConf({}, ()), "/etc"),
        ({}, Unknown(Reason.NOT_THERE), "/etc"),
    ],
)
def test_the_users_nccl_conf_comes_before_that_of_the_node(
    environment: dict[str, str], user: Maybe[NcclConf], expected: str
) -> None:
    process = a_process(environment)
    conf = NcclConf({"NCCL_DEBUG_FILE": "/etc"}, ())
    assert setting(replace(process, user_conf=user, nccl_conf=conf), "NCCL_DEBUG_FILE") == expected


def test_a_setting_is_unknown_if_the_users_nccl_conf_is_unreadable() -> None:
    hidden = Unknown(Reason.NEEDS_ROOT, "/proc/7/root/home/alice/.nccl.conf")
    conf = NcclConf({"NCCL_DEBUG_FILE": "/etc"}, ())
    assert setting(replace(a_process({}), user_conf=hidden, nccl_conf=conf), "NCCL_DEBUG_FILE") is hidden


def a_process(environment: dict[str, str]) -> Process:
    processes = sample_with(environment).processes
    assert isinstance(processes, tuple)
    return processes[0].process
