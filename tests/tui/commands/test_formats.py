"""-o: the document as YAML and tables for scripts, in which every row has the same columns."""

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.fleet.compare import Unanswered, compare
from tests.support.fleet_nodes import node, nodes, with_value
from tui.cli import main
from tui.runtime.json_values import yaml_text
from widgets.base.lines import plain
from widgets.fleet.answer import draw_node_rows

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) in (0, 1)
    return capsys.readouterr().out


def document(text: Any) -> Any:
    return {name: value for name, value in text.items() if name not in ("time", "verdict")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("modules", "--demo", "pcie-l40s"), ("topo", "--demo", "cloud-vm", "--hops")],
    ids=lambda words: words[0],
)
def test_yaml_is_the_document_of_json(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    as_yaml = yaml.safe_load(printed(capsys, *command, "-o", "yaml"))
    assert document(as_yaml) == document(json.loads(printed(capsys, *command, "--json")))


@pytest.mark.slow
@given(VALUES)
def test_any_value_is_the_same_in_yaml_and_in_ascii(value: object) -> None:
    text = yaml_text({"value": value})
    assert text.isascii()
    assert yaml.safe_load(text) == {"value": value}


def test_what_yaml_could_take_for_another_type_is_quoted() -> None:
    words = ["no", "1e3", "0o17", "~", "12:30:45", "2026-11-23", "=", "\udc80"]
    texts = yaml_text(words).splitlines()
    assert [text[2] in "\"'" for text in texts] == [True] * len(words)


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
def test_without_a_header_a_table_is_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = printed(capsys, "fleet", "check", "--demo", "pcie-l40s*2", "-o", "wide", "--no-header")
    assert [row.split()[0] for row in fleet.splitlines()] == ["gpu01", "gpu02"]
    folded = printed(capsys, "fleet", "--demo", "pcie-l40s*2", "--no-header")
    assert "2 nodes" not in folded
    assert "gpu[01-02] (2)" in folded.splitlines()[0]
    whole = printed(capsys, "modules", "--demo", "pcie-l40s", "-o", "wide")
    rows = printed(capsys, "modules", "--demo", "pcie-l40s", "-o", "wide", "--no-header")
    assert "LOADED AT BOOT" in whole
    assert rows in whole
    assert {row[:1] for row in rows.splitlines()} == {"✓", "–"}


def test_an_unknown_format_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modules", "-o", "xml"]) == 3
    assert "'table', 'wide', 'json', 'yaml'" in capsys.readouterr().err
