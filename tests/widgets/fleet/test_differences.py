from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.fleet.compare import Changes, changes_between
from tests.support.fleet_nodes import simulated, with_value
from widgets.base.lines import plain, width_of
from widgets.fleet.differences import draw_changes, draw_line

GOOD = replace(simulated("hgx-h100"), taken_at=1_000.0)
DAYS = 86_400


def since(*values: tuple[str, object, str], label: str = "hgx-h100") -> Changes:
    """The good node, and two days later one with these facts: id, value and device."""
    now = replace(simulated(label), taken_at=1_000.0 + 2 * DAYS)
    for fact, value, device in values:
        now = with_value(now, fact, value, device)
    return changes_between(GOOD, now)


CHANGED = since(
    ("firmware", "28.43.1014", "mlx5_3"),
    ("kernel", "6.8.0-48-generic", ""),
    ("bios", "2.4b", ""),
    ("perftest", "none", ""),
)


def test_the_line_names_the_most_relevant_changes_first() -> None:
    line = plain(draw_line(CHANGED, 200))
    assert line.startswith("Since it last worked, 2 d ago: kernel ")
    assert " → 6.8.0-48-generic, NIC firmware of mlx5_3 " in line
    assert line.endswith(" and 1 more")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_the_line_is_one_line_that_names_what_there_is_room_for(width: int) -> None:
    for shown in (CHANGED, since(), since(label="hgx-h100+nvidia-not-loaded")):
        line = draw_line(shown, width)
        assert width_of(line) <= width
        assert plain(line).startswith("Since it last worked, 2 d ago: ")
    assert "→ none" in plain(draw_line(since(label="hgx-h100+nvidia-not-loaded"), 80))


def test_several_devices_with_one_change_are_folded() -> None:
    line = plain(draw_line(since(("firmware", "28.43.1014", "")), 200))
    assert "NIC firmware of mlx5_0 and 7 more 28." in line


def test_without_a_change_the_line_says_so() -> None:
    nothing = "Since it last worked, 2 d ago: nothing that gdrtop compares has changed"
    assert plain(draw_line(since(), 120)) == nothing


def test_saved_facts_that_cannot_be_read_are_named_with_the_reason() -> None:
    detail = "/var/lib/gdrtop/last-ok/gpu1.json cannot be read: it is damaged; remove it"
    assert plain(draw_line(Unknown(Reason.MALFORMED, "", detail), 120)) == detail


def test_the_answer_comes_first_then_the_verdicts_then_each_change() -> None:
    lines = [plain(line) for line in draw_changes(since(label="hgx-h100+nvidia-not-loaded"), 100)]
    assert lines[0] == "2 changes since hgx-h100 last worked, 2 d ago"
    assert lines[1].startswith("  then  1970-01-01 00:16:40 UTC  ● ACTIVE")
    assert lines[2].startswith("  now   1970-01-03 00:16:40 UTC  ✗ BROKEN")
    assert lines[3].strip() == "The nvidia driver is not loaded"
    assert lines[5] == "  NVIDIA driver  570.211.01 (open kernel modules) → none"
    assert lines[6] == "  Modules nvidia, nvidia_uvm, nvidia_peermem, gdrdrv  loaded → not loaded"


def test_a_fact_that_is_unknown_now_has_not_changed() -> None:
    lines = [plain(line) for line in draw_changes(since(("acs", Unknown(Reason.NEEDS_ROOT), "")), 100)]
    assert lines[0].startswith("No change in the facts that gdrtop compares since")
    assert lines[-2:] == ["Cannot be compared", "  ACS redirect: needs root"]


@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    for shown in (CHANGED, since(label="hgx-h100+nvidia-not-loaded")):
        assert all(width_of(line) <= max(width, 46) for line in draw_changes(shown, width))
