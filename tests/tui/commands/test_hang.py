"""`gdrtop hang`: the page of a job that hangs on simulated nodes, as text, JSON and from a recording."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from probes.facts.node import host_name
from probes.live.hang.diagnosis import Diagnosis
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from tests.support.documents import valid
from tests.support.flight_recorder_dumps import dump_value, entry, pickled
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tui.cli import main
from tui.commands.hang import HangOptions, HangSearch, hang_document
from widgets.base.lines import plain
from widgets.nccl.hang import draw_hang


def search(
    name: str, wait: float = 0.0, why_no_ras: str = "", **options: Any
) -> tuple[HangSearch, tuple[Diagnosis, ...]]:
    """Run the search on a simulated node, `wait` seconds after it was opened."""
    clock = SteppedClock()
    host = SimulatedHost(name, clock=clock)
    host.monotonic()
    clock.now += wait

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    asked = HangOptions(**options)
    found = HangSearch(host, asked, why_no_ras, clock, pass_time, io.StringIO(), io.StringIO())
    return found, found.run()


def page(diagnosis: Diagnosis, width: int = 100) -> str:
    return "\n".join(map(plain, draw_hang(diagnosis, width)))


def test_a_hung_job_has_its_suspect_by_ras_and_by_the_flight_recorder() -> None:
    searched, (found,) = search("hgx-h100+job-hung", yes=True)
    assert (found.exit_status, found.suspects, found.is_sure) == (2, ("rank 2",), True)
    assert [clue.source for clue in found.clues] == ["RAS", "flight recorder", "ranks"]
    assert found.next_steps == ("py-spy dump --pid 41002",)
    text = page(found)
    assert "no NIC of this job has moved data for" in text
    assert "Suspect: rank 2 (pid 41002, 0000:3a:00.0, mlx5_2)" in text
    node = searched.monitor.node
    assert node is not None
    document = valid(
        "hang", json.dumps(hang_document(host_name(node), node.origin, searched.taken_at, (found,), 2))
    )
    assert document["jobs"][0]["suspects"] == ["rank 2"]
    assert document["jobs"][0]["flight_recorder"]["groups"][0]["absent"] == [2]


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_fits_its_width(width: int) -> None:
    _, (found,) = search("hgx-h100+job-hung", why_no_ras="disabled by --no-ras")
    assert max(map(len, page(found, width).splitlines())) <= width
    assert "RAS: disabled by --no-ras" in page(found, width)


def test_nothing_is_asked_without_consent() -> None:
    _, (found,) = search("hgx-h100+job-hung")
    assert "RAS: not queried: not confirmed; use --yes to skip the prompt" in page(found)
    assert found.suspects == ("rank 2",)  # by the dumps alone


@pytest.mark.parametrize(("wait", "seconds"), [(40, 20), (20, 20)])
def test_a_stopped_rank_is_the_suspect_with_the_command_that_resumes_it(wait: int, seconds: int) -> None:
    """Also seconds after it was stopped, while the traffic before counts."""
    _, (found,) = search("hgx-h100+rank-stopped", wait=wait, seconds=seconds, why_no_ras="no")
    assert (found.exit_status, found.suspects, found.is_sure) == (2, ("rank 3",), True)
    assert found.next_steps[0] == "kill -CONT 41003"
    assert "does not hang" not in page(found)
    assert "Peak Gb/s" in page(found)


def test_a_lost_gpu_whose_rank_has_exited_is_the_suspect() -> None:
    _, (found,) = search("hgx-h100+gpu-off-bus-live", wait=40, why_no_ras="no")
    assert (found.suspects, found.is_sure) == (("0000:9b:00.0",), True)
    assert found.clues[0].text == "rank 5 has no process on this node"
    assert "gdrtop check xid-79-fell-off-bus" in found.next_steps


def test_a_healthy_job_moves_data() -> None:
    _, (found,) = search("hgx-h100", yes=True)
    assert (found.exit_status, found.suspects, found.clues) == (0, (), ())


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "count"), [("4711", 1), ("train.py", 1), ("41003", 1), ("9999", 0)])
def test_a_job_is_chosen_by_its_number_name_or_pid(wanted: str, count: int) -> None:
    assert len(search("hgx-h100+job-hung", job=wanted, seconds=11, why_no_ras="no")[1]) == count


def test_a_recording_shows_the_silence_and_what_was_not_recorded() -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost("hgx-h100+job-hung", clock=clock), clock, 12)
    (found,) = HangSearch(ReplayHost(read(archive_of(moments))), HangOptions()).run()
    text = page(found)
    assert "no NIC of this job has moved data for" in text
    assert "flight recorder: no dump" in text
    assert "not recorded" in text


def test_dumps_are_compared_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for rank in range(4):
        called = 9 if rank == 1 else 10
        entries = [
            entry(number, state="completed" if number < 10 else "scheduled")
            for number in range(5, called + 1)
        ]
        path = tmp_path / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickled(dump_value(entries, {"0": range(4)})))
        names.append(str(path))
    assert main(["hang", "--dumps", *names]) == 2
    shown = capsys.readouterr().out
    assert "Suspect: rank 1" in shown
    assert "rank 1 has not called nccl:all_reduce 10 in group 0 (default_pg), and ranks 0, 2-3 wait" in shown
    assert main(["hang", "--json", "--dumps", *names]) == 2
    assert valid("hang", capsys.readouterr().out)["flight_recorder"]["culprits"] == [1]


def test_a_file_that_is_no_dump_says_why_and_the_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "rank_0", tmp_path / "rank_1"
    good.write_bytes(pickled(dump_value([entry(5, state="completed")], {"0": [0]})))
    bad.write_bytes(b"cos\nsystem\n.")
    assert main(["hang", "--dumps", str(good), str(bad), str(tmp_path / "rank_2")]) == 0
    captured = capsys.readouterr()
    assert (
        "rank_1 cannot be used: malformed: the pickle has an opcode that gdrtop does not allow"
        in captured.err
    )
    assert "rank_2 cannot be read: No such file" in captured.err
    assert "No rank waits" in captured.out
    assert main(["hang", "--dumps", str(bad)]) == 3
    assert main(["hang", "--dumps", str(tmp_path / "norank")]) == 3
    assert "does not end with a rank" in capsys.readouterr().err


@pytest.mark.slow
def test_no_such_job_is_status_3(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--demo", "hgx-h100", "--no-ras", "--seconds", "11")
    assert main(["hang", "nosuchjob", *options]) == 3
    assert "no NCCL job is 'nosuchjob'" in capsys.readouterr().out
