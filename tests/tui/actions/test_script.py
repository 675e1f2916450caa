"""Scripts of plans: order, where they stop, how they continue."""

from __future__ import annotations

from pathlib import Path

from probes.base.plan import Plan, Step, instruction
from tests.support.script_shell import ScriptShell
from tui.actions.script import script_of

STEPS = (
    Step("Begin", ("echo", "begun")),
    instruction("Turn the key", to_copy="a='1' $HOME"),
    instruction("Look at the lamp"),
    Step("End", ("echo", "ended")),
)


def test_a_script_goes_on_after_manual_steps(tmp_path: Path) -> None:
    script, shell = script_of(Plan("A plan", STEPS), "node"), ScriptShell(tmp_path)
    status, printed = shell.run(script)
    assert (status, "begun" in printed, "ended" in printed) == (2, True, False)
    assert "2. Turn the key\n   a='1' $HOME\n3. Look at the lamp\n" in printed
    assert "give it the argument 4" in printed
    # Started again, it runs no step twice, and does not take manual steps for done.
    status, printed = shell.run(script)
    assert (status, "begun" in printed, "Turn the key" in printed) == (2, False, True)
    status, printed = shell.run(script, "4")
    assert (status, "begun" in printed, "ended" in printed) == (0, False, True)
    # When all is done, it can be started from the beginning.
    assert "begun" in shell.run(script)[1]


def test_a_script_continues_with_the_step_that_failed(tmp_path: Path) -> None:
    door = tmp_path / "door"
    steps = (Step("Begin", ("echo", "begun")), Step("Go in", ("ls", str(door))), Step("End", ("echo", "in")))
    plan = Plan("A plan", steps)
    script, shell = script_of(plan, "node"), ScriptShell(tmp_path)
    status, printed = shell.run(script)
    assert status != 0
    assert "begun" in printed
    door.mkdir()
    status, printed = shell.run(script)
    assert (status, "begun" in printed, "in\n" in printed) == (0, False, True)


def test_another_script_begins_at_the_beginning(tmp_path: Path) -> None:
    shell = ScriptShell(tmp_path)
    shell.run(script_of(Plan("A plan", STEPS), "node"))
    other = (Step("Greet", ("echo", "hello")), *STEPS)
    assert "hello" in shell.run(script_of(Plan("A plan", other), "node"))[1]


def test_after_a_reboot_a_script_asks_for_a_new_one(tmp_path: Path) -> None:
    script, shell = script_of(Plan("A plan", STEPS), "node"), ScriptShell(tmp_path)
    shell.run(script)
    (saved,) = (tmp_path / "state" / "gdrtop").iterdir()
    step, _, waiting = saved.read_text().split()
    saved.write_text(f"{step} another-boot {waiting}\n")
    status, printed = shell.run(script)
    assert (status, "was rebooted" in printed) == (2, True)
    assert "ended" in shell.run(script, "4")[1]


def test_a_script_that_needs_root_says_so(tmp_path: Path) -> None:
    script = script_of(Plan("A plan", STEPS), "node").replace('"$(id -u)" -ne 0', "1 -ne 0")
    status, printed = ScriptShell(tmp_path).run(script)
    assert (status, printed) == (3, "Run this script as root.\n")


def test_a_reboot_is_for_a_person(tmp_path: Path) -> None:
    plan = Plan("A plan", (*STEPS[:1], Step("Reboot", ("systemctl", "reboot"))), needs_reboot=True)
    status, printed = ScriptShell(tmp_path).run(script_of(plan, "node"))
    assert status == 2
    assert "2. Reboot\n   systemctl reboot\nThen check the node: gdrtop check\n" in printed


def test_advice_for_a_failure_does_not_stop_a_script(tmp_path: Path) -> None:
    steps = (*STEPS[:1], instruction("If it fails, read the log"), *STEPS[-1:])
    status, printed = ScriptShell(tmp_path).run(script_of(Plan("A plan", steps), "node"))
    assert (status, "2. If it fails, read the log" in printed, "ended" in printed) == (0, True, True)
