"""Tables of partition keys: what is read of them, and how many reads that takes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.partition_keys import KeyTable, probe
from probes.host.machine.local import LocalHost
from probes.simulation.host import SimulatedHost
from tests.support.trees import write

PORT = "/sys/class/infiniband/mlx5_0/ports/1"


def table(
    root: Path, keys: dict[int, str], indices: Collection[int] = (), partitions: Collection[int] = ()
) -> tuple[Maybe[KeyTable], int]:
    """Return what is read of a table of 128 entries, and how many files that takes."""
    write(root, f"{PORT}/state", "4: ACTIVE\n")
    write(root, f"{PORT}/link_layer", "InfiniBand\n")
    for index in range(128):
        write(root, f"{PORT}/pkeys/{index}", keys.get(index, "0x0000") + "\n")
    host = LocalHost(str(root))
    rdma = probe_node(host).rdma
    assert isinstance(rdma, RdmaFacts)
    asked: list[str] = []
    read_bytes = host.read_bytes

    def counted(path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        asked.append(path)
        return read_bytes(path, limit)

    host.read_bytes = counted  # type: ignore[method-assign]
    return probe(host, rdma, indices, partitions).ports["mlx5_0", 1], len(asked)


def test_a_usual_table_takes_a_few_reads(tmp_path: Path) -> None:
    found, reads = table(tmp_path, {0: "0xffff", 1: "0x7fff"})
    assert isinstance(found, KeyTable)
    assert (found.keys, found.is_usable, found.first_full) == ({0: 0xFFFF, 1: 0x7FFF}, True, 0)
    assert reads == 6
    assert not found.is_whole


def test_a_full_members_key_is_found_wherever_it_is(tmp_path: Path) -> None:
    found, _ = table(tmp_path, {0: "0x7fff", 77: "0x8001"})
    assert isinstance(found, KeyTable)
    assert (found.is_usable, found.first_full) == (False, 77)


def test_what_a_job_names_is_read(tmp_path: Path) -> None:
    keys = {0: "0xffff", 40: "0x8005", 90: "0x8006"}
    found, reads = table(tmp_path, keys, indices=(40, 128))
    assert isinstance(found, KeyTable)
    assert (found.keys[40], found.beyond, reads) == (0x8005, 128, 7)
    found, _ = table(tmp_path, keys, partitions=(6,))
    assert isinstance(found, KeyTable)
    assert found.keys[90] == 0x8006
    found, _ = table(tmp_path, keys, partitions=(7,))
    assert isinstance(found, KeyTable)
    assert found.is_whole  # so 7 is in no partition of this port
    assert found.beyond == 128


def test_an_empty_table_has_no_keys(tmp_path: Path) -> None:
    found, _ = table(tmp_path, {})
    assert isinstance(found, KeyTable)
    assert (dict(found.keys), found.first_full, found.is_whole) == ({}, None, True)
    assert found.text == "0: 0x0000 empty"


@pytest.mark.parametrize("reason", [Reason.IO_ERROR, Reason.TIMED_OUT, Reason.NOT_RECORDED])
def test_a_table_that_cannot_be_read_is_unknown_with_its_reason(reason: Reason) -> None:
    host = SimulatedHost("hgx-h100")
    rdma = probe_node(host).rdma
    assert isinstance(rdma, RdmaFacts)
    read_bytes = host.read_bytes

    def refused(path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        return Unknown(reason, path) if path.endswith("mlx5_1/ports/1/pkeys/0") else read_bytes(path, limit)

    host.read_bytes = refused  # type: ignore[method-assign]
    found = probe(host, rdma).ports
    unread = found["mlx5_1", 1]
    assert isinstance(unread, Unknown)
    assert unread.reason is reason
    assert isinstance(found["mlx5_2", 1], KeyTable)


def test_roce_ports_and_ports_that_are_down_are_not_asked() -> None:
    for name, absent in (("hgx-h100", "mlx5_4"), ("hgx-h100+port-down", "mlx5_1")):
        host = SimulatedHost(name)
        rdma = probe_node(host).rdma
        assert isinstance(rdma, RdmaFacts)
        assert (absent, 1) not in probe(host, rdma).ports


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_any_bytes(contents: list[bytes]) -> None:
    host = SimulatedHost("hgx-h100")
    rdma = probe_node(host).rdma
    assert isinstance(rdma, RdmaFacts)
    read_bytes = host.read_bytes

    def changed(path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        _, is_key, index = path.partition("/pkeys/")
        return contents[int(index)] if is_key and int(index) < len(contents) else read_bytes(path, limit)

    host.read_bytes = changed  # type: ignore[method-assign]
    for found in probe(host, rdma).ports.values():
        if isinstance(found, KeyTable):
            assert all(0 < key <= 0xFFFF for key in found.keys.values())
            assert found.text


def test_a_node_that_is_read_in_rounds_is_asked_for_a_few_entries_in_each() -> None:
    host = SimulatedHost("hgx-h100")
    rdma = probe_node(host).rdma
    assert isinstance(rdma, RdmaFacts)
    answered: set[str] = set()
    asked: set[str] = set()
    read_bytes = host.read_bytes

    def in_rounds(path: str, limit: int = 1 << 20) -> Maybe[bytes]:
        asked.add(path)
        return read_bytes(path, limit) if path in answered else Unknown(Reason.NOT_RECORDED, path)

    host.read_bytes = in_rounds  # type: ignore[method-assign]
    rounds = 0
    while any(isinstance(found, Unknown) for found in probe(host, rdma).ports.values()):
        answered |= asked
        rounds += 1
        assert len(asked) <= 8 * 8
    assert rounds == 1
