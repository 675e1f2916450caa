"""The signs of use: bufinfo, refcnt and memory_peers."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.gpudirect import parse_driver_version, read_peermem
from probes.facts.gpudirect_probe import parse_bufinfo, probe
from probes.facts.rdma.data_direct import DataDirectFacts
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from tests.probes.facts.gpudirect_facts import Nics, a_kernel, facts_of, gpus_of, modules_of, rdma_of
from tests.support.trees import write

HEADER = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n"
OURS = "274877906944\t00080002\t00080007\t00000003\tnv_dmabuf\t00001234\t\n"
OTHER = "00008192\t00080002\t00080007\t00000003\ti915\t00001235\t\n"
NIC = "\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n"
NOBODY = "\tAttached Devices:\nTotal 0 devices attached\n\n"
FENCE = "\tkernel fence:nvidia 0000:1b:00.0 seq 1 signalled\n"


@pytest.mark.parametrize(
    ("text", "in_use"),
    [
        (HEADER + OURS + NIC, True),
        (HEADER + OTHER + NIC + OURS + NIC, True),
        (HEADER + OURS + NOBODY, False),
        (HEADER + OURS + FENCE + NOBODY, False),
        (HEADER + OURS + NOBODY + OTHER + NIC, False),
        (HEADER + OURS + NOBODY + OTHER.replace("00008192", "274877906944") + NIC, False),
        (HEADER + OTHER.replace("\t\n", "\tnv_dmabuf\n") + NIC, False),
        (HEADER + "\nTotal 0 objects, 0 bytes\n", False),
        ("", False),
    ],
)
def test_a_buffer_of_the_gpu_driver_with_a_device_is_in_use(text: str, in_use: bool) -> None:
    assert parse_bufinfo(text).gpu_memory == (frozenset({"0000:18:00.0"}) if in_use else frozenset())


@pytest.mark.parametrize(
    ("text", "are_none"),
    [
        (HEADER + "\nTotal 0 objects, 0 bytes\n", True),
        (HEADER + OURS + NOBODY + OTHER + NOBODY + "\nTotal 2 objects, 274877915136 bytes\n", True),
        (HEADER + OTHER + NIC + "\nTotal 1 objects, 8192 bytes\n", False),
        (HEADER + OURS + NOBODY, False),  # cut off
        ("", False),
    ],
)
def test_only_a_whole_list_shows_that_no_device_uses_a_dmabuf(text: str, are_none: bool) -> None:
    assert parse_bufinfo(text).are_none is are_none


def test_whether_dmabuf_is_in_use_is_unknown_without_debugfs(tmp_path: Path) -> None:
    assert isinstance(facts_of(tmp_path).dmabuf_in_use, Unknown)
    file = tmp_path / "sys/kernel/debug/dma_buf/bufinfo"
    file.parent.mkdir(parents=True)
    file.write_text(HEADER + OURS + NIC)
    assert facts_of(tmp_path).dmabuf_in_use is True


@pytest.mark.parametrize(
    ("data_direct", "in_use"),
    [
        (DataDirectFacts(()), False),
        (DataDirectFacts(("0000:c1:00.0",)), True),
        (Unknown(Reason.TIMED_OUT, "Data Direct"), None),
    ],
)
def test_only_a_nic_that_is_attached_is_use(
    tmp_path: Path, data_direct: Maybe[DataDirectFacts], in_use: bool | None
) -> None:
    """Another GPU, a camera or a capture card attached to GPU memory is no use by a NIC."""
    bufinfo = HEADER + OURS + NIC.replace("0000:18:00.0", "0000:c1:00.0")
    write(tmp_path, "/sys/kernel/debug/dma_buf/bufinfo", bufinfo)
    host = Nics(tmp_path, errno.EBADF)
    facts = probe(
        host, a_kernel(), modules_of(), gpus_of(), rdma_of("mlx5_0"), lambda: (), data_direct=data_direct
    )
    assert known(facts.dmabuf_in_use, None) is in_use


def test_a_nic_in_a_pod_that_is_attached_is_use(tmp_path: Path) -> None:
    write(tmp_path, "/sys/kernel/debug/dma_buf/bufinfo", HEADER + OURS + NIC)
    moved = RdmaFacts((), ("0000:18:00.0",), "exclusive")
    facts = probe(Nics(tmp_path, errno.EBADF), a_kernel(), modules_of(), gpus_of(), moved, lambda: ())
    assert facts.dmabuf_in_use is True


@given(st.text() | st.lists(st.sampled_from([HEADER, OURS, OTHER, NIC, NOBODY, FENCE])).map("".join))
def test_no_bufinfo_crashes_the_parser(text: str) -> None:
    assert len(parse_bufinfo(text).gpu_memory) <= len(text)


@given(st.text())
def test_no_driver_version_crashes_the_parser(text: str) -> None:
    numbers = parse_driver_version(text)
    assert numbers is None or len(numbers) == 3


# The reading


def test_refcnt_is_read_and_zero_is_a_number(tmp_path: Path) -> None:
    write(tmp_path, "/sys/module/nvidia_peermem/refcnt", "0\n")
    reading = read_peermem(LocalHost(str(tmp_path)))
    assert reading.refcnt == 0
    assert isinstance(reading.peers, Unknown)


def test_the_refcnt_of_nv_peer_mem_is_the_fallback(tmp_path: Path) -> None:
    write(tmp_path, "/sys/module/nv_peer_mem/refcnt", "7\n")
    assert read_peermem(LocalHost(str(tmp_path))).refcnt == 7


def test_no_peermem_is_not_there_rather_than_zero(tmp_path: Path) -> None:
    refcnt = read_peermem(LocalHost(str(tmp_path))).refcnt
    assert isinstance(refcnt, Unknown)
    assert refcnt.reason is Reason.NOT_THERE


def test_memory_peers_count_live_regions_and_bytes(tmp_path: Path) -> None:
    client = "/sys/kernel/mm/memory_peers/nv_mem"
    for name, value in {
        "num_alloc_mrs": 112,
        "num_dealloc_mrs": 100,
        "num_reg_bytes": 5 << 30,
        "num_dereg_bytes": 1 << 30,
    }.items():
        write(tmp_path, f"{client}/{name}", f"{value}\n")
    write(tmp_path, "/sys/kernel/mm/memory_peers/nv_mem_nc/num_alloc_mrs", "garbage\n")
    peers = read_peermem(LocalHost(str(tmp_path))).peers
    assert not isinstance(peers, Unknown)
    first, second = peers
    assert (first.client, first.live_mrs, first.live_bytes) == ("nv_mem", 12, 4 << 30)
    assert isinstance(second.live_mrs, Unknown)
    assert second.live_mrs.reason is Reason.MALFORMED
