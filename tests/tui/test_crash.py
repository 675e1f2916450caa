"""A crash of gdrtop is one line, a file of the user's own, and a terminal that works at once."""

import fcntl
import os
import pty
import select
import stat
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tests.tui.test_terminals import left_behind
from tui.cli import main
from tui.files.crash_file import describe_crash

LINES, COLUMNS = 40, 120
PATIENCE_SECONDS = 60.0
SECRET = "job-of-alice"  # a value of a variable, as job data is
RAISES = f"""
def fail(*arguments, **named):
    data = {SECRET[:4]!r} + {SECRET[4:]!r}
    raise RuntimeError("a drawing failed")
"""
START = "import sys\nfrom tui.cli import main\nsys.exit(main(sys.argv[1:]))"
DRAWINGS = {
    "at once": "from tui.terminal.diff import MinimalOutput\nMinimalOutput.minimized = fail",
    "with the first facts": "import widgets.node.verdict\nwidgets.node.verdict.draw = fail",
    "without networkx": "sys.modules['networkx'] = None",
}


def crashed(code: str, state: Path, *arguments: str) -> tuple[int, str, bool]:
    """Run gdrtop with this code before it; return status, output, and whether the terminal is as before."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    before = termios.tcgetattr(slave)
    environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state)}
    argv = [sys.executable, "-c", f"import sys\n{RAISES}{code}\n{START}", *arguments]
    child = subprocess.Popen(
        argv, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    deadline, output = time.monotonic() + PATIENCE_SECONDS, b""
    try:
        while child.poll() is None or select.select([master], [], [], 0)[0]:
            assert time.monotonic() < deadline, output[-2000:]
            if select.select([master], [], [], 0.05)[0]:
                output += os.read(master, 1 << 16)
        return child.wait(), output.decode("utf-8", "replace"), termios.tcgetattr(slave) == before
    finally:
        child.kill()
        child.wait()
        os.close(slave)
        os.close(master)


def saved(state: Path) -> list[Path]:
    return sorted((state / "gdrtop" / "crashes").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("drawing", DRAWINGS)
def test_a_dashboard_that_cannot_draw_ends_with_one_line_and_a_usable_terminal(
    drawing: str, tmp_path: Path
) -> None:
    status, output, is_restored = crashed(DRAWINGS[drawing], tmp_path, "--demo")
    assert status == 70
    assert is_restored
    last = output.rpartition("\x1b[?1049l")[2]  # back on the main screen
    assert "\x1b[?25h" in last  # the cursor is shown
    (path,) = saved(tmp_path)
    assert last.count("\n") == 1
    assert last.strip().partition("gdrtop stopped")[2].startswith(" because of an error: ")
    assert f"details: {path}. To report it" in last
    assert len(output) < 100_000  # a traceback with all values was 7.6 MB
    assert SECRET not in output + path.read_text()


KILLED = {
    "while a screen opens": "self.action_help()\n    kill()",
    "while the screen's thread is busy": "kill()\n    while True:\n        time.sleep(0.01)",
    "while keys come faster than the screen takes them": (
        "for _ in range(200_000):\n        self._driver.process_message(events.Key('j', 'j'))\n    kill()"
    ),
}


@pytest.mark.parametrize("when", KILLED)
def test_sigterm_is_no_crash_and_leaves_a_usable_terminal(when: str, tmp_path: Path) -> None:
    log = tmp_path / "log"  # of Textual, which must not write one
    code = f"""
import os, signal, time
os.environ["TEXTUAL_LOG"] = {str(log)!r}
from tui import dashboard
def kill():
    os.kill(os.getpid(), signal.SIGTERM)
def ready(self):
    {KILLED[when]}
prepare = dashboard.prepare
def prepared(*arguments):
    is_ascii = prepare(*arguments)
    from textual import events
    from tui.app import GdrtopApp
    globals().update(events=events)
    GdrtopApp.on_ready = ready
    return is_ascii
dashboard.prepare = prepared
"""
    status, output, is_restored = crashed(code, tmp_path, "--demo")
    assert status == 0, output[-2000:]
    assert is_restored
    assert "\x1b[?1049h" in output
    assert not left_behind(output)
    assert "gdrtop stopped" not in output
    assert not (tmp_path / "gdrtop" / "crashes").exists()
    assert not log.exists()


def test_a_terminal_of_an_absurd_size_is_filled_in_part(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes"
    code = f"""
import os
os.environ.update(LINES="99999", COLUMNS="99999")
from textual import events
from tui.app import GdrtopApp
def ready(self):
    first = tuple(self.size)
    self._driver.process_message(events.Resize.from_dimensions((99998, 99998), (1, 1)))
    def end():
        open({str(sizes)!r}, "w").write(repr([first, tuple(self.size), tuple(self.screen.size)]))
        self.exit()
    self.set_timer(0.1, end)
GdrtopApp.on_ready = ready
"""
    status, output, _ = crashed(code, tmp_path, "--demo")
    assert status == 0, output[-2000:]
    assert sizes.read_text() == repr([(1000, 500)] * 3)


@pytest.mark.slow
def test_a_command_that_raises_ends_with_one_line(tmp_path: Path) -> None:
    code = "import tui.commands.check\ntui.commands.check.run = fail"
    status, output, _ = crashed(code, tmp_path, "check", "--demo")
    (path,) = saved(tmp_path)
    assert status == 70
    assert output.splitlines() == [
        f"gdrtop stopped because of an error: RuntimeError: a drawing failed; details: {path}. "
        "To report it, attach a recording: gdrtop record --redact FILE"
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "in fail" in path.read_text()
    assert SECRET not in path.read_text()


def test_a_missing_file_is_not_taken_for_a_closed_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*arguments: object) -> int:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("tui.commands.check.run", fail)
    assert main(["check", "--demo"]) == 70
    assert "'/nowhere'" in capsys.readouterr().err


def test_few_crash_files_are_left_and_no_link_is_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = tmp_path / "state" / "gdrtop" / "crashes"
    directory.mkdir(parents=True)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(8):
        (directory / f"crash-2020010{number}T000000Z-1.txt").symlink_to(tmp_path / "precious")
    (directory / "notes.txt").write_text("mine")
    text = describe_crash(ValueError("x" * 5000 + "\x1b[2J"))
    assert len(text) < 1000
    assert "\x1b" not in text
    left = {path.name for path in directory.iterdir()}
    assert len(left - {"notes.txt"}) == 5
    assert "notes.txt" in left
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_crash_that_cannot_be_saved_is_still_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gdrtop").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = describe_crash(ValueError("no"))
    assert "the details could not be saved: " in text
    assert "\n" not in text
