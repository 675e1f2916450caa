"""What gdrtop's exit status is when something fails: the table of `gdrtop help consumers`, played."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.support.tiers import usual
from tui.actions.supervisor import _program
from tui.cli import main
from tui.launch import SLURMD_SECONDS
from tui.manual import page

HEALTHY, BROKEN = "hgx-h100", "hgx-h100+xid-79-fell-off-bus"  # GPU 5
COMMANDS = {
    **{f"`{name}`": (name,) for name in SLURMD_SECONDS},
    **{f"`{name}`": ("check", "--for", name) for name in ("nagios", "npd", "nhc", "slurm")},
    "`check`": ("check",),
}
ALWAYS_0 = {"`epilog`": "`prolog`", "`health-check`": "`prolog`"}  # but for the last two rows, which are its
CANNOT_IMPORT = "import sys; sys.modules[{!r}] = None"
CRASHES = "import tui.runtime.open_host; tui.runtime.open_host.open_host = None"
NO_DESCRIPTORS = """\
import resource, tui.launch
main = tui.launch.main
tui.launch.main = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)) or main()
"""
# What a row does to gdrtop: its node, the shell around it ({}), and what Python runs before it.
ROWS: dict[str, list[tuple[str, str, str]]] = {
    "the node is healthy": [(HEALTHY, "{}", "")],
    "a critical finding": [(BROKEN, "{}", "")],
    "a critical finding, and stderr is closed, full or broken": [
        (BROKEN, f"{{}} 2>{stream}", "") for stream in ("&-", "/dev/full", "&$NO_READER")
    ],
    "a critical finding, and stdout is closed or full": [
        (BROKEN, f"{{}} >{stream}", "") for stream in ("&-", "/dev/full")
    ],
    "a critical finding, and the reader of stdout has ended": [(BROKEN, "{} >&$NO_READER", "")],
    "healthy, and both streams are full": [(HEALTHY, "{} >/dev/full 2>&1", "")],
    "the configuration has an error": [(BROKEN, "GDRTOP_INTERVAL=x {}", "")],
    "an option is wrong": [(BROKEN, "{} --nonsense", "")],
    "an error in gdrtop": [
        (BROKEN, "{}", CRASHES),
        (BROKEN, "{} 2>/dev/full", CRASHES),
        (BROKEN, "{}", f"{CRASHES}; {CANNOT_IMPORT.format('tui.files.crash_file')}"),
    ],
    "a module of gdrtop is missing": [
        (BROKEN, "{}", CANNOT_IMPORT.format(name)) for name in ("tui.cli", "tui.settings", "argparse")
    ],
    "too few file descriptors": [(BROKEN, "{}", NO_DESCRIPTORS)],
    "too little memory": [(HEALTHY, f"ulimit -v $((MEMORY + {more})); {{}}", "") for more in (1000, 5000)],
    "gdrtop is killed": [(BROKEN, "{}", "import os; os.kill(os.getpid(), 9)")],
    "Python cannot start": [(BROKEN, "PYTHONHOME=/nonexistent {}", "")],
}


def table() -> dict[str, dict[str, str]]:
    """The table of the manual: row → column → exit statuses."""
    section = page("consumers").partition("\n## When something fails\n")[2].partition("\n## ")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


@pytest.fixture(scope="module")
def memory() -> int:
    """About the least memory with which Python itself starts, in KiB."""
    least, most = 0, 1 << 21
    while most - least > 1000:
        middle = (least + most) // 2
        argv = ["sh", "-c", f"ulimit -v {middle}; exec {sys.executable} -c pass"]
        is_enough = subprocess.run(argv, capture_output=True).returncode == 0
        least, most = (least, middle) if is_enough else (middle, most)
    return most


def played(
    folder: Path, arguments: str, node: str, shell: str, before: str
) -> subprocess.CompletedProcess[str]:
    """Run gdrtop in a shell as slurmd would for a job with GPU 5, and with a pipe whose reader has ended."""
    (folder / "sitecustomize.py").write_text(before)
    reading, writing = os.pipe()
    os.close(reading)
    program = f"{sys.executable} -m tui --demo {node} {arguments}"
    environment = {
        **{"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": f"{folder}:{ROOT}"},
        **{"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "5", "SLURMD_NODENAME": "hgx-h100"},
        **{"NO_READER": str(writing), "PYTHONDONTWRITEBYTECODE": "1"},
    }
    try:
        return subprocess.run(
            ["bash", "-c", f"{shell.format(program)}\nexit $?"],
            **{"cwd": ROOT, "env": environment, "pass_fds": [writing], "capture_output": True, "text": True},
        )
    finally:
        os.close(writing)


def test_every_row_and_every_command_of_the_manual_is_played() -> None:
    assert list(table()) == list(ROWS)
    columns = {name for row in table().values() for cell in row for name in cell.split(", ")}
    assert columns | set(ALWAYS_0) == set(COMMANDS)


@pytest.mark.skipif(
    not Path("/dev/full").exists() or not shutil.which("bash"), reason="no /dev/full or no bash"
)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("command", usual(COMMANDS, ["`prolog`"]))
def test_the_exit_status_is_that_of_the_manual(command: str, row: str, memory: int, tmp_path: Path) -> None:
    asked = ALWAYS_0.get(command, command)
    (cell,) = (cell for column, cell in table()[row].items() if asked in column.split(", "))
    if command in ALWAYS_0 and row not in list(ROWS)[-2:]:
        cell = "0"
    expected = {int(status) for status in cell.split(" or ")}
    for node, shell, before in ROWS[row]:
        done = played(
            tmp_path, " ".join(COMMANDS[command]), node, shell.replace("MEMORY", str(memory)), before
        )
        assert done.returncode in expected, (shell, before, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr or row == "Python cannot start"
        if command == "`nagios`" and 3 in expected:
            assert done.stdout.startswith("GDRTOP UNKNOWN - "), (shell, before)


def test_a_prolog_does_not_wait_for_a_reader_of_stderr(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, bytes(1 << 16)):
                pass
        os.set_blocking(writing, True)
        shell = f"exec 9>&$NO_READER; {{}} 2>/proc/{os.getpid()}/fd/{writing}"
        assert played(tmp_path, "prolog", BROKEN, shell, "").returncode == 1
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize(("words", "status"), [(["help", "prolog"], 70), (["prolog"], 0)])
def test_only_the_command_itself_is_one_of_slurmd(words: list[str], status: int) -> None:
    crash = "import sys, tui.cli, tui.launch; tui.cli.main = None; sys.argv[0] = 'gdrtop'; tui.launch.main()"
    done = subprocess.run([sys.executable, "-c", crash, *words], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(b"gdrtop stopped because of an error: TypeError")


@pytest.mark.parametrize("package", ["tui", "probes", "widgets"])
@pytest.mark.parametrize("start", ["console script", "python -m tui"])
def test_a_package_of_another_program_on_pythonpath_is_not_imported(
    start: str, package: str, tmp_path: Path
) -> None:
    """The console script is `gdrtop.main`: pyproject.toml installs tui/launch.py as gdrtop.py."""
    (tmp_path / "other" / package).mkdir(parents=True)
    (tmp_path / "other" / package / "__init__.py").write_text("raise SystemExit('foreign')")
    installed = tmp_path / "site"
    installed.mkdir()
    shutil.copy(ROOT / "tui" / "gdrtop", installed / "gdrtop.py")
    for name in ("tui", "probes", "widgets"):
        (installed / name).symlink_to(ROOT / name)
    script = f"import sys; sys.path.append({str(installed)!r}); import gdrtop; sys.exit(gdrtop.main())"
    argv, cwd = (["-c", script], tmp_path) if start == "console script" else (["-m", "tui"], ROOT)
    done = subprocess.run(
        [sys.executable, *argv, "--demo", "hgx-h100", "check", "--one-line"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "other")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ACTIVE" in done.stdout


def test_the_supervisor_of_an_action_imports_gdrtops_own_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/opt/other", *sys.path])
    assert _program("order")[5] == str(ROOT)


def test_slurm_finds_the_error_of_the_configuration_in_the_system_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logged: list[str] = []
    monkeypatch.setattr("tui.cli.write_syslog", logged.append)
    monkeypatch.setattr("tui.settings.load.SITE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("tui.settings.load.TOP", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    (tmp_path / "config.toml").write_text("# site\ninterval = 'x'\n")
    assert main(["prolog"]) == 0
    assert logged[0].startswith(f"prolog, job 4711: {tmp_path}/config.toml:2: interval "), logged
    assert "says nothing about the node" in logged[-1]
    assert logged[0].partition(": ")[2] in capsys.readouterr().err


def test_the_time_limit_of_a_prolog_begins_before_the_configuration_is_read(tmp_path: Path) -> None:
    hangs = "import time, tui.settings.load as load; load.is_any = lambda: time.sleep(1000)"
    done = played(tmp_path, "prolog --limit 1", BROKEN, "{}", hangs)
    assert (done.returncode, done.stderr) == (0, "gdrtop prolog: no result within 1 s\n")
