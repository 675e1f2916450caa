"""A command at an event: it gets the event, has a limited time, and cannot stop the watching."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tui.commands.watch.watch import EventHook

READS = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"


def until(done: Callable[[], object], hook: EventHook) -> list[str]:
    """What went wrong until something is done."""
    wrong = []
    end = time.monotonic() + 60
    while not done() and time.monotonic() < end:
        wrong.append(hook.step())
        time.sleep(0.01)
    assert done()
    return [text for text in wrong if text]


def test_each_event_is_given_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "told"
    hook = EventHook([sys.executable, "-c", READS, str(file)])
    assert [hook.tell(text) for text in ("one; rm", "$(two)", "three")] == ["", "", ""]
    until(lambda: file.exists() and file.read_text().count("\n") == 3, hook)
    assert file.read_text() == "one; rm\n$(two)\nthree\n"
    hook.close()


def test_a_command_that_fails_or_is_not_there_is_told() -> None:
    hook = EventHook([sys.executable, "-c", "raise SystemExit(4)"])
    wrong: list[str] = [hook.tell("x")]
    wrong += until(lambda: hook._running is None, hook)
    assert any("ended with status 4" in text for text in wrong)
    assert "cannot be run" in EventHook(["/no/such/command"]).tell("x")


def test_a_command_that_hangs_is_ended_and_too_many_events_are_left_out() -> None:
    now = [0.0]
    hook = EventHook([sys.executable, "-c", "import time; time.sleep(600)"], lambda: now[0])
    told = [hook.tell(str(number)) for number in range(18)]
    assert told[:17] == [""] * 17
    assert "still wait" in told[17]
    now[0] = 31.0
    assert "was ended after 30 s" in hook.step()
    hook.close()


@pytest.mark.parametrize("text", ["mail admin", "", "'"])
def test_a_command_without_an_absolute_path_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tui.cli import main

    assert main(["watch", "--on-event", text]) == 3
    assert "--on-event" in capsys.readouterr().err
