"""The other end by SSH: only hosts are hosts, and the far shell gets quoted words."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.command import Command, Refused, by_ssh, host_of
from tests.support.bandwidth_nodes import HOSTILE

SERVER = Command(("ib_write_bw", "-d", "mlx5_0"), "ib_write_bw")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("node2", "node2"),
        ("root@node2.example.org", "node2.example.org"),
        ("svc_gpu-1@10.0.0.7", "10.0.0.7"),
        ("2001:db8::7", "2001:db8::7"),
    ],
)
def test_a_host_with_or_without_a_user(peer: str, host: str) -> None:
    assert host_of(peer) == host
    command = by_ssh(peer, SERVER, 310.0)
    assert isinstance(command, Command)
    assert command.argv[-3:-1] == ("--", peer)


@pytest.mark.parametrize("peer", HOSTILE)
def test_nothing_else(peer: str) -> None:
    assert host_of(peer) is None
    assert isinstance(by_ssh(peer, SERVER, 310.0), Refused)


@given(st.text(max_size=60))
def test_never_an_option(peer: str) -> None:
    host = host_of(peer)
    if host is not None:
        assert not host.startswith("-")
        assert not peer.startswith("-")
        assert not set(host) & set(" \t\n;&|$`\"'<>(){}*?~#\\/@")


def test_the_far_shell_gets_what_was_meant_and_an_end_in_time() -> None:
    odd = Command(("env", "A=b c", "ib_write_bw", "$(reboot)"), "ib_write_bw")
    command = by_ssh("node2", odd, 310.4)
    assert isinstance(command, Command)
    words = shlex.split(command.argv[-1])
    assert words == ["timeout", "--foreground", "-k", "5", "310", *odd.argv]


def test_no_questions_are_asked_and_a_dead_line_is_noticed() -> None:
    command = by_ssh("node2", SERVER, 310.0)
    assert isinstance(command, Command)
    assert {"BatchMode=yes", "ServerAliveInterval=5"} <= set(command.argv)
    assert "-tt" in command.argv
