"""The installed tools, and whether perftest was built with CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.tools import (
    FABRIC_MANAGER,
    OFED,
    VERSION,
    Perftest,
    cuda_in_program,
    parse_usage,
    probe,
)
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.trees import write


class Answering(LocalHost):
    """A tree with given answers of its commands."""

    def __init__(self, root: Path, **answers: str) -> None:
        super().__init__(str(root))
        self._answers = answers
        self.ran: list[str] = []

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.ran.append(" ".join(argv))
        text = self._answers.get(argv[0].replace("-", "_"))
        if text is None:
            return Unknown(Reason.TIMED_OUT, argv[0])
        return CommandOutput(tuple(argv), 0, text, "")


def install(root: Path, name: str, content: bytes = b"\x7fELF") -> None:
    write(root, f"/usr/bin/{name}", "")
    (root / "usr/bin" / name).write_bytes(content)


def perftest(host: LocalHost) -> Perftest:
    found = probe(host).perftest
    assert isinstance(found, Perftest)
    return found


def test_nothing_is_installed_and_nothing_is_run(tmp_path: Path) -> None:
    host = Answering(tmp_path)
    facts = probe(host)
    for fact in (*facts.paths.values(), facts.perftest, facts.ofed, facts.fabric_manager):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.NOT_THERE
    assert host.ran == []


def test_a_distributions_perftest_has_no_cuda(tmp_path: Path) -> None:
    install(tmp_path, "ib_write_bw", b"\x7fELF libibverbs.so.1 --use_cuda")
    found = perftest(Answering(tmp_path, ib_write_bw="Version: 6.06\n"))
    assert (found.cuda, found.dmabuf, found.version) == (False, False, "6.06")
    assert found.evidence == "/usr/bin/ib_write_bw"
    assert found.installed == ("ib_write_bw",)


@pytest.mark.parametrize("dmabuf", [True, False])
def test_a_perftest_with_cuda(tmp_path: Path, dmabuf: bool) -> None:
    name = b"cuMemGetHandleForAddressRange" if dmabuf else b""
    install(tmp_path, "ib_write_bw", b"\x7fELF\0libcuda.so.1\0" + name)
    found = perftest(Answering(tmp_path))
    assert found.cuda is True
    assert found.dmabuf is dmabuf
    assert isinstance(found.version, Unknown)


def test_a_wrapper_script_is_asked_for_its_usage(tmp_path: Path) -> None:
    install(tmp_path, "ib_write_bw", b"#!/bin/sh\n")
    usage = "  -s, --size=<size>\n      --use_cuda=<cuda device id>\n"
    found = perftest(Answering(tmp_path, ib_write_bw=usage))
    assert (found.cuda, found.dmabuf, found.evidence) == (True, False, "ib_write_bw --help")


def test_a_perftest_that_does_not_answer_is_not_one_without_cuda(tmp_path: Path) -> None:
    install(tmp_path, "ib_write_bw", b"#!/bin/sh\n")
    found = perftest(Answering(tmp_path))
    assert isinstance(found.cuda, Unknown)
    assert found.cuda.reason is Reason.TIMED_OUT


def test_versions_of_ofed_and_fabric_manager(tmp_path: Path) -> None:
    install(tmp_path, "ofed_info")
    install(tmp_path, "nv-fabricmanager")
    host = Answering(
        tmp_path,
        ofed_info="MLNX_OFED_LINUX-24.10-0.7.0.0:\n",
        nv_fabricmanager="Fabric Manager version is : 570.124.06\n",
    )
    facts = probe(host)
    assert (facts.ofed, facts.fabric_manager) == ("MLNX_OFED_LINUX-24.10-0.7.0.0", "570.124.06")


def test_nothing_that_asks_a_driver_is_run(tmp_path: Path) -> None:
    for name in ("nvidia-smi", "mlxconfig", "gdrcopy_copybw", "nvbandwidth", "ibstat", "all_reduce_perf"):
        install(tmp_path, name)
    host = Answering(tmp_path)
    assert probe(host).paths["nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert host.ran == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("OFED-internal-25.01-0.6.0:\n", "OFED-internal-25.01-0.6.0"), ("command not found\n", None)],
)
def test_ofed_releases(text: str, expected: str | None) -> None:
    match = OFED.search(text)
    assert (match[1] if match else None) == expected


@given(st.text())
def test_no_text_stops_the_parsers(text: str) -> None:
    for pattern in (VERSION, OFED, FABRIC_MANAGER):
        pattern.search(text)
    parse_usage(text)


@given(st.binary())
def test_no_bytes_stop_the_search(content: bytes) -> None:
    cuda_in_program(content)


@pytest.mark.parametrize(
    ("content", "opens"),
    [(b"\x7fELF\0libcuda.so\0x", True), (b"\x7fELF\0libcuda.so.1\0x", False), (b"\x7fELF", False)],
)
def test_a_perftest_that_opens_libcuda_by_itself(tmp_path: Path, content: bytes, opens: bool) -> None:
    install(tmp_path, "ib_write_bw", content)
    perftest = probe(Answering(tmp_path)).perftest
    assert isinstance(perftest, Perftest)
    assert perftest.opens_libcuda is opens


@pytest.mark.parametrize(
    ("content", "by_bus_id"),
    [
        (b"\x7fELF\0libcuda.so.1\0use_cuda_bus_id\0", True),
        (b"\x7fELF\0libcuda.so.1\0use_cuda\0", False),
        (b"\x7fELF\0use_cuda_bus_id\0", False),
    ],
)
def test_a_perftest_that_takes_a_gpu_by_its_pci_address(
    tmp_path: Path, content: bytes, by_bus_id: bool
) -> None:
    """The newest version knows the option even without CUDA, and then refuses it."""
    install(tmp_path, "ib_write_bw", content)
    assert perftest(Answering(tmp_path)).cuda_bus_id is by_bus_id


# A line of a real /proc/net/tcp; 4853 is 18515, 0A is LISTEN, 01 is ESTABLISHED.
SOCKET = "   1: 00000000:{port} {peer} {state} 00000000:00000000 00:00000000 00000000  1000        0 3"


@pytest.mark.parametrize(
    ("port", "peer", "state", "found"),
    [
        ("4853", "00000000:0000", "0A", "/proc/net/tcp"),
        ("4853", "0100007F:9C40", "01", None),
        ("4854", "00000000:0000", "0A", None),
    ],
)
def test_who_listens_on_perftests_port(
    tmp_path: Path, port: str, peer: str, state: str, found: str | None
) -> None:
    write(tmp_path, "/proc/net/tcp", SOCKET.format(port=port, peer=peer, state=state))
    assert probe(Answering(tmp_path)).perftest_listens == found


def test_sockets_of_ipv6_and_none_that_can_be_read(tmp_path: Path) -> None:
    assert isinstance(probe(Answering(tmp_path)).perftest_listens, Unknown)
    write(tmp_path, "/proc/net/tcp", "  sl  local_address")
    line = SOCKET.format(port="4853", peer=f"{'0' * 32}:0000", state="0A").replace(
        " 00000000:4853", f" {'0' * 32}:4853"
    )
    write(tmp_path, "/proc/net/tcp6", line)
    assert probe(Answering(tmp_path)).perftest_listens == "/proc/net/tcp6"


@pytest.mark.parametrize(
    ("content", "takes"),
    [(b"\x7fELF\0ipv6\0ipv6-addr\0", True), (b"\x7fELF\0ipv6\0", False), (b"#!/bin/sh\n", True)],
)
def test_whether_perftest_takes_an_ipv6_address(tmp_path: Path, content: bytes, takes: bool) -> None:
    install(tmp_path, "ib_write_bw", content)
    usage = "  -s, --size=<size>\n      --ipv6-addr\n"
    assert perftest(Answering(tmp_path, ib_write_bw=usage)).ipv6_addr is takes


def test_a_silent_wrapper_leaves_its_options_unknown(tmp_path: Path) -> None:
    install(tmp_path, "ib_write_bw", b"#!/bin/sh\n")
    assert isinstance(perftest(Answering(tmp_path)).ipv6_addr, Unknown)
