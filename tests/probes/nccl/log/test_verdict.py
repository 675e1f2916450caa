"""The verdict: only channels prove, and the lines that say why are named."""

import pytest

from probes.nccl.log.facts import State
from probes.nccl.log.verdict import NO_REASON
from tests.support.nccl_logs import WARNING, channel, info, read, verdict

VERSION = "NCCL version 2.26.2+cuda12.2"
INIT = "ncclCommInitRank comm 0x5 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE"


def reasons(*messages: str) -> str:
    return " / ".join(reason.text for reason in verdict(info(*messages)).reasons)


def test_all_channels() -> None:
    answer = verdict(info(channel(), channel("receive", peers="8[0] -> 0[0]")))
    assert (answer.state, answer.text) == (State.ALL, "2 of 2 channels on 1 of 1 rank")
    assert not answer.reasons


def test_one_channel_of_two() -> None:
    answer = verdict(info(channel(), channel(gdr=False)))
    assert (answer.state, answer.text) == (State.PARTLY, "1 of 2 channels on 0 of 1 rank")
    assert [reason.text for reason in answer.reasons] == [NO_REASON]
    assert str(answer.reasons[0].places[0]) == "log:2"


def test_the_nics_of_a_dgx_spark_cannot_reach_its_gpu() -> None:
    """The lines of NVIDIA's plugin, which does not close the quote."""
    enabled = "NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 "
    names = (f"{enabled}'rocep1s0f1", f"{enabled}'roceP2p1s0f1")
    assert "by design" in reasons(*names, channel(gdr=False))
    assert reasons(names[0], channel(gdr=False)) == NO_REASON


@pytest.mark.parametrize(
    "message",
    [
        "Connected all rings, use ring PXN 0 GDR 1",
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "DMA-BUF is available on GPU device 0",
        "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default",
        "Connected all rings, use ring PXN 0 GDR 0",
        "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "Using network Socket",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    ],
)
def test_nothing_but_a_channel_proves_anything(message: str) -> None:
    assert verdict(info(VERSION, message)).state is State.UNKNOWN


def test_new_versions_connect_late() -> None:
    assert "first collective" in reasons(VERSION, INIT)
    assert "first collective" not in reasons("NCCL version 2.21.5+cuda12.4", INIT)


def test_a_version_alone_is_no_begun_job() -> None:
    assert "first collective" not in reasons(VERSION)


def test_no_log_of_nccl() -> None:
    answer = verdict("Epoch 1\nEpoch 2\n")
    assert answer.text == "unknown: not an NCCL log"
    assert "NCCL_DEBUG=INFO" in answer.reasons[0].text


def test_nics_that_cannot() -> None:
    disabled = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    said = reasons(VERSION, "Using network IB", INIT, disabled, channel(gdr=False))
    assert "disabled for mlx5_0" in said
    assert "DMA-BUF is available" in said
    terse = reasons(VERSION, disabled, channel(gdr=False))  # without the lines of INIT, absence shows nothing
    assert "DMA-BUF is available" not in terse


def test_too_far() -> None:
    far = "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 7 > 5)"
    assert "The GPU–NIC distance is PHB; the limit is PXB" in reasons(VERSION, far, channel(gdr=False))
    assert "distance is 7; the limit is 5 (numbers of an unknown version)" in reasons(far, channel(gdr=False))
    several = reasons(VERSION, "NCCL version 2.18.1+cuda12.1", far, channel(gdr=False))
    assert "numbers of an unknown version" in several


@pytest.mark.parametrize(
    "setting",
    ["NCCL_NET_GDR_LEVEL set by environment to LOC", "NCCL_NET_GDR_READ set by environment to 0.",
     "NCCL_DMABUF_ENABLE set by environment to 0."],
)  # fmt: skip
def test_settings_that_disable_it(setting: str) -> None:
    name, _, value = setting.rstrip(".").partition(" set by environment to ")
    assert f"{name}={value}" in reasons(setting, channel(gdr=False))


def test_sending_and_receiving_may_differ() -> None:
    answer = verdict(info(channel(gdr=False), channel("receive", peers="8[0] -> 0[0]")))
    assert answer.text == "1 of 2 channels on 0 of 1 rank (send 0 of 1, receive 1 of 1)"
    assert "Only receiving" in answer.reasons[0].text


def test_sockets_and_why() -> None:
    said = reasons(
        "NCCL_IB_DISABLE set by environment to 1.",
        "NET/IB : No device found.",
        "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
        "Using network Socket",
        channel(gdr=False, network="Socket/0"),
    )
    assert "TCP sockets" in said
    assert "found no InfiniBand or RoCE device" in said
    assert "NCCL_IB_DISABLE=1" in said
    assert "No network plugin" in said


def test_the_plugin_of_google_is_tcp() -> None:
    answer = verdict(info("Using network FastSocket", channel(gdr=False, network="FastSocket/0")))
    assert answer.state is State.NONE
    assert [reason.text for reason in answer.reasons] == [
        "Channels use TCP sockets, which cannot use GPUDirect RDMA"
    ]


@pytest.mark.parametrize(
    "line",
    [
        info("Failed to open libibverbs.so[.1]"),
        info("Count not open libibverbs.so", "Count not open libibverbs.so.1"),
        f"{WARNING}Failed to open libibverbs.so[.1]\n",
    ],
)
def test_sockets_because_the_image_has_no_libibverbs(line: str) -> None:
    log = info("NET/Plugin : No plugin found (libnccl-net.so)") + line + info("Using network Socket")
    answer = verdict(log)
    said = [reason.text for reason in answer.reasons]
    assert said[:2] == [
        "NCCL chose TCP sockets, which cannot use GPUDirect RDMA",
        "NCCL could not open libibverbs: rdma-core is missing in the job's image",
    ]
    assert not any("plugin" in text for text in said)
    assert not read(log).problems


def test_an_attempt_by_another_name_is_no_missing_libibverbs() -> None:
    assert read(info("Count not open libibverbs.so", "Using network IB")).no_verbs is None


def test_ranks_of_several_communicators_are_one() -> None:
    small = (
        "ncclCommSplit comm 0x6 rank 3 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x2 - Init COMPLETE"
    )
    facts = read(info(INIT.replace("rank 0", "rank 11"), small, channel(peers="3[0] -> 0[0]")))
    (rank,) = facts.ranks
    assert rank.rank == 11


def test_the_efa_plugin_says_why_it_uses_host_memory() -> None:
    """The line of aws-ofi-nccl's nccl_ofi_ofiutils.cpp, as in NVIDIA/aicr issue 2439."""
    line = "NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR"
    log = info(line, "Using network AWS Libfabric", channel(gdr=False, network="AWS Libfabric/0"))
    assert verdict(log).reasons[0].text.startswith("The plugin aws-ofi-nccl disabled GPUDirect RDMA")


def test_a_single_rank_needs_no_network() -> None:
    """Lines of NCCL 2.28.9 with one rank on an H200."""
    start = "ncclCommInitRankConfig comm 0x8fa5950 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 60 commId 0xe1"
    size = "comm 0x8fa5950 rank 0 nRanks 1 nNodes 1 localRanks 1 localRank 0 MNNVL 0"
    answer = verdict(info(f"{start} - Init START", "Using network Socket", size, f"{start} - Init COMPLETE"))
    assert answer.text == "unknown: no channel uses the network"
    assert "a single rank" in answer.reasons[-1].text
