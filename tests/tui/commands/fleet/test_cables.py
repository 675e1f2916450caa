"""`gdrtop fleet check --cables`, and what fleet check says of cables."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from probes.facts.rdma.cable_ends import CableEnd
from probes.fleet.cables import Cable
from probes.fleet.compare import compare
from probes.fleet.summary import from_json, to_json
from tests.support.documents import valid
from tui.cli import main
from tui.commands.fleet.check import judge_simulated

SWAPPED = "pcie-l40s*4,pcie-l40s+cable-swapped"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["fleet", "check", *words])
    return status, capsys.readouterr().out


def test_a_row_a_cable_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = printed(capsys, "--demo", SWAPPED, "--cables")
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["NODE", "NIC", "SWITCH", "PORT", "DESCRIPTION", "UNKNOWN"]
    assert rows[1] == ["gpu01", "mlx5_0", "leaf0", "Ethernet1", "To-pcie-l40s-ens0np0", "-"]
    assert len(rows[:11]) == 11
    assert "gpu05: mlx5_0 and mlx5_1 have swapped cables, which end at leaf1 and leaf0" in text
    assert status == 1


def test_nodes_that_are_cabled_alike_have_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = printed(capsys, "--demo", "bare-roce*3", "--cables")
    assert (status, "swapped" in text) == (0, False)
    assert text.count("leaf0a") == 3
    status, text = printed(capsys, "--demo", "bare-roce*2,bare-roce+lldp-not-readable", "--cables")
    assert (status, "run as root, or join the group adm" in text) == (0, True)


def test_comma_separated_for_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(capsys, "--demo", "pcie-l40s*2", "--cables", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["SWITCH"] for row in rows] == ["leaf0", "leaf1"] * 2


def test_a_switch_cannot_write_a_formula_into_a_spreadsheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "--demo", "pcie-l40s", "--save", str(tmp_path))
    (file,) = tmp_path.iterdir()
    _, text = printed(capsys, "--demo", "pcie-l40s", "--json")
    document = json.loads(text)
    document["nodes"][0]["cables"][0]["end"]["port_description"] = '=HYPERLINK("x")'
    file.unlink()
    (tmp_path / "saved.json").write_text(json.dumps(document))
    _, text = printed(capsys, "--from", str(tmp_path), "--cables", "--csv")
    assert next(csv.DictReader(io.StringIO(text)))["DESCRIPTION"] == '\'=HYPERLINK("x")'


def test_the_answer_and_the_document_name_swapped_cables(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = printed(capsys, "--demo", SWAPPED)
    assert "\nCables\n  gpu05: mlx5_0 and mlx5_1 have swapped cables" in text
    _, text = printed(capsys, "--demo", SWAPPED, "--json")
    document = valid("fleet", text)
    (fault,) = document["cable_faults"]
    assert (fault["kind"], fault["nodes"], fault["nics"]) == ("swapped", ["gpu05"] * 2, ["mlx5_0", "mlx5_1"])
    assert [end["switch"] for end in fault["usual"]] == ["leaf0", "leaf1"]
    assert status == 1  # of the nodes: two GPUs of each are far from a NIC


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--cables", "--json"), ("--cables", "--rows"), ("--csv",)):
        assert main(["fleet", "check", "--demo", *words]) == 3


def test_cables_come_back_from_json_as_they_were() -> None:
    summary = judge_simulated("gpu01", "bare-roce+lldp-not-readable", 0)
    assert from_json(json.loads(json.dumps(to_json(summary)))) == summary
    heard = judge_simulated("gpu01", "bare-roce", 0)
    assert from_json(json.loads(json.dumps(to_json(heard)))) == heard
    assert heard.cables[0] == Cable(
        heard.cables[0].slot,
        "mlx5_bond_0 ens0f0np0",
        CableEnd(
            *("0c:42:a1:00:00:01", "leaf0a", "Ethernet1", "To-bare-roce-ens0f0np0", 9216),
            age="12 days, 04:10:33",
            ttl_seconds=120,
        ),
    )


def test_moments_of_one_node_and_nodes_of_several_types_are_not_compared() -> None:
    first, second = (judge_simulated(name, name, 0) for name in ("pcie-l40s", "pcie-l40s+cable-swapped"))
    assert compare((first, second), by_type=False).cable_faults == ()
    assert compare((first, judge_simulated("roce", "bare-roce", 0))).cable_faults == ()
