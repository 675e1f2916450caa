"""Any bytes: no crash, bounded memory, the same result for all pieces."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.nccl.log.channels import MOST_RANKS
from probes.nccl.log.collect import Collector
from probes.nccl.log.facts import Channels, State
from probes.nccl.log.messages import MOST_ALIKE, MOST_ROWS
from probes.nccl.log.reader import LogReader
from probes.nccl.log.verdict import verdict_of
from tests.support.nccl_logs import HEADER, WARNING, channel, info, read
from tests.support.nccl_versions import TAGS, completion, log_of
from widgets.base.lines import plain
from widgets.nccl.log import draw

PARTS = [
    *log_of("2.26.2").splitlines(keepends=True),
    *log_of("2.29.7").splitlines(keepends=True),
    *(f"{WARNING}{completion(tag)}\n" for tag in TAGS[::6]),
    HEADER,
    "node1:100 NCCL DIAG [INFO] net bw: same-nic rank 5 (node1): 1.0 Gbit/s, >30% off median 9.0 Gbit/s\n",
    "NCCL DIAG [INFO] p2p: write mismatch srcRank=2 dstRank=3 path=PIX expected=0x1 got=0x0\n",
    channel(gdr=False),
    f'{{"log":"{HEADER}{channel()}\\n","stream":"stdout","time":"2026-05-05T06:16:47Z"}}\n',
    '{"log":"NCCL \\u000a\\ud800',
    " [repeated 7x across cluster]",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\r\n",
    "\n",
    "[1,0]<stdout>:",
    "[rank1]:[E ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=6) ran\n",
    "x" * 70_000,
]
CHANNELS = [
    f"{before}{HEADER}{channel(direction, gdr)}{end}\n"
    for before in ("", "2026-05-05T06:16:47Z ", "m", "x" * 600 + " ", f"{HEADER}Using network IB ")
    for direction, gdr, end in (("send", True, ""), ("receive", False, ""), ("send", True, " node1"))
]
pieces = st.one_of(st.sampled_from(PARTS).map(str.encode), st.binary(max_size=60))
logs = st.lists(pieces, max_size=25).map(b"".join)


@pytest.mark.slow
@settings(max_examples=150)
@given(logs, st.integers(40, 200))
def test_any_bytes_are_read_and_drawn_without_escapes(log: bytes, width: int) -> None:
    facts = read(log)
    for shown in map(plain, draw(facts, verdict_of(facts), width)):
        assert shown.isprintable()


@pytest.mark.slow
@settings(max_examples=100)
@given(logs, st.lists(st.integers(0, 1 << 18), max_size=30))
def test_the_borders_of_pieces_change_nothing(log: bytes, borders: list[int]) -> None:
    reader = LogReader()
    reader.begin("log")
    ends = sorted({border % (len(log) + 1) for border in borders} | {len(log)})
    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(log[start:end])
    reader.end()
    assert reader.facts() == read(log)


@settings(max_examples=60)
@given(logs, st.sampled_from([1, 7, 64, 1000, 65_536, 65_537]))
def test_pieces_of_one_size_change_nothing(log: bytes, piece: int) -> None:
    if len(log) // piece < 5000:
        assert read(log, piece=piece) == read(log)


@pytest.mark.slow
def test_tables_end_and_totals_do_not() -> None:
    ranks = MOST_RANKS + 50
    lines = [f"n{n}:{n + 1}:1 [0] NCCL INFO {channel(peers=f'{n}[0] -> 9[0]')}\n" for n in range(ranks)]
    lines += [f"{HEADER}NCCL_VARIABLE_{n} set by environment to 1.\n" for n in range(MOST_ROWS + 9)]
    lines += [f"{WARNING}problem {'abcdefghij'[n % 10] * (n // 10 + 1)}\n" for n in range(600)]
    facts = read("".join(lines))
    assert facts.send == Channels(gdr=ranks)
    assert len(facts.ranks) == MOST_RANKS
    assert facts.more_ranks
    assert len(facts.settings) == len(facts.problems) == MOST_ROWS
    assert facts.left_out > 9
    answer = verdict_of(facts)
    assert answer.state is State.ALL
    assert answer.text == f"{ranks} of {ranks} channels"
    assert len(draw(facts, answer, 100)) < 400


def test_a_flood_of_one_warning_hides_no_other() -> None:
    flood = f"{WARNING}{completion('2.26.2')}\n" * (MOST_ALIKE + 500)
    facts = read(flood + f"{WARNING}Call to ibv_modify_qp failed with error Timeout\n")
    assert [problem.kind for problem in facts.problems] == ["completion-12", "connect-queue"]
    assert [problem.seen.count for problem in facts.problems] == [MOST_ALIKE + 500, 1]
    assert facts.problems[0].seen.last.line == MOST_ALIKE + 500
    assert facts.left_out == 0


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.sampled_from(CHANNELS), max_size=40), st.sampled_from([None, frozenset(("node1",))]))
def test_channels_count_alike_whether_read_or_counted(lines: list[str], hosts: frozenset[str] | None) -> None:
    """Lines that differ are read, and equal ones are only counted: the totals are the same."""
    readings = []
    for number in (False, True):
        collector = Collector(None if hosts is None else {100: hosts})
        reader = LogReader(collector)
        reader.begin("log")
        for place, line in enumerate(lines):
            reader.feed(line.replace("/IB/", f"/IB{place * number}/").encode())
        reader.end()
        facts = reader.facts()
        ranks = tuple(replace(rank, devices=()) for rank in facts.ranks)
        readings.append((replace(facts, files=(), ranks=ranks, left_out=0), collector.other_lines))
    assert readings[0] == readings[1]


def test_long_values_are_cut() -> None:
    facts = read(info("NCCL_IB_HCA set to " + "m" * 100_000, "Using network " + "n" * 100_000))
    assert not facts.settings  # the end is missing
    assert all(len(network.text) <= 400 for network in facts.networks)


def test_markup_and_escapes_stay_text() -> None:
    facts = read(f"{WARNING}[bold red]x[/] \x1b[2J\x9b2J \x1b]8;;http://x\x07 \u202e\n")
    text = "\n".join(plain(shown) for shown in draw(facts, verdict_of(facts), 100))
    assert "[bold red]x[/]" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
