from dataclasses import replace

import pytest

from probes.base.unknown import Reason, Unknown
from probes.fleet.compare import Fleet, Unanswered, compare
from tests.support.fleet_nodes import node, nodes, with_value
from tui.runtime.printing import ascii_text
from widgets.base.lines import plain, width_of
from widgets.fleet.answer import draw_answer


def text(fleet: Fleet, width: int = 120) -> str:
    return "\n".join(plain(line) for line in draw_answer(fleet, width))


FAULTY = compare(
    [
        *nodes(62),
        node("gpu063", "hgx-h100+acs-on"),
        node("gpu064", "hgx-h100+nvidia-not-loaded"),
        *nodes(2, "gb200", "gb"),
    ],
    [Unanswered("gpu065", "connection timed out"), Unanswered("gpu066", "connection timed out")],
)


def test_the_first_lines_are_the_answer_with_the_faulty_node_and_its_fault() -> None:
    lines = text(FAULTY).splitlines()
    assert (
        lines[0] == "66 nodes: 62 ACTIVE, 2 READY (2 likely in use), 1 DEGRADED, 1 BROKEN · 2 do not answer"
    )
    assert lines[2] == "✗ BROKEN · 0 of 8 GPUs · 1 critical  gpu064"
    assert "The nvidia driver is not loaded" in lines[3]
    assert "ACS redirect is enabled between GPU and NIC" in lines[5]
    assert "gpu[001-062] (62)" in text(FAULTY)


def test_differences_name_the_value_of_the_rest_and_the_odd_nodes_with_their_verdict() -> None:
    shown = text(FAULTY)
    assert "ACS redirect  off: gpu[001-062,064] · on 16 of 16 switch ports: gpu063 (DEGRADED)" in shown
    assert "Differences: Supermicro SYS-821GE-TNHR, 8 × NVIDIA H100 SXM5 80GB (64 nodes)" in shown
    assert "gpu[065-066] (2): connection timed out" in shown


def test_a_rest_that_is_not_green_says_so() -> None:
    members = [*nodes(4, "hgx-h100+acs-on"), node("good")]
    assert "on 16 of 16 switch ports: gpu[001-004] (most are DEGRADED) · off: good (ACTIVE)" in text(
        compare(members)
    )


def test_the_names_of_a_large_rest_are_a_number() -> None:
    members = [
        with_value(member, "kernel", "6.5.0") if number % 3 == 0 else member
        for number, member in enumerate(nodes(60))
    ]
    assert "6.8.0-60-generic: 40 nodes" in text(compare(members), 60)


def test_what_could_not_be_compared_is_listed_with_the_reason() -> None:
    hidden = with_value(node("gpu004"), "acs", Unknown(Reason.NEEDS_ROOT))
    shown = text(compare([*nodes(3), hidden]))
    assert "The nodes do not differ in the facts that gdrtop compares." in shown
    assert "ACS redirect: needs root on gpu004" in shown


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_screen_and_all_can_be_ascii(width: int) -> None:
    lines = draw_answer(FAULTY, width)
    assert max(map(width_of, lines)) <= width
    assert "?" not in "".join(ascii_text(plain(line)) for line in lines)


def test_one_node_and_no_node_are_drawn_too() -> None:
    assert text(compare(nodes(1))).startswith("1 node: 1 ACTIVE\n")
    assert text(compare([], [Unanswered("gpu001", "timed out")])).startswith("0 nodes · 1 does not answer")


def test_names_from_a_file_cannot_act_on_the_terminal() -> None:
    fleet = compare([node("a\x1b[31m"), *nodes(3)], [Unanswered("b\x1b]0;x", "no\x1b[2J")])
    assert "\x1b" not in text(fleet)


def test_a_fleet_of_many_kinds_ends_with_the_nodes_that_are_not_shown() -> None:
    faulty = node("x", "hgx-h100+acs-on")
    members = [
        replace(faulty, name=f"gpu{number:03}", findings=(replace(faulty.findings[0], title=f"No {number}"),))
        for number in range(1, 91)
    ]
    shown = text(compare(members))
    assert "No 60" in shown
    assert "30 more kinds of nodes; --json and --rows list all" in shown
    assert "  DEGRADED  gpu[" in shown
