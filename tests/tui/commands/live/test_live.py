"""`gdrtop live` as an admin over SSH, a script and a monitoring system use it."""

import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import conclude
from probes.checks.live.jobs import AREA
from probes.checks.registry import findings_of, run_checks
from probes.facts.gpudirect import GdrPath
from probes.host.collectives import CollectiveSpeed
from probes.live.events.conditions import Conditions
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, OddOne, PathWord, Role, SlowestRank
from probes.recording.replay_host import ReplayHost
from probes.simulation.host import SimulatedHost
from probes.snapshot.verdict import State, Usability
from tests.support.documents import valid
from tests.support.live_samples import sample_of, with_path
from tests.support.pilot import SteppedClock
from tests.support.recordings import archive_of, moments_of, read
from tests.support.scripted_watch import Scripted
from tui.cli import main
from tui.commands.live.live import ChosenJob, LiveOptions, clock_text, event_lines, exit_status, write_live
from tui.runtime.json_values import time_json
from widgets.base.lines import plain


def printed(
    seconds: int = 1, as_json: bool = False, ascii_only: bool = False, changes: bool = False
) -> tuple[int, str]:
    """Exit status and output on a simulated node under a clock that steps."""
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    out = io.StringIO()
    host = SimulatedHost("hgx-h100", clock=clock)
    status = write_live(host, out, LiveOptions(as_json, ascii_only, seconds, changes), clock, wait)
    return status, out.getvalue()


RANKS = (with_path(0), with_path(1))


def judged(sample: LiveSample) -> LiveSample:
    """The sample with the verdict on a node whose path is usable."""
    usability = Usability(State.READY, GdrPath.DMABUF, "", ("gpu",), {"gpu": ("mlx5_0",)})
    watched, unread = Conditions().update(sample), Unknown(Reason.NOT_THERE, "/etc/os-release")
    node = SimpleNamespace(rdma=unread, pci=unread)
    examination: Any = SimpleNamespace(
        node=node, usability=usability, watched=watched, distribution=unread, component_history=unread
    )
    found = findings_of(run_checks(examination, AREA.checks), examination)
    return replace(sample, verdict=conclude(usability, found))


def test_a_job_is_one_line_with_ranks_path_rates_and_nics(scripted: Scripted) -> None:
    scripted(lambda _: sample_of(*RANKS))
    status, text = printed()
    heading, verdict, job = text.splitlines()
    assert status == 0
    assert verdict[10:].endswith("ACTIVE via peermem - 8 of 8 GPUs - 8 of 10 NICs")
    assert heading.startswith("gdrtop  hgx-h100")
    paths = "GDR (DMA-BUF) on all 2 ranks"
    assert job[10:] == f"train.py (alice): 2 ranks of 8, {paths}, ^370 v369 Gb/s, 2 NICs"


@pytest.mark.slow
def test_a_job_is_printed_again_only_when_it_changes(scripted: Scripted) -> None:
    rates = [370.0, 370.0, 365.0, 372.0, 180.0, 179.0]
    scripted(lambda second: sample_of(*RANKS, sent=rates[min(second, 5)]))
    _, text = printed(5)
    assert [line.partition("^")[2].split()[0] for line in text.splitlines()[2:]] == ["370", "180"]


@pytest.mark.slow
def test_a_staged_rank_and_a_slow_nic_are_findings_as_they_begin_and_end(scripted: Scripted) -> None:
    fine = sample_of(with_path(0), with_path(1), with_path(2))
    staged = sample_of(with_path(0), with_path(1), with_path(2, PathWord.STAGED))
    scripted(lambda second: staged if second >= 2 else fine)
    status, text = printed(3)
    assert status == 1
    words = " ".join(text.split())
    assert "GDR (DMA-BUF) on 2 of 3 ranks, staged on rank 2" in words
    assert "Rank 2 of train.py copies through host memory" in words
    odd = OddOne("mlx5_1", "mlx5_1 carries 148 Gb/s", device="mlx5_1", aspect="rate")
    slow = replace(fine, jobs=(replace(fine.jobs[0], odd=(odd,)),))
    scripted(lambda second: slow if 2 <= second < 5 else fine)
    status, text = printed(3)
    assert status == 1
    words = " ".join(text.split())
    assert "warning One NIC carries far less traffic than its job's other NICs (mlx5_1)" in words
    status, text = printed(8)
    assert status == 0
    assert "note ended: One NIC carries far less" in " ".join(text.split())


def test_events_come_with_severity_and_explanation(scripted: Scripted) -> None:
    scripted(lambda _: sample_of(*RANKS), lambda second: [Severity.CRITICAL] if second == 2 else [])
    _, text = printed(3)
    at = text.splitlines().index("          Check the cable.")
    assert text.splitlines()[at - 1][8:] == "  critical  mlx5_3 went down"


@pytest.mark.slow
def test_nothing_there_unknown_and_not_allowed_differ(scripted: Scripted) -> None:
    scripted(lambda _: sample_of())
    assert "no job uses RDMA or a GPU" in printed()[1]
    hidden = Unknown(Reason.NEEDS_ROOT, "RDMA netlink")
    scripted(lambda _: replace(sample_of(), processes=hidden, limits=("Run as root to see more",)))
    status, text = printed(3)
    assert status == 3
    assert text.count("jobs unknown (needs root)") == 1
    assert text.count("note: Run as root to see more") == 1


@pytest.mark.slow
def test_no_control_character_of_a_job_reaches_the_terminal_and_ascii_is_ascii(scripted: Scripted) -> None:
    taken = sample_of(*RANKS)
    evil = replace(taken.jobs[0], name="\x1b[2J\ntrain–ж.py")
    scripted(lambda _: replace(taken, jobs=(evil,)))
    assert "\x1b" not in printed()[1]
    assert printed(ascii_only=True)[1].isascii()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([PathWord.DMABUF, PathWord.PEERMEM], 0),
        ([PathWord.DMABUF, PathWord.NO_NIC], 0),
        ([PathWord.DMABUF, PathWord.STAGED], 1),
        ([PathWord.STAGED, PathWord.UNKNOWN], 1),
        ([PathWord.STAGED, PathWord.TCP], 2),
        ([PathWord.DMABUF, PathWord.UNKNOWN], 3),
        ([PathWord.NO_NIC], 3),
        ([PathWord.UNKNOWN], 3),
        ([], 3),
    ],
)
def test_the_exit_status_is_that_of_the_nccl_jobs(words: list[PathWord], status: int) -> None:
    sample = sample_of(*(with_path(rank, word) for rank, word in enumerate(words)))
    assert exit_status(judged(sample)) == status


def test_other_programs_do_not_count_in_the_exit_status() -> None:
    assert exit_status(judged(sample_of(with_path(0, PathWord.HOST_MEMORY, Role.STORAGE)))) == 3


@pytest.mark.slow
def test_json_is_one_document_a_line_that_its_schema_describes(scripted: Scripted) -> None:
    ranks = (*RANKS, with_path(2, PathWord.UNKNOWN))
    scripted(lambda _: sample_of(*ranks), lambda second: [Severity.NOTE])
    status, text = printed(3, as_json=True)
    lines = [valid("live", line) for line in text.splitlines()]
    assert len(lines) == 3
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert [round((time - times[0]).total_seconds()) for time in times] == [0, 1, 2]
    assert {line["exit_status"] for line in lines} == {status} == {3}
    last = lines[-1]["processes"][-1]
    assert (last["program"], last["user"], last["rank"], last["path_text"]) == (
        "train.py", "alice", 2, "unknown: needs root",
    )  # fmt: skip
    assert "NCCL_SECRET" not in text


@pytest.mark.slow
def test_with_changes_json_has_no_document_in_which_only_figures_changed(scripted: Scripted) -> None:
    words = [PathWord.DMABUF] * 4 + [PathWord.STAGED] * 9
    scripted(lambda second: sample_of(with_path(0), with_path(1, words[second])))
    _, whole = printed(6, as_json=True)
    _, text = printed(6, as_json=True, changes=True)
    assert len(whole.splitlines()) == 6
    first, then = (json.loads(line) for line in text.splitlines())
    assert first.keys() == then.keys()
    assert [sample["processes"][1]["path"]["word"] for sample in (first, then)] == ["GDR (DMA-BUF)", "staged"]
    assert main(["live", "--demo", "--changes"]) == 3


def test_json_has_the_bus_bandwidth_of_nccls_inspector(scripted: Scripted) -> None:
    speed = CollectiveSpeed("0x7f8c", "AllReduce", 41.2, sequence=7)
    taken = sample_of(replace(RANKS[0], bus_gbps=41.2, collectives=(speed,)), RANKS[1])
    slowest = SlowestRank(RANKS[0].pid, 41.2, 48.4, "AllReduce", 7, "0x7f8c")
    scripted(lambda _: replace(taken, jobs=(replace(taken.jobs[0], slowest=slowest),)))
    document = valid("live", printed(as_json=True)[1])
    first, second = document["processes"]
    assert (first["bus_gbps"], first["collectives"][0]["sequence"]) == (41.2, 7)
    assert (second["bus_gbps"], second["collectives"]) == (None, [])
    assert second["unknown"]["bus_gbps"] == "not recorded: the job does not load NCCL's inspector"
    assert document["jobs"][0]["slowest"]["pid"] == RANKS[0].pid


def test_json_says_why_processes_are_unknown(scripted: Scripted) -> None:
    scripted(lambda _: replace(sample_of(), processes=Unknown(Reason.NEEDS_ROOT)))
    document = valid("live", printed(as_json=True)[1])
    assert document["processes"] is None
    assert document["unknown"]["processes"] == "needs root"


def test_a_real_sample_of_each_simulated_kind_fits_the_schema() -> None:
    for line in printed(2, as_json=True)[1].splitlines():
        valid("live", line)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "lines"), [(1, 1), (4, 3)])
def test_a_recording_plays_without_waiting(count: int, lines: int) -> None:
    clock = SteppedClock()
    moments = moments_of(SimulatedHost("hgx-h100", clock=clock), clock, count)
    out = io.StringIO()

    def wait(_: float) -> None:
        raise AssertionError("it waited")

    write_live(ReplayHost(read(archive_of(moments))), out, LiveOptions(json=True), clock, wait)
    times = [json.loads(line)["time"] for line in out.getvalue().splitlines()]
    assert times == [time_json(moment.at) for moment in moments][-lines:]


def test_one_job_of_two_is_printed_with_its_own_devices_only() -> None:
    out = io.StringIO()
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    host = SimulatedHost("hgx-h100+two-jobs-two-users", clock=clock)
    write_live(host, out, LiveOptions(json=True, seconds=3, job="4712"), clock, wait)
    shown = json.loads(out.getvalue().splitlines()[-1])
    (job,) = shown["jobs"]
    assert job["id"].endswith("4712")
    assert {process["pid"] for process in shown["processes"]} == set(job["pids"])
    assert {gpu["bdf"] for gpu in shown["gpus"]} == set(job["gpus"])
    assert {port["device"] for port in shown["ports"]} == set(job["nics"])


def test_a_job_that_is_not_there_is_said_and_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--demo", "--seconds", "1", "--job", "9999"]) == 3
    assert "no job 9999 is on this node" in capsys.readouterr().out


def test_lines_are_in_order_of_time_and_a_late_event_says_when_it_was() -> None:
    def event(at: float) -> LiveEvent:
        return LiveEvent(at, EventKind.PORT_STATE, Severity.WARNING, "mlx5_3", f"event of {at:.0f}")

    lines = [plain(line) for line in event_lines([event(99.5), event(40.0)], 100, 100.0)]
    assert [line[:8] for line in lines] == [clock_text(100.0)] * 2
    assert lines[0].endswith(f"event of 40 (at {clock_text(40.0)})")
    assert lines[1].endswith("event of 100")


def test_a_tree_of_files_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--root", str(tmp_path)]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "gdrtop live needs a running node; --root is only a tree of files\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "1.5", "9999999", "x"])
def test_wrong_seconds_are_one_line(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--demo", "--seconds", seconds]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_ctrl_c_is_status_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tui.runtime.node_monitor.NodeMonitor.read", interrupt)
    assert main(["live", "--demo"]) == 130
    assert capsys.readouterr().err == ""


def test_a_pipe_that_closes_ends_it_quietly(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    scripted(lambda _: sample_of(*RANKS))
    clock = SteppedClock()
    with pytest.raises(BrokenPipeError):  # gdrtop's main ends without a message, as for head(1)
        write_live(
            SimulatedHost("hgx-h100", clock=clock), Closed(), LiveOptions(json=True), clock, lambda _: None
        )
    assert capsys.readouterr().err == ""


# Rows and traces


@pytest.mark.slow
def test_samples_come_as_often_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--demo", "hgx-h100", "live", "--json", "--seconds", "1", "--interval", "0.25"])
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["--demo", "live", "--interval", "0.01"]) == 3


def test_an_event_of_another_job_is_not_of_the_chosen_one_even_after_that_job_ended() -> None:
    chosen = ChosenJob("train.py")
    here = sample_of(*RANKS)
    other = replace(here.jobs[0], id="9", name="finetune.py (bob)", pids=(77,), nics=("mlx5_9",), gpus=())
    chosen.of(replace(here, jobs=(*here.jobs, other)))
    gone = LiveEvent(1.0, EventKind.PROCESS_ENDED, Severity.NOTE, "pid 77", "pid 77 ended")
    whole = LiveEvent(1.0, EventKind.MODULE_UNLOADED, Severity.NOTE, "nvidia_peermem", "unloaded")
    assert chosen.of(replace(here, events=(gone, whole))).events == (whole,)
