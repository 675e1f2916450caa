"""TCP sockets of all processes from netlink: of this machine, and from bytes that no kernel sends."""

import errno
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.host.machine import tcp_socket_reader
from probes.host.machine.local import LocalHost
from probes.host.machine.rdma_netlink import Answer
from probes.host.tcp_sockets import LEAST_BYTES, TcpSocket, parse, request
from tests.support.connections import connected
from tests.support.rdma_messages import attribute, done, message, refused

MIB = 1 << 20


def entry(
    local: tuple[str, int] = ("192.0.2.7", 5600),
    remote: tuple[str, int] = ("192.0.2.8", 40000),
    sent: int = 64 * MIB,
    received: int = 0,
    info: int = 232,
    family: int = socket.AF_INET,
) -> bytes:
    """Return struct inet_diag_msg with a tcp_info of so many bytes."""
    ports = struct.pack(">HH", local[1], remote[1])
    addresses = b"".join(socket.inet_pton(family, name).ljust(16, b"\0") for name, _ in (local, remote))
    head = struct.pack("=BBBB", family, 1, 0, 0) + ports + addresses
    tcp_info = (bytes(120) + struct.pack("=QQ", sent, received)).ljust(info, b"\0")[:info]
    return head + bytes(24) + struct.pack("=II", 1000, 4242) + attribute(8, b"\0") + attribute(2, tcp_info)


def test_a_socket_with_its_bytes() -> None:
    found = TcpSocket(4242, 1000, "192.0.2.7", 5600, "192.0.2.8", 40000, 64 * MIB, 0)
    assert list(parse([entry()])) == [found]
    assert found.bytes == 64 * MIB


def test_an_ipv4_peer_of_an_ipv6_socket_is_the_ipv4_address() -> None:
    mapped = entry(("::ffff:192.0.2.7", 5600), ("::ffff:192.0.2.8", 1), family=socket.AF_INET6)
    other = entry(("2001:db8::7", 5600), ("2001:db8::8", 1), family=socket.AF_INET6)
    addresses = [(each.local, each.remote) for each in parse([mapped, other])]
    assert addresses == [("192.0.2.7", "192.0.2.8"), ("2001:db8::7", "2001:db8::8")]


@pytest.mark.parametrize(
    "payload",
    [
        entry(sent=LEAST_BYTES // 2 - 1, received=LEAST_BYTES // 2),  # carries control messages
        entry(info=104),  # before Linux 4.2
        entry()[:72],  # without tcp_info
        entry().replace(b"\x02", b"\x01", 1),  # of another family
    ],
)
def test_what_is_left_out(payload: bytes) -> None:
    assert list(parse([payload, entry(received=1)])) == list(parse([entry(received=1)]))


@given(
    st.lists(
        st.binary(max_size=200)
        | st.tuples(st.binary(max_size=80), st.integers(0, 300)).map(
            lambda change: change[0] + entry()[len(change[0]) : change[1]]
        ),
        max_size=4,
    )
)
def test_no_bytes_stop_the_parser(payloads: list[bytes]) -> None:
    for found in parse(payloads):
        assert found.bytes >= LEAST_BYTES
        assert 0 <= found.local_port <= 65535


def answer(*datagrams: bytes) -> Answer:
    found = Answer(1)
    for datagram in datagrams:
        found.add(datagram)
    return found


def test_both_families_are_asked() -> None:
    answers = {socket.AF_INET: answer(message(20, 1, entry()), done(1)), socket.AF_INET6: answer(done(1))}
    found = tcp_socket_reader.read_sockets(answers.__getitem__)
    assert not isinstance(found, Unknown)
    assert len(found) == 1


def test_a_kernel_without_the_question() -> None:
    found = tcp_socket_reader.read_sockets(lambda _: answer(refused(1, errno.ENOENT)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


def test_the_request_asks_for_established_sockets_with_tcp_info() -> None:
    """Family 2, protocol 6, attribute INET_DIAG_INFO, state ESTABLISHED (sock_diag(7))."""
    sent = request(socket.AF_INET, 1)
    assert len(sent) == 72
    assert sent[:24].hex() == "48000000" + "1400" + "0103" + "01000000" + "00000000" + "02060200" + "02000000"


@pytest.mark.parametrize(
    ("files", "is_asked"),
    [
        ({"sys/module/tcp_diag/refcnt": "0"}, True),
        ({}, True),  # a kernel without modules
        ({"proc/modules": "ext4 1 0 - Live 0\n", "proc/sys/kernel/osrelease": "6.1.0"}, False),
        (
            {
                "proc/modules": "",
                "proc/sys/kernel/osrelease": "6.1.0",
                "lib/modules/6.1.0/modules.builtin": "kernel/net/ipv4/tcp_diag.ko\n",
            },
            True,
        ),
    ],
)
def test_no_module_is_loaded_for_the_question(files: dict[str, str], is_asked: bool, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    why = tcp_socket_reader.why_not_asked(LocalHost(str(tmp_path)))
    assert (why is None) is is_asked
    if why is not None:
        assert "not loaded" in why.detail


def test_this_machine_shows_what_a_connection_has_carried() -> None:
    """Where the kernel answers, without root: both ends with their bytes, and whose they are."""
    host = LocalHost()
    ours, theirs = connected(3 * MIB)
    port = theirs.getsockname()[1]
    with ours, theirs:
        found = host.tcp_sockets()
        if isinstance(found, Unknown):
            pytest.skip(str(found))
        sent = [each for each in found if each.remote_port == port]
        assert [each.bytes_acked // MIB for each in sent] == [3]
        assert [each.bytes_received // MIB for each in found if each.local_port == port] == [3]
        inodes = host.socket_inodes([os.getpid()])[os.getpid()]
        assert not isinstance(inodes, Unknown)
        assert os.fstat(ours.fileno()).st_ino == sent[0].inode
        assert sent[0].inode in inodes
        assert sent[0].uid == os.getuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter a namespace")
def test_root_lists_the_connections_of_another_network_namespace() -> None:
    """`unshare --net` has no interface that is up, so none."""
    try:
        other = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    except FileNotFoundError:
        pytest.skip("unshare is missing")
    with other:
        own, path = os.readlink("/proc/self/ns/net"), f"/proc/{other.pid}/ns/net"
        deadline = time.monotonic() + 10
        while os.readlink(path) == own and other.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        found = LocalHost().namespace_sockets(other.pid) if os.readlink(path) != own else None
        other.kill()
    if found is None or isinstance(found, Unknown):
        pytest.skip(f"not even root may here ({found})")
    assert found == ()


def test_only_root_enters_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_socket_reader, "can_enter", lambda: False)
    found = tcp_socket_reader.read_namespace("/proc/1/ns/net")
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NEEDS_ROOT
    monkeypatch.setattr(tcp_socket_reader, "can_enter", lambda: True)
    gone = tcp_socket_reader.read_namespace("/nosuch")
    assert isinstance(gone, Unknown)
    assert gone.reason is Reason.IO_ERROR
