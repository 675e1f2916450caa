import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probes.base.unknown import Reason, Unknown
from probes.host.machine import command
from probes.host.machine.command import run_command
from probes.host.protocol import CommandOutput


@pytest.fixture
def bin_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "TRUSTED_PATH", (str(tmp_path), "/usr/bin", "/bin"))
    return tmp_path


def script(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_output_and_exit_status(bin_directory: Path) -> None:
    script(bin_directory, "tool", 'echo "hello $1"; echo oops >&2; exit 3')
    output = run_command(["tool", "world; id"], 10)
    assert isinstance(output, CommandOutput)
    assert (output.exit_status, output.stdout, output.stderr) == (3, "hello world; id\n", "oops\n")


def test_escape_sequences_are_removed(bin_directory: Path) -> None:
    script(bin_directory, "tool", r"printf '\033[31mred\007'")
    output = run_command(["tool"], 10)
    assert isinstance(output, CommandOutput)
    assert "\x1b" not in output.stdout
    assert "red" in output.stdout


def test_the_admins_environment_is_not_passed_on(
    bin_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/evil")
    script(bin_directory, "tool", "env")
    output = run_command(["tool"], 10)
    assert isinstance(output, CommandOutput)
    assert "evil" not in output.stdout
    assert "LC_ALL=C.UTF-8" in output.stdout


@pytest.mark.parametrize("name", ["no-such-tool", "/bin/sh", "../sh"])
def test_only_programs_on_the_trusted_path_run(name: str) -> None:
    output = run_command([name], 10)
    assert isinstance(output, Unknown)
    assert output.reason is Reason.NOT_THERE


def test_a_hanging_command_is_killed_with_its_children(bin_directory: Path) -> None:
    script(bin_directory, "tool", "sleep 600 & echo $!; wait")
    output = run_command(["tool"], 0.5)
    assert isinstance(output, Unknown)
    assert output.reason is Reason.TIMED_OUT


def has_gone(pid: int) -> bool:
    """Return whether a process ends within ten seconds; a zombie has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_background_children_of_a_command_are_killed(bin_directory: Path) -> None:
    script(bin_directory, "tool", "sleep 600 >/dev/null 2>&1 & echo $!")
    output = run_command(["tool"], 10)
    assert isinstance(output, CommandOutput)
    assert has_gone(int(output.stdout))


@pytest.mark.parametrize("start", ["", "setsid "], ids=["a child", "a child in a session of its own"])
def test_nothing_of_a_command_outlives_a_killed_gdrtop(
    bin_directory: Path, tmp_path: Path, start: str
) -> None:
    pids = tmp_path / "pids"
    script(
        bin_directory,
        "tool",
        f"{start}sleep 600 </dev/null >/dev/null 2>&1 &\n"
        f"echo $$ $! > {pids}.new; mv {pids}.new {pids}; exec sleep 600",
    )
    program = (
        "import sys, probes.host.machine.command as command\n"
        f"command.TRUSTED_PATH = ({str(bin_directory)!r}, *command.TRUSTED_PATH)\n"
        "command.run_command(['tool'], 600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[4])
    try:
        deadline = time.monotonic() + 60
        while not pids.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    assert [pid for pid in pids.read_text().split() if not has_gone(int(pid))] == []


def test_a_daemon_of_a_command_is_killed(bin_directory: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    script(
        bin_directory,
        "tool",
        f"setsid sh -c 'echo $$; touch {started}; exec sleep 600 >/dev/null 2>&1' &\n"
        f"while [ ! -e {started} ]; do sleep 0.02; done",
    )
    output = run_command(["tool"], 60)
    assert isinstance(output, CommandOutput)
    assert has_gone(int(output.stdout))


def test_the_next_command_runs_also_where_the_server_was_killed(bin_directory: Path) -> None:
    script(bin_directory, "tool", "echo done")
    assert isinstance(run_command(["tool"], 60), CommandOutput)
    server = command._SERVER._process
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    assert has_gone(server.pid)
    output = run_command(["tool"], 60)
    assert isinstance(output, CommandOutput)
    assert output.stdout == "done\n"


def test_a_command_that_cannot_be_executed_says_why(bin_directory: Path) -> None:
    (bin_directory / "tool").write_text("#!/no/such/interpreter\n")
    (bin_directory / "tool").chmod(0o755)
    output = run_command(["tool"], 60)
    assert isinstance(output, Unknown)
    assert output.detail == "No such file or directory"


def test_commands_at_the_same_time_do_not_wait_for_each_other(bin_directory: Path, tmp_path: Path) -> None:
    script(bin_directory, "tool", f"while [ ! -e {tmp_path}/enough ]; do sleep 0.02; done; echo first")
    script(bin_directory, "other", f"touch {tmp_path}/enough")
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(run_command(["tool"], 60)))
    thread.start()
    assert isinstance(run_command(["other"], 60), CommandOutput)
    thread.join()
    assert isinstance(found[0], CommandOutput)


def test_no_descriptor_of_a_command_stays_open(bin_directory: Path) -> None:
    script(bin_directory, "tool", "sleep 600 & exit 1")
    run_command(["tool"], 60)
    before = sorted(os.listdir("/proc/self/fd"))
    run_command(["tool"], 60)
    run_command(["no-such-tool"], 60)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_command_that_uses_cpu_gets_more_time(bin_directory: Path, tmp_path: Path) -> None:
    script(bin_directory, "tool", f"while [ ! -e {tmp_path}/enough ]; do :; done; echo late")
    later = threading.Timer(2.0, (tmp_path / "enough").touch)
    later.start()
    output = run_command(["tool"], 1.0)
    later.join()
    assert isinstance(output, CommandOutput)
    assert output.stdout == "late\n"


def test_a_command_that_waits_gets_no_more_time(bin_directory: Path, tmp_path: Path) -> None:
    script(bin_directory, "tool", "sleep 600")
    output = run_command(["tool"], 0.5)
    assert isinstance(output, Unknown)
    assert output.reason is Reason.TIMED_OUT


def test_endless_output_is_limited(bin_directory: Path) -> None:
    script(
        bin_directory, "tool", "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"
    )
    output = run_command(["tool"], 60)
    assert isinstance(output, Unknown)
    assert output.reason is Reason.MALFORMED


@pytest.mark.skipif(os.geteuid() != 0, reason="the rule is for root")
def test_of_a_long_kernel_log_the_newest_lines_are_returned(bin_directory: Path) -> None:
    count = 3 * command.OUTPUT_LIMIT_BYTES // len("line 1000000\n")
    script(bin_directory, "dmesg", f"seq -f 'line %.0f' 1000001 {1000000 + count}")
    output = run_command(["dmesg"], 10)
    assert isinstance(output, CommandOutput)
    lines = output.stdout.split("\n")
    assert lines[-2:] == [f"line {1000000 + count}", ""]
    assert lines[0] == f"line {1000000 + count - len(lines) + 2}"
    assert len(output.stdout) + output.left_out_bytes == count * len("line 1000000\n")
    assert len(output.stdout) <= command.OUTPUT_LIMIT_BYTES


def test_root_runs_nothing_that_others_could_have_changed(bin_directory: Path) -> None:
    script(bin_directory, "tool", "echo evil")
    (bin_directory / "tool").chmod(0o777)
    assert isinstance(run_command(["tool"], 10), Unknown)
