"""A copied text arrives in the clipboard, also through GNU screen and tmux."""

import base64
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.action_screens import NODE
from tests.support.terminals import dashboard, tmux
from tui.terminal.clipboard import clipboard_hint, clipboard_sequence, wrapped_for_screen

TEXT = "#!/bin/sh\nmodprobe nvidia_peermem  # é\n" * 100
# What screen 4.9.0 keeps of a string; it shows the rest of a longer one as text.
MAXSTR = 256


def test_a_sequence_has_the_text() -> None:
    found = re.fullmatch("\x1b]52;c;([^\x1b]*)\x07", clipboard_sequence(TEXT))
    assert found is not None
    assert base64.b64decode(found[1]).decode() == TEXT


def test_screen_gets_pieces_that_it_passes_on_whole() -> None:
    sequence = clipboard_sequence(TEXT)
    pieces = re.findall("\x1bP(.*?)\x1b\\\\", wrapped_for_screen(sequence), re.DOTALL)
    assert "".join(pieces) == sequence
    assert max(map(len, pieces)) < MAXSTR
    assert not any("\x1b" in piece[1:] for piece in pieces)


def test_in_tmux_the_hint_is_the_option_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    assert "tmux" not in clipboard_hint()
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    assert "set-clipboard on" in clipboard_hint()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_plan_is_copied_in_tmux(tmp_path: Path) -> None:
    with tmux(tmp_path, 100, 30, [sys.executable, "-m", "tui", "--demo", NODE]) as run:

        def press_until(key: str, words: str, *ask: str) -> None:
            deadline, shown = time.monotonic() + 60.0, ""
            while words not in shown:
                assert time.monotonic() < deadline, shown
                run("send-keys", key)
                time.sleep(0.5)
                shown = run(*ask)

        press_until("l", "modprobe nvidia_peermem", "capture-pane", "-p")
        run("set", "-s", "set-clipboard", "on")
        press_until("c", "#!/bin/sh", "list-buffers")
        assert "modprobe nvidia_peermem" in run("show-buffer")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("screen") is None, reason="GNU screen is not installed")
def test_a_plan_is_copied_in_screen(tmp_path: Path) -> None:
    sockets = {"SCREENDIR": str(tmp_path / "sockets")}
    (tmp_path / "sockets").mkdir(mode=0o700)
    screen = ("screen", "-c", "/dev/null", "-U", "-S", "gdrtop")
    with dashboard("--demo", NODE, multiplexer=screen, TERM="xterm-256color", **sockets) as terminal:
        try:
            terminal.until(lambda: "Topology" in terminal.text and "checking" not in terminal.text)
            terminal.press("l")
            terminal.until(lambda: "modprobe nvidia_peermem" in terminal.text)
            terminal.press("c")
            terminal.until(lambda: b"\x1b]52;c;" in terminal.written and "OSC 52" in terminal.text)
            assert "IyEvYmlu" not in terminal.text  # base64 of "#!/bin"
        finally:
            quit_screen = ["screen", "-S", "gdrtop", "-X", "quit"]
            subprocess.run(quit_screen, env={**os.environ, **sockets}, check=False)
    found = re.search(b"\x1b]52;c;([^\x1b]*)\x07", terminal.written)
    assert found is not None
    assert "modprobe nvidia_peermem" in base64.b64decode(found[1]).decode()
