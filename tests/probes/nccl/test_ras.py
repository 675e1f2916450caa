"""The text report of RAS, in the forms of all its versions, and any other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.nccl.ras import RasProcess, parse_diagnostics, parse_event, parse_report
from tests.support.machines import machine_file, machine_files
from tests.support.ras_reports import HASH, a_report, rank_line

UNEVEN_NODES = """\
Job summary
===========

  Nodes  Processes         GPUs
          per node  per process
      3          8            1
      1          7            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      4         31           31

The outlier node:
  Node 10.0.0.7 running processes 4711,4712
"""
UNEVEN_GPUS = """\
Job summary
===========

  Nodes  Processes
          per node
      3          8
      1          7

         Processes         GPUs
                    per process
                30            1
                 1            2

  Nodes  Processes         GPUs
(total)    (total)      (total)
      4         31           32
"""


@pytest.mark.parametrize(
    "path", machine_files("live/ras", "*status*.txt") + machine_files("live/ras", "verbose*.txt")
)
def test_every_line_of_a_real_report_is_understood(path: object) -> None:
    report = parse_report(machine_file(f"live/ras/{path.name}").read_text())  # type: ignore[attr-defined]
    assert report.other == ()
    assert report.is_complete
    assert (report.nccl, report.cuda, report.nodes, report.processes, report.gpus) == (
        "2.29.7",
        "12.9",
        1,
        4,
        4,
    )
    assert [(group.communicators, group.status) for group in report.groups] == [(2, "RUNNING")]
    assert [communicator.hash for communicator in report.communicators] == [
        "9ffb2f11a2c40000",
        "9ffb2f11a2c41111",
    ]


def test_a_dead_and_a_missing_process_of_a_real_report() -> None:
    report = parse_report(machine_file("live/ras/status-after-kill9.txt").read_text())
    assert report.dead == (RasProcess(4606, "127.0.0.1", (3,), (3,)),)
    assert report.missing == (RasProcess(4604, "127.0.0.1", (1,), (1,)),)
    first = report.communicators[0]
    assert [rank.rank for rank in first.missing] == [1, 3]
    assert [(counts.operation, counts.counts) for counts in first.counts] == [
        ("AllGather", (3367, 3271)),
        ("AllReduce", (6734, 6543)),
    ]


def test_the_forms_of_the_first_versions() -> None:
    report = parse_report(machine_file("live/ras-doc/block-05.txt").read_text())
    assert (report.missing_count, report.timeouts, report.groups[0].ranks_per_node) == (1, 2, "7-8")
    assert [rank.rank for rank in report.communicators[0].missing] == [21]
    counts = parse_report("Warnings\n" + machine_file("live/ras-doc/block-03.txt").read_text())
    (all_types,) = counts.communicators[0].counts
    assert all_types.operation == "collective"
    assert [(problem.value, problem.count, len(problem.ranks)) for problem in all_types.sets] == [
        ("6650", 26, 0),
        ("6649", 6, 6),
    ]


@pytest.mark.parametrize(("text", "gpus"), [(UNEVEN_NODES, 31), (UNEVEN_GPUS, 32)])
def test_the_job_summary_of_uneven_jobs(text: str, gpus: int) -> None:
    report = parse_report(text)
    assert (report.nodes, report.processes, report.gpus) == (4, 31, gpus)
    assert len(report.other) <= 2


def test_statuses_errors_and_ranks_without_operations() -> None:
    errors = [
        f"#0-0 ({HASH}) ERROR",
        "  Asynchronous error on 1 rank",
        rank_line(3, "reported Remote process error "),
        "",
    ]
    text = a_report({"Broadcast": {0: 4, 1: 0, 2: 4}}, errors)
    (listed,) = parse_report(text).communicators
    assert [(part.value, part.ranks[0].rank) for part in listed.errors] == [("Remote process error", 3)]
    assert listed.counts[0].counts == (4, 0)
    text += (
        "  Communicator ranks have different status\n  6 ranks have status RUNNING\n"
        "  Rank 7 has status NOCOMM -- [process information not found]\n"
    )
    (listed,) = parse_report(text).communicators
    assert [(part.value, part.count) for part in listed.statuses] == [("RUNNING", 6), ("NOCOMM", 1)]
    assert isinstance(listed.statuses[1].ranks[0].process, Unknown)


def test_the_number_of_nvml_is_that_of_the_node() -> None:
    line = "  Process 9 on node fe80::1 managing GPUs 0,1 (NVML 4,5)"
    report = parse_report(f"Errors\nDEAD\n  1 job process is considered dead (unreachable)\n{line}\n")
    assert report.dead == (RasProcess(9, "fe80::1", (0, 1), (4, 5)),)


def test_unknown_lines_are_kept() -> None:
    report = parse_report(a_report() + "A new kind of line \x1b[31m\n")
    assert len(report.other) == 1
    assert report.other[0].startswith("A new kind of line")
    assert report.other[0].isprintable()


@pytest.mark.parametrize("cut", range(0, 1200, 37))
def test_a_report_that_was_cut_is_not_complete(cut: int) -> None:
    text = a_report({"AllReduce": {0: 3, 1: 2, 2: 3, 3: 3}})
    assert parse_report(text).is_complete
    assert not parse_report(text[: min(cut, len(text) - 1)]).is_complete


PIECES = st.sampled_from(
    [
        *a_report({"AllReduce": {0: 3, 1: 2}}, ["DEAD", "INCOMPLETE", rank_line(1)]).split("\n"),
        "  Process 1 on node a managing GPUs ,,1",
        "  999999999 ranks have launched up to operation 1",
        "9 9 9",
    ]
)


@pytest.mark.slow
@given(st.lists(st.one_of(PIECES, st.text(max_size=60)), max_size=60).map("\n".join))
def test_any_text_is_a_report(text: str) -> None:
    report = parse_report(text)
    assert all(line.isprintable() for line in report.other)
    assert all(process.node.isprintable() for process in report.named)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_report(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    parse_report(text)
    parse_event(text)


def test_events_of_a_real_job() -> None:
    lines = machine_file("live/ras/monitor-all.txt").read_text().splitlines()
    events = [event for line in lines if (event := parse_event(line)) is not None]
    assert len(events) == len(lines) - 1  # the first one is OK
    assert events[-1].kind == "PEER_DEAD"
    assert events[-1].process == RasProcess(4606, "127.0.0.1", (3,), (3,))
    assert "considered dead" in events[-1].meaning


def test_an_event_of_an_unknown_kind_has_its_own_words() -> None:
    event = parse_event("[2026-11-22 01:20:57] PEER_SOMETHING: went away")
    assert event is not None
    assert event.meaning == "went away"
    assert isinstance(event.process, Unknown)


# Lines as NVIDIA's NCCL user guide shows them.
_DIAGNOSTICS = """\
node01:15 NCCL DIAG === NCCL Diagnostics ===
node01:15 NCCL DIAG [OK]   p2p: all 56 directed GPU P2P edges verified
NCCL DIAG [INFO] transport detect returned 3
node01:15 NCCL DIAG NCCL diagnostics completed in 40.0 ms across 8 ranks
"""


def test_diagnostics_are_read_line_by_line() -> None:
    found = parse_diagnostics(_DIAGNOSTICS)
    assert [(line.is_ok, line.process) for line in found.lines] == [(True, "node01:15"), (False, "")]
    assert found.lines[0].text == "p2p: all 56 directed GPU P2P edges verified"
    assert [report.text for report in found.to_review] == ["transport detect returned 3"]
    assert found.other == ("=== NCCL Diagnostics ===", "NCCL diagnostics completed in 40.0 ms across 8 ranks")


@given(st.text())
def test_any_diagnostics_can_be_read(what: str) -> None:
    found = parse_diagnostics(f"{what}\nh:1 NCCL DIAG [OK] {what}")
    shown = [*(line.text for line in found.lines), *found.other]
    assert all(line.isprintable() for line in shown)
