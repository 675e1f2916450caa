"""Launchers, terminals and cuts: what is read is the same, and what is cut is unknown."""

import pytest

from probes.nccl.log.facts import Channels, State
from probes.nccl.log.prefix import MAX_LINE_BYTES
from tests.probes.nccl.log.logs import HEADER, channel, info, read, verdict

PREFIXES = (
    "",
    "[1,0]<stdout>:",
    "[1,0]<stderr>:",
    "0: ",
    "[default0]:",
    "[rank0]:",
    "[pod/nccl-worker-0/main] ",
    "worker-1  | ",
    "2026-05-05T06:16:47.123456789Z ",
    "[2026-05-05 06:16:47] ",
    "\x1b[32m",
    "100%|####| 5/5\r",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b[0m\n"])
def test_a_line_is_read_whatever_stands_around_it(prefix: str, end: str) -> None:
    lines = (channel(), channel("receive", gdr=False, peers="8[0] -> 0[0]"))
    facts = read("".join(f"{prefix}{HEADER}{line}{end}" for line in lines))
    assert (facts.send, facts.receive) == (Channels(gdr=1), Channels(staged=1))
    (rank,) = facts.ranks
    assert (rank.host, rank.pid, rank.rank) == ("node1", 100, 0)
    assert rank.first_staged is not None
    assert rank.first_staged.line == 2
    assert facts.cut_lines == 0


def test_an_own_function_name_may_stand_before_nccl() -> None:
    facts = read(f"gdr114:1766945:1767143 [1] sendSetup, 217 NCCL INFO {channel()}\n")
    assert facts.ranks[0].host == "gdr114"


def test_glued_lines_are_read_apart() -> None:
    facts = read(info("Using network IB")[:-1] + info(channel()) + info(channel()))
    assert facts.send == Channels(gdr=2)
    assert len(facts.ranks) == 1
    assert not facts.networks  # whether the name ends there is unknown


def test_a_host_keeps_its_name_where_another_one_ends_like_it() -> None:
    lines = info(channel())
    facts = read(lines + lines.replace("node1", "bignode1"))
    assert {rank.host for rank in facts.ranks} == {"node1", "bignode1"}
    glued = read(lines + lines[:-1] + "m" + lines)
    assert [(rank.host, rank.send) for rank in glued.ranks] == [("node1", Channels(gdr=3))]


@pytest.mark.parametrize("cut", ["via NET/IB/0/GDRD", "via NET/IB/0", "via NET/IB", "via NE"])
def test_a_channel_without_the_end_of_its_line_is_unknown(cut: str) -> None:
    line = channel().partition("via ")[0] + cut
    for log in (f"{HEADER}{line}", f"{HEADER}{line}{info(channel())}"):
        facts = read(log)
        assert facts.send.unknown == 1
        assert facts.send.staged == 0
        assert verdict(log).state is State.UNKNOWN


def test_a_proof_needs_no_line_end() -> None:
    assert read(f"{HEADER}{channel()}").send == Channels(gdr=1)


def test_a_line_of_a_megabyte_is_cut() -> None:
    long = "x" * MAX_LINE_BYTES * 3
    facts = read(f"{long}{HEADER}{channel()}\n{info(channel())}", piece=1000)
    assert facts.send == Channels(gdr=1)
    assert facts.files[0].lines == 2


def test_progress_bars_without_newlines_hide_nothing() -> None:
    bars = "".join(f"\r{n}/9999 steps" for n in range(20_000))
    facts = read(bars + "\r" + info(channel()))
    assert facts.send == Channels(gdr=1)
    assert facts.ranks[0].first_gdr is not None
    assert facts.ranks[0].first_gdr.line == 1
