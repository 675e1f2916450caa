"""The error correction of interfaces, from messages of the kernel's netlink, and from this machine."""

import errno
import os
import struct
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.host.fec import CORRECTED_BITS, UNCORRECTABLE, FecState
from probes.host.machine.ethtool_netlink import families_request, family_of, fec_request, parse, read_fec
from probes.host.machine.local import LocalHost
from probes.host.machine.rdma_netlink import Answer

FAMILY = 21
HEAD = bytes(4)  # struct genlmsghdr


def attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(content), kind) + content.ljust((len(content) + 3) & ~3, b"\0")


def fec(name: str, mode: int | None = 50, **counts: list[int]) -> bytes:
    """Return a message as net/ethtool/fec.c writes it; a count: the total, then that of each lane."""
    kinds = {"corrected": 2, "uncorrectable": 3, "bits": 4}
    rows = b"".join(
        attribute(kinds[kind], struct.pack(f"={len(each)}Q", *each)) for kind, each in counts.items()
    )
    header = attribute(1, struct.pack("=I", 3)) + attribute(2, name.encode() + b"\0")
    active = b"" if mode is None else attribute(4, struct.pack("=I", mode))
    return HEAD + attribute(1 | 0x8000, header) + attribute(3, b"\0") + active + attribute(5 | 0x8000, rows)


def families(*names: str) -> list[bytes]:
    return [
        HEAD + attribute(2, name.encode() + b"\0") + attribute(1, struct.pack("=H", number))
        for number, name in enumerate(names, FAMILY)
    ]


def exchange(replies: list[tuple[list[bytes], int]]):  # type: ignore[no-untyped-def]
    """Answer each request with the next of these payloads and errors."""
    rest = iter(replies)

    def answer(request):  # type: ignore[no-untyped-def]
        assert request(7)[8:12] == struct.pack("=I", 7)
        payloads, error = next(rest)
        return Answer(7, payloads, is_done=True, errno=error)

    return answer


def test_mode_and_counts_of_each_interface() -> None:
    messages = [fec("ens1np0", bits=[300, 100, 200], uncorrectable=[2]), fec("eno1", 49), fec("eno2", 74)]
    found = read_fec(["ens1np0", "eno1", "lo"], exchange([(families("ethtool"), 0), (messages, 0)]))
    assert found["ens1np0"] == FecState("RS", {CORRECTED_BITS: 300, UNCORRECTABLE: 2})
    assert found["eno1"] == FecState("off", {})
    assert isinstance(found["lo"], Unknown)


def test_a_count_that_the_driver_has_not_is_absent_and_not_zero() -> None:
    """fec.c leaves such an attribute empty."""
    assert parse([fec("ens1np0", corrected=[], bits=[0])])["ens1np0"].counts == {CORRECTED_BITS: 0}


@pytest.mark.parametrize("mode", [None, 0, 7, 75, 1 << 31])
def test_a_mode_that_is_none_of_fec_is_unknown_and_not_off(mode: int | None) -> None:
    assert isinstance(parse([fec("ens1np0", mode)])["ens1np0"].mode, Unknown)


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ([(families("nlctrl"), 0)], Reason.NOT_THERE),  # before Linux 5.6
        ([([], errno.EPERM)], Reason.IO_ERROR),
        ([(families("ethtool"), 0), ([], errno.EOPNOTSUPP)], Reason.NOT_THERE),  # before 5.13
        ([(families("ethtool"), 0), ([], errno.EIO)], Reason.IO_ERROR),
    ],
)
def test_why_there_is_no_answer(replies: list[tuple[list[bytes], int]], reason: Reason) -> None:
    found = read_fec(["ens1np0"], exchange(replies))["ens1np0"]
    assert isinstance(found, Unknown)
    assert found.reason is reason


def test_what_one_driver_refuses_is_not_lost_for_the_others() -> None:
    found = read_fec(["a0", "b0"], exchange([(families("ethtool"), 0), ([fec("a0")], errno.ENODEV)]))
    assert found["a0"] == FecState("RS", {})
    assert isinstance(found["b0"], Unknown)


@pytest.mark.parametrize("fails", [TimeoutError(), OSError(errno.EPROTONOSUPPORT, "")])
def test_a_kernel_that_does_not_answer(fails: OSError) -> None:
    def refuse(request: object) -> Answer:
        raise fails

    assert isinstance(read_fec(["ens1np0"], refuse)["ens1np0"], Unknown)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_no_bytes_break_the_parser(payloads: list[bytes]) -> None:
    for state in parse(payloads).values():
        assert all(0 <= count < 1 << 64 for count in state.counts.values())
    assert family_of(payloads) is None or families


@given(st.data())
def test_no_damage_breaks_the_parser(data: st.DataObject) -> None:
    whole = bytearray(fec("ens1np0", bits=[1, 2], corrected=[3]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    parse([bytes(whole[: data.draw(st.integers(0, len(whole)))])])


def test_the_requests_are_those_of_the_kernels_headers() -> None:
    assert families_request(1).hex() == "14000000100001030100000000000000" + "03010000"
    wanted = "2000000015000103020000000000000" + "01d010000" + "0c000180" + "0800030004000000"
    assert fec_request(FAMILY, 2).hex() == wanted


def test_this_machine_answers() -> None:
    names = os.listdir("/sys/class/net")
    found = LocalHost().fec_states(names)
    assert set(found) == set(names)
    assert isinstance(found["lo"], Unknown)
    assert partial(LocalHost().fec_states, [])() == {}
