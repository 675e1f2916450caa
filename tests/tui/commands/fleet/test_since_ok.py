"""`gdrtop diff --since-ok`, and what check and watch save for it."""

import io
import json
from pathlib import Path

import pytest

from probes.base.origin import Origin, Source
from tests.support.documents import valid
from tests.support.last_ok_node import BAD, GOOD, checked, this_node, worked
from tests.support.watched_node import Watched
from tui.cli import main
from tui.command_line.options import OutputOptions, TableOptions
from tui.commands.fleet.diff import write_since_ok
from tui.commands.report import text_of
from tui.commands.watch.watch import Output, Watcher
from tui.controllers.report_reader import read_report
from tui.runtime.open_host import NoSuchHost

CHANGED = (
    "  Since it last worked, 3 h ago: NVIDIA driver 570.211.01 (open kernel modules) > none, module nvidia "
)


@pytest.mark.slow
def test_check_shows_below_the_verdict_what_has_changed_since_the_node_worked(saved: Path) -> None:
    assert "Since it last worked" not in checked(BAD)
    assert "Since it last worked" not in checked(GOOD)
    worked(saved)
    lines = checked(BAD).splitlines()
    assert lines[1].endswith("BROKEN - 0 of 8 GPUs - 1 critical")
    assert lines[3] == f"{CHANGED}and 3 more loaded > not loaded"


@pytest.mark.slow
def test_check_json_has_the_changes_by_their_facts(saved: Path) -> None:
    assert valid("check", checked(GOOD, json=True))["since_ok"] is None
    worked(saved)
    since = valid("check", checked(BAD, json=True))["since_ok"]
    assert since["time"] == "2023-11-14T19:13:20.000+00:00"
    assert since["state"] == "ACTIVE"
    assert since["changes"][0] == {
        "fact": "driver",
        "label": "NVIDIA driver",
        "slots": [],
        "before": "570.211.01 (open kernel modules)",
        "now": "none",
    }


@pytest.mark.slow
def test_the_report_has_the_same_changes_and_a_redacted_one_says_that_they_are_left_out(saved: Path) -> None:
    worked(saved)
    before = sorted(saved.iterdir())
    plain, redacted = (
        valid("report", text_of(read_report(this_node(BAD), redact, lambda _: None), "json"))["check"]
        for redact in (False, True)
    )
    assert plain["since_ok"] == valid("check", checked(BAD, json=True))["since_ok"]
    assert redacted["since_ok"] is None
    assert "left out of a redacted report" in redacted["unknown"]["since_ok"]
    assert sorted(saved.iterdir()) == before


@pytest.mark.slow
def test_saved_facts_that_are_damaged_are_named_once_and_are_no_error(saved: Path) -> None:
    file = worked(saved)
    file.write_text("{")
    assert checked(BAD).count(f"{file} cannot be read: it is damaged; remove it") == 1
    document = valid("check", checked(BAD, json=True))
    assert document["since_ok"] is None
    assert document["unknown"]["since_ok"].startswith("malformed: ")


def test_read_only_saves_nothing(saved: Path) -> None:
    checked(GOOD, read_only=True)
    assert not saved.exists()


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True])
def test_watch_saves_a_node_that_works(read_only: bool, saved: Path, tmp_path: Path) -> None:
    watched = Watched(tmp_path / "ring", name=GOOD)
    watched.host.origin = Origin(Source.LIVE)
    output = Output(watched.out, OutputOptions())
    watched.watcher = Watcher(watched.host, watched.directory, watched.limits, output, read_only)
    watched.seconds(1)
    watched.end()
    assert saved.exists() is not read_only


@pytest.mark.slow
def test_diff_begins_with_the_answer(saved: Path) -> None:
    worked(saved)
    out = io.StringIO()
    assert write_since_ok(this_node(BAD), out, TableOptions(ascii=True)) == 1
    lines = out.getvalue().splitlines()
    assert lines[0] == "2 changes since hgx-h100 last worked, 3 h ago"
    assert "BROKEN" in lines[2]
    out = io.StringIO()
    assert write_since_ok(this_node(GOOD), out, TableOptions()) == 0
    assert out.getvalue().startswith("No change in the facts that gdrtop compares since hgx-h100")


@pytest.mark.slow
def test_diff_prints_json_that_it_can_read_again(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worked(saved)
    out = io.StringIO()
    assert write_since_ok(this_node(BAD), out, TableOptions(json=True)) == 1
    document = valid("fleet", out.getvalue())
    assert [node["name"] for node in document["nodes"]] == ["last ok", "hgx-h100"]
    assert [difference["fact"] for difference in document["differences"]] == ["driver", "module"]
    (tmp_path / "saved.json").write_text(json.dumps(document))
    assert main(["diff", str(tmp_path / "saved.json"), str(next(saved.iterdir()))]) == 1
    assert "3 nodes: 2 ACTIVE, 1 BROKEN" in capsys.readouterr().out


def test_a_node_that_never_worked_and_wrong_arguments_are_sentences(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NoSuchHost, match="has not been READY or ACTIVE since gdrtop first checked"):
        write_since_ok(this_node(BAD), io.StringIO(), TableOptions())
    assert main(["diff", "--since-ok", "--demo", "gb200"]) == 3
    assert "--since-ok needs this node" in capsys.readouterr().err
    assert main(["diff", "--since-ok", "a.tar.gz", "."]) == 3
    assert "use it without A and B" in capsys.readouterr().err
