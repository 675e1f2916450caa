"""Tables for scripts, in which every row has the same columns."""

import re
from typing import Any

import pytest

from probes.base.unknown import Reason, Unknown
from probes.fleet.compare import Unanswered, compare
from tests.support.fleet_nodes import node, nodes, with_value
from tui.cli import main
from widgets.base.lines import plain
from widgets.fleet.answer import draw_node_rows


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) in (0, 1)
    return capsys.readouterr().out


def rows_of(*arguments: Any) -> list[list[str]]:
    lines = [plain(shown) for shown in draw_node_rows(compare(*arguments))]
    return [re.split(r"  +", text) for text in lines]


def test_a_wide_fleet_is_one_row_a_node_the_worst_first() -> None:
    unread = with_value(node("gpu004"), "driver", Unknown(Reason.NEEDS_ROOT))
    heading, *rows = rows_of(
        [*nodes(2), node("gpu003", "hgx-h100+nvidia-not-loaded"), unread, node("vm", "cloud-vm")],
        [Unanswered("gpu005", "connection timed out")],
    )
    assert heading[:5] == ["NODE", "VERDICT", "PATH", "GPUS", "NICS"]
    assert [len(row) for row in rows] == [len(heading)] * 6
    found = {row[0]: dict(zip(heading, row, strict=True)) for row in rows}
    assert next(iter(found)) == "gpu003"
    assert found["gpu003"]["FINDING"] == "nvidia-not-loaded"
    assert found["gpu003"]["CRITICAL"] == "1"
    assert found["gpu001"]["GPUS"] == "8/8"
    assert found["gpu001"]["KERNEL"] == "6.8.0-60-generic"
    assert found["gpu001"]["FINDING"] == "-"
    assert found["gpu004"]["DRIVER"] == "? (needs root)"
    assert (found["vm"]["VERDICT"], found["vm"]["GPUS"], found["vm"]["NICS"]) == ("? UNKNOWN", "-", "-")
    assert (found["gpu005"]["GPUS"], found["gpu005"]["FINDING"]) == ("-", "connection timed out")


@pytest.mark.slow
def test_a_table_for_scripts_is_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = printed(capsys, "fleet", "check", "--demo", "pcie-l40s*2", "--rows")
    assert [row.split()[0] for row in fleet.splitlines()] == ["gpu01", "gpu02"]
    rows = printed(capsys, "modules", "--demo", "pcie-l40s", "--rows")
    assert {row[:1] for row in rows.splitlines()} == {"✓", "–"}


def test_json_and_rows_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modules", "--json", "--rows"]) == 3
    assert "not allowed with argument --json" in capsys.readouterr().err
