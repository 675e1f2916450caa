"""Launchers, terminals and cuts: what is read is the same, and what is cut is unknown."""

# ruff: noqa: E501 - long lines are quoted whole

import json
from dataclasses import replace

import pytest

from probes.nccl.log.facts import Channels, State
from probes.nccl.log.grammar import MAX_LINE_BYTES
from probes.nccl.log.verdict import verdict_of
from tests.support.nccl_logs import HEADER, channel, info, read, verdict
from tests.support.nccl_versions import log_of
from widgets.base.lines import plain
from widgets.nccl.log import draw

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


@pytest.mark.parametrize("cut", ["via NET/IB/0", "via NET/IB", "via NE"])
def test_a_channel_without_the_end_of_its_line_is_unknown(cut: str) -> None:
    line = channel().partition("via ")[0] + cut
    for log in (f"{HEADER}{line}", f"{HEADER}{line}{info(channel())}"):
        facts = read(log)
        assert facts.send.unknown == 1
        assert facts.send.staged == 0
        assert verdict(log).state is State.UNKNOWN


@pytest.mark.parametrize("missing", [0, 3, 4])
def test_a_proof_needs_no_line_end(missing: int) -> None:
    line = f"{HEADER}{channel()}"
    assert read(line[: len(line) - missing]).send == Channels(gdr=1)  # nothing else begins with "/GD"


@pytest.mark.parametrize("torn", ["via NET/IB", "via NET/IB/6node2:1:1 [0] NC"])
def test_one_torn_line_changes_no_verdict_and_is_named(torn: str) -> None:
    log = info(channel(), channel(), channel().partition("via ")[0] + torn, channel("receive"))
    answer = verdict(log)
    assert answer.state is State.ALL
    assert answer.text == "3 of 4 channels on 0 of 1 rank (send 2 of 3, receive 1 of 1); 1 channel unknown"
    (reason,) = answer.reasons
    assert reason.text == "1 channel line is cut off or garbled before the path"
    assert [str(place) for place in reason.places] == ["log:3"]


@pytest.mark.parametrize("tail", ["", "[0] NCCL INFO Using network IB"])
def test_torn_lines_make_no_rank_hang(tail: str) -> None:
    """Ranks that share stdout tear each other's lines."""
    begin = "ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init"
    facts = read(info(f"{begin} START", f"{begin} COMPL{tail}"))
    assert (facts.communicators.started, facts.communicators.completed) == (1, 0)
    shown = "\n".join(plain(each) for each in draw(facts, verdict_of(facts), 100))
    assert "not completed" not in shown
    whole = read(info(f"{begin} START"))
    assert "1 initialization not completed" in "\n".join(
        plain(each) for each in draw(whole, verdict_of(whole), 100)
    )


@pytest.mark.parametrize("arrow", ["-&gt;", "-\\u003e"])
def test_arrows_of_html_and_json_are_read(arrow: str) -> None:
    facts = read(info(channel().replace("->", arrow)))
    assert (facts.send, facts.cut_lines) == (Channels(gdr=1), 0)


def docker(text: str) -> str:
    """The lines as Docker's json-file driver writes them."""
    escape = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\x1b": "\\u001b"}
    lines = []
    for each in text.splitlines(keepends=True):
        said = json.dumps(each)
        for char, code in escape.items():
            said = said.replace(char, code)
        lines.append(f'{{"log":{said},"stream":"stdout","time":"2026-05-05T06:16:47.123456789Z"}}\n')
    return "".join(lines)


def test_docker_logs_read_like_the_text_that_they_hold() -> None:
    text = log_of("2.26.2") + "\x1b[31m" + info('NCCL_IB_HCA set to "mlx5_0"', channel(network="A&B/0"))
    assert read(docker(text)) == replace(read(text), files=read(docker(text)).files)


def test_ray_leaves_out_lines_and_the_log_says_so() -> None:
    line = channel()
    ray = "(RayWorkerWrapper pid=100) "
    init = "ncclCommInitRank comm 0x5 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 - Init COMPLETE"
    mark = "\x1b[32m [repeated 7x across cluster] (Ray deduplicates logs by default.)\x1b[0m\n"
    log = "".join(f"{ray}{each}" for each in (info(line), info(line)[:-1] + mark, info(init)[:-1] + mark))
    facts = read(log)
    assert facts.send == Channels(gdr=2, unknown=6)
    assert facts.ranks[0].devices == ("IB/0",)
    assert (facts.cut_lines, facts.communicators.completed) == (0, 7)
    answer = verdict(log)
    assert answer.state is State.UNKNOWN  # Ray ignores words with digits, thus also /GDRDMA
    assert [reason.text.partition(",")[0] for reason in answer.reasons] == [
        "Ray left out the lines of 6 channels"
    ]


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


@pytest.mark.parametrize(
    "end",
    [
        '","stream":"stdout"}',
        "',",
        ",n1",
        "<br>",
        "`",
        "\t",
        ' {pod="a"}',
        " comm 0x6d7aa0e0 nRanks 16",  # RCCL's src/transport/net.cc
    ],
)
def test_what_follows_the_path_does_not_hide_that_gpudirect_rdma_is_missing(end: str) -> None:
    log = "".join(f"{HEADER}{channel(gdr=gdr)}{end}\n" for gdr in (True, True, False))
    assert read(log).send == Channels(gdr=2, staged=1)
    assert verdict(log).state is State.PARTLY


def test_many_unknown_channels_leave_the_answer_open() -> None:
    torn = channel().partition("via ")[0] + "via NET/IB"
    assert verdict(info(*[channel()] * 6, *[torn] * 2)).state is State.ALL
    assert verdict(info(*[channel()] * 6, *[torn] * 3)).state is State.UNKNOWN


def test_lines_that_were_edited_by_hand_are_read() -> None:
    aligned = channel(gdr=False).replace("[send] via ", "[send]     via   ")
    no_direction = channel(gdr=False).replace("[send] ", "")
    facts = read(info(aligned, no_direction))
    assert (facts.send, facts.local_channels, facts.cut_lines) == (Channels(staged=2), 0, 0)


def test_nvlink_between_nodes_needs_no_network() -> None:
    """Lines of a GB300 rack: NCCL's transport/p2p.cc writes MNNVL for each P2P channel."""
    size = "comm 0x1 rank 0 nRanks 8 nNodes {} localRanks 4 localRank 0 MNNVL 1"
    channels = ("Channel 00/0 : 3[3] -> 4[0] via P2P/MNNVL", "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL")
    facts = read(info(size.format(2), *channels))
    assert (facts.nvlink_channels, facts.local_channels) == (2, 0)
    answer = verdict_of(facts)
    assert (answer.state, answer.text) == (State.UNKNOWN, "not used: channels between nodes use NVLink")
    shown = "\n".join(plain(each) for each in draw(facts, answer, 100))
    assert "2 between and inside nodes over NVLink" in shown
    inside = verdict(info(size.format(1), *channels))
    assert inside.text == "unknown: no channel uses the network"


def test_merged_nics_are_named() -> None:
    using = "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [1]={[2] mlx5_2:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>"
    assert [nic.text for nic in read(info(using)).nics] == [
        "[0] mlx5_0:1/RoCE+mlx5_1:1/RoCE",
        "[1] mlx5_2:1/RoCE",
    ]


def test_the_version_of_rccl_is_read() -> None:
    for line in ("RCCL version 2.18.6+hip6.2 HEAD:8388b0b", "RCCL version : 2.22.3-HEAD:7a84c5d"):
        assert read(f"{line}\n").versions[0].text.startswith("2.")
