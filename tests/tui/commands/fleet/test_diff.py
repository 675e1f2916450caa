import json
from pathlib import Path

import pytest

from tests.support.command_line import printed
from tests.support.documents import valid
from tui.cli import main


def test_two_simulated_nodes_differ_in_what_the_fault_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "demo:hgx-h100", "demo:hgx-h100+port-down"]) == 1
    shown = capsys.readouterr().out
    assert "\n2 nodes: 1 ACTIVE, 1 DEGRADED\n" in shown
    assert "Port state of mlx5_1  ACTIVE: hgx-h100 · DOWN: hgx-h100+port-down" in shown


def test_the_same_node_does_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--demo", "gb200", ".", "demo:gb200"]) == 0
    assert "The nodes do not differ" in capsys.readouterr().out


def test_json_has_its_schema_and_can_be_compared_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--json", "demo:gb200", "demo:cloud-vm"]) == 1
    written = capsys.readouterr().out
    document = valid("fleet", written)
    assert document["exit_status"] == 1
    assert [node["name"] for node in document["nodes"]] == ["gb200", "cloud-vm"]
    (tmp_path / "saved.json").write_text(written)
    assert main(["diff", str(tmp_path / "saved.json"), "demo:gb200"]) == 1
    assert "gb200 in saved" in capsys.readouterr().out


@pytest.mark.slow
def test_a_recording_is_compared_at_its_last_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "before.tar.gz")
    assert main(["record", "--demo", "cloud-vm", "--seconds", "1", file]) == 0
    assert main(["diff", file, "demo:cloud-vm", "--json"]) == 0
    document = valid("fleet", capsys.readouterr().out)
    assert [node["name"] for node in document["nodes"]] == ["before", "cloud-vm"]
    assert document["source"] == "recorded"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[]", "has no node"),
        (b'{"nodes": [1, {}, null], "unanswered": 7}', "has no node"),
    ],
)
def test_a_file_without_nodes_is_refused_with_a_sentence(
    content: bytes, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert main(["diff", str(tmp_path / "x.json"), "demo:gb200"]) == 3
    assert problem in capsys.readouterr().err


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "demo:gb200"]) == 3
    assert "compares at least two nodes" in capsys.readouterr().err
    assert main(["diff", "nothing here", "demo:gb200"]) == 3
    assert "is neither a file nor the name of a node" in capsys.readouterr().err
    (tmp_path / "x.tar.gz").write_bytes(b"no recording")
    assert main(["diff", str(tmp_path / "x.tar.gz"), "demo:gb200"]) == 3
    assert "cannot replay" in capsys.readouterr().err


def test_ascii_output_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", "--ascii", "demo:gb200", "demo:cloud-vm"])
    assert capsys.readouterr().out.isascii()


def test_the_manual_explains_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gdrtop diff" in printed(capsys, "help", "fleet")
    assert json.loads(printed(capsys, "schema", "fleet"))["title"] == "gdrtop diff --json"
