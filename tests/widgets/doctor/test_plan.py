"""A plan before it runs: many equal steps are one, and nothing else is folded."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from widgets.base.lines import plain
from widgets.doctor.plan import draw_consequences, draw_steps, step_groups


def clear(number: int, group: str = "switch ports") -> Step:
    return Step(f"clears port {number}", ("setpci", "-s", str(number)), undo=("setpci",), group=group)


def drawn(*steps: Step) -> str:
    plan = Plan("Clear", steps)
    return "\n".join(plain(line) for line in [*draw_consequences(plan, 80), *draw_steps(plan, 80)])


def test_many_similar_steps_are_folded() -> None:
    text = drawn(*map(clear, range(16)), instruction("keep it so"))
    assert "16 switch ports, starting with:" in text
    assert "setpci -s 0" in text
    assert "setpci -s 1" not in text
    assert "… 15 more like this" in text
    assert "manual: keep it so" in text


def test_two_similar_steps_and_ungrouped_steps_are_not_folded() -> None:
    for steps in ((clear(0), clear(1)), [clear(number, "") for number in range(5)]):
        text = drawn(*steps)
        assert "more like this" not in text
        assert all(f"setpci -s {number}" in text for number in range(len(steps)))


def test_a_different_step_splits_the_groups_and_nothing_is_lost() -> None:
    steps = (clear(0), clear(1), clear(2), instruction("wait"), clear(3), clear(4), clear(5))
    groups = step_groups(steps)
    assert [len(group) for group in groups] == [3, 1, 3]
    assert tuple(step for group in groups for step in group) == steps
