import argparse
import io
import json
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.fleet.summary import to_json
from tests.support.fleet_nodes import node
from tui.commands.fleet.saved_nodes import SavedNodes, judge_saved, judging_processes, read_lines
from tui.runtime.open_host import NoSuchHost

OPTIONS = argparse.Namespace(seed=0, host="")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with judging_processes() as processes:
        yield processes


def test_all_nodes_of_a_directory_are_judged_and_damaged_files_are_named(
    tmp_path: Path, executor: Executor
) -> None:
    for name in ("gpu001", "gpu002"):
        (tmp_path / f"{name}.json").write_text(json.dumps(to_json(node(name))))
    (tmp_path / "gpu003.tar.gz").write_bytes(b"\x1f\x8bdamaged")
    (tmp_path / "gpu004.json").write_text(
        json.dumps({"nodes": [], "unanswered": [{"node": "gpu009", "reason": "timed out"}]})
    )
    (tmp_path / "notes.txt").write_text("not a node")
    steps: list[tuple[int, int]] = []
    saved = judge_saved(str(tmp_path), OPTIONS, executor, lambda *step: steps.append(step))
    assert [summary.name for summary in saved.summaries] == ["gpu001", "gpu002"]
    assert {row.node for row in saved.unanswered} == {"gpu003", "gpu004"}
    assert steps[-1] == (4, 4)


def test_nodes_with_the_same_host_name_are_called_by_their_files(tmp_path: Path, executor: Executor) -> None:
    for name in ("gpu001", "gpu002"):
        (tmp_path / f"{name}.json").write_text(json.dumps(to_json(node("localhost"))))
    saved = judge_saved(str(tmp_path), OPTIONS, executor)
    assert [summary.name for summary in saved.summaries] == ["gpu001", "gpu002"]


def test_a_directory_without_nodes_is_refused(tmp_path: Path, executor: Executor) -> None:
    with pytest.raises(NoSuchHost, match="has no recording"):
        judge_saved(str(tmp_path), OPTIONS, executor)
    with pytest.raises(NoSuchHost, match="cannot be read: No such file"):
        judge_saved(str(tmp_path / "absent"), OPTIONS, executor)


def lines(*said: str) -> SavedNodes:
    return read_lines(io.BytesIO("".join(f"{each}\n" for each in said).encode()))


def test_lines_of_nodes_have_the_names_by_which_they_were_asked() -> None:
    saved = lines(
        f"gpu001: {json.dumps(to_json(node('localhost')))}",
        "gpu002: bash: gdrtop: command not found",
        f"gpu003: {json.dumps({'source': 'simulated', 'nodes': [to_json(node('localhost'))]})}",
        "---------------",
    )
    assert [summary.name for summary in saved.summaries] == ["gpu001", "gpu003"]
    assert [(row.node, row.reason) for row in saved.unanswered] == [
        ("gpu002", "bash: gdrtop: command not found")
    ]
    assert saved.is_simulated


def test_an_input_without_nodes_is_refused() -> None:
    with pytest.raises(NoSuchHost, match="has no node"):
        lines("gpu001: no such file", "{}", "[]")


@given(st.binary(max_size=400))
def test_no_input_crashes_the_reader_of_lines(text: bytes) -> None:
    with suppress(NoSuchHost):
        read_lines(io.BytesIO(text))
