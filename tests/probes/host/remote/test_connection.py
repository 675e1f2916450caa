"""Connections to nodes that do not answer as they should: each ends with its sentence, and leaves nothing."""

import base64
import contextlib
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.host.remote import connection, transport
from probes.host.remote.collector import GREETING
from probes.host.remote.connection import Connection
from probes.host.remote.transport import ConnectionFailed, Target, pack, unpack, why_failed
from tests.support.local_node import local_target, script_target, write_program
from tui.runtime.open_host import NoSuchHost, target_of

_GREETED = f"printf '\\n{GREETING}\\n'; echo {pack({'kind': 'x', 'is_root': False}).decode().strip()}"


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short limits; no descriptor and no process is left."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 10.0)
    monkeypatch.setattr(connection, "END_SECONDS", 0.1)
    process = psutil.Process()
    descriptors, children = len(os.listdir("/proc/self/fd")), len(process.children())
    yield
    end = time.monotonic() + 10.0  # what was killed or closed takes a moment on a busy machine
    while time.monotonic() < end and (
        len(process.children()) > children or len(os.listdir("/proc/self/fd")) > descriptors
    ):
        time.sleep(0.05)
    # Fewer: those of an earlier test were garbage, or ended meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(process.children()) <= children


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 1", "sh closed the connection"),
        ("echo closed for service; exit 1", "sh closed the connection; the node printed: closed for service"),
        ("echo some words >&2; exit 1", "some words"),
        ("printf 'red \\033[31m\\n' >&2; exit 1", "red "),
        ("echo 'ssh: Could not resolve hostname n: x' >&2; exit 255", "no such host"),
        ("echo 'root@n: Permission denied (publickey).' >&2; exit 255", "it accepts no key of yours"),
        ("echo '/bin/python3: Permission denied' >&2; exit 126", "/bin/python3: Permission denied"),
        ("echo 'Host key verification failed.' >&2; exit 255", "its host key is unknown"),
        (
            "echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2;"
            " echo 'Host key verification failed.' >&2; exit 255",
            "its host key has changed; find out why, then remove the old one with `ssh-keygen -R node`",
        ),
        ("echo 'connect to host n port 22: Connection refused' >&2; exit 255", "it refuses connections"),
        (
            "echo 'stdio forwarding failed' >&2;"
            " echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255",
            "its jump host cannot reach its ssh port",
        ),
        ("yes", "it prints something else than gdrtop's answers"),
        ("yes >&2; :", "it prints something else than gdrtop's answers"),
        ("exec head -c 100000000 /dev/zero", "it prints something else than gdrtop's answers"),
        (f"printf '\\n{GREETING}\\nno message\\n'; sleep 9", "its answer is garbled"),
        (f"printf '\\n{GREETING}\\n'", "sh closed the connection"),
    ],
)
def test_a_node_that_cannot_be_read_gets_a_sentence(script: str, said: str) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        Connection(script_target(script))
    assert said in str(failed.value)
    assert "\x1b" not in str(failed.value)


@pytest.mark.slow
def test_a_silent_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)
    for script in ("cat >/dev/null; :", "exec sleep 100"):
        with pytest.raises(ConnectionFailed, match="does not answer"):
            Connection(script_target(script))


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(ConnectionFailed, match="cannot run /missing/ssh: No such file"):
        Connection(Target("node", ("/missing/ssh", "{host}")))


@pytest.mark.parametrize(
    ("name", "script", "is_sudo", "said"),
    [
        ("", "", False, "it has no Python 3.6 or newer; install python3 there"),
        (
            "python3",
            'echo "Python 3.5 is too old for gdrtop" >&2; exit 1',
            False,
            "its Python is older than 3.6",
        ),
        ("sudo", "echo 'sudo: a password is required' >&2; exit 1", True, "allow `sudo -n`"),
        ("sudo", "echo 'sudo: interactive authentication is required' >&2; exit 1", True, "allow `sudo -n`"),
        ("sudo", "echo 'bob is not in the sudoers file.' >&2; exit 1", True, "sudo is not allowed there"),
        ("", "", True, "sudo is not installed there; connect as root"),
    ],
)
def test_what_is_missing_on_a_node_is_said(
    tmp_path: Path, name: str, script: str, is_sudo: bool, said: str
) -> None:
    for command in ("sh", "echo"):
        (tmp_path / command).symlink_to(f"/bin/{command}")
    if is_sudo:
        (tmp_path / "python3").symlink_to(sys.executable)
    if name:
        write_program(tmp_path / name, script)
    with pytest.raises(ConnectionFailed) as failed:
        Connection(local_target(tmp_path, is_sudo))
    assert said in str(failed.value)


@pytest.mark.parametrize("is_sudo", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        "echo 'pyenv: python3: command not found' >&2; exit 127",
        f'{sys.executable} "$@" >/dev/null; exit 1',  # too old
        "cat",  # would take the program, which comes on standard input
    ],
)
def test_a_python_that_does_not_work_is_passed_over(tmp_path: Path, script: str, is_sudo: bool) -> None:
    shims, programs = tmp_path / "shims of pyenv", tmp_path / "bin"
    for directory in (shims, programs):
        directory.mkdir()
    write_program(shims / "python3", f"{script}; exit 1")
    (programs / "sh").symlink_to("/bin/sh")
    (programs / "cat").symlink_to("/bin/cat")
    (programs / "python3").symlink_to(sys.executable)
    write_program(programs / "sudo", '[ "$1" = -n ] && shift && exec "$@"')
    target = local_target(tmp_path, is_sudo)
    path = f"PATH={shims}:relative:{tmp_path}/missing:{programs}"
    target = replace(target, transport=("env", path, *target.transport[2:]))
    opened = Connection(target)
    assert opened.ask([["size", "/proc/version"]])["answers"] == [{"value": 0}]
    opened.close()


def test_sudo_never_asks_for_a_password(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "python3").symlink_to(sys.executable)
    write_program(tmp_path / "sudo", '[ "$1" = -n ] && shift && exec "$@"')
    opened = Connection(local_target(tmp_path, is_sudo=True))
    assert opened.ask([["size", "/proc/version"]])["answers"] == [{"value": 0}]
    opened.close()


def test_noise_before_the_greeting_is_skipped() -> None:
    target = local_target()
    noisy = Target(
        "node",
        (
            *target.transport[:2],
            f"printf 'Welcome\\r\\033[31m\\nto'; {target.transport[2]}",
            *target.transport[3:],
        ),
    )
    opened = Connection(noisy)
    assert opened.ask([["size", "/proc/version"]])["answers"] == [{"value": 0}]
    opened.close()


def test_a_late_answer_is_never_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = pack({"answers": [{"value": "late"}]}).decode().strip()
    opened = Connection(
        script_target(f"{_GREETED}; read -r ask; sleep 0.5; echo {late}; exec cat >/dev/null")
    )
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    with pytest.raises(ConnectionFailed, match="does not answer"):
        opened.ask([["size", "/"]])
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        opened.ask([["size", "/"]])


def test_a_node_that_reads_nothing_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Connection(script_target(f"{_GREETED}; exec sleep 100"))
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
    questions = [["size", os.urandom(40).hex()] for _ in range(10_000)]
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match="does not answer"):
        opened.ask(questions)
    assert time.monotonic() - began < 20


def test_a_flood_instead_of_an_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_LINE_BYTES", 1 << 20)
    opened = Connection(script_target(f"{_GREETED}; exec cat /dev/zero"))
    with pytest.raises(ConnectionFailed, match="more than gdrtop takes"):
        opened.ask([["size", "/"]])


def test_a_flood_of_errors_ends_a_round() -> None:
    with pytest.raises(ConnectionFailed, match="prints something else"):
        Connection(script_target(f"{_GREETED}; cat /dev/zero >&2; sleep 1")).ask([["size", "/"]])


def test_a_round_ends_with_the_reading_that_it_belongs_to() -> None:
    opened = Connection(script_target(f"{_GREETED}; exec sleep 100"))
    with pytest.raises(ConnectionFailed, match="does not answer"):
        opened.ask([["size", "/"]], until=time.monotonic())
    with pytest.raises(ConnectionFailed, match="does not answer"):
        Connection(script_target("exec sleep 100"), until=time.monotonic())


def test_closing_ends_a_question_that_another_thread_waits_for() -> None:
    opened = Connection(script_target(f"{_GREETED}; cat >/dev/null; sleep 100"))
    failures: list[str] = []

    def ask() -> None:
        try:
            opened.ask([["size", "/"]])
        except ConnectionFailed as error:
            failures.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    while not opened._lock.locked():
        time.sleep(0.001)
    opened.close()
    asking.join(10)
    assert failures == ["sh closed the connection"]
    opened.close()


def test_many_threads_get_their_own_answers() -> None:
    opened = Connection(local_target())
    found: dict[int, object] = {}

    def ask(number: int) -> None:
        found[number] = opened.ask([["environment", f"NUMBER_{number}"]] * number)["answers"]

    threads = [threading.Thread(target=ask, args=[number]) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.close()
    assert {number: len(answers) for number, answers in found.items() if isinstance(answers, list)} == {
        number: number for number in range(1, 9)
    }


@given(st.binary(max_size=200))
def test_any_line_is_a_message_or_garbled(line: bytes) -> None:
    for content in (line, base64.b64encode(line), base64.b64encode(zlib.compress(line))):
        with contextlib.suppress(ConnectionFailed):
            assert isinstance(unpack(content)[0], dict)


@pytest.mark.parametrize(
    "text",
    [
        b'{"answers": "' + b"x" * (9 << 20) + b'"}',
        b'{"answers": [' + b"{}," * 200_000 + b"{}]}",
        b'{"answers": [' + b'"a",' * 300_000 + b"1]}",
        b'{"answers": "\\ud83d' + b"x" * (7 << 20) + b'"}',
        '{"answers": "\U0001f600'.encode() + b"x" * (7 << 20) + b'"}',
    ],
    ids=["text", "objects", "texts", "wide", "unicode"],
)
def test_a_message_is_limited_by_the_memory_that_it_takes(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zlib packs a thousand bytes into one, and JSON an object of 64 bytes into three."""
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it is parsed"))
    with pytest.raises(ConnectionFailed, match="it sends more than gdrtop takes from a node"):
        unpack(base64.b64encode(zlib.compress(text)))


def test_a_message_that_is_none_is_garbled() -> None:
    deep = base64.b64encode(zlib.compress(b"[" * 100_000))
    for line in (deep, base64.b64encode(zlib.compress(json.dumps([1]).encode()))):
        with pytest.raises(ConnectionFailed, match="garbled"):
            unpack(line)


@settings(max_examples=30)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_a_transport_prints_is_shown_without_control_characters(errors: bytes, noise: bytes) -> None:
    shown = why_failed(errors, Target("node"), noise)
    assert shown.isprintable()
    assert 0 < len(shown) <= 250


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=id", "", "a b", "a;b", "a\n", "../x", "a/b", "a{host}", "-", "a" * 300]
)
def test_names_that_are_no_nodes_are_refused(name: str) -> None:
    with pytest.raises(NoSuchHost, match="is not the name of a node"):
        target_of(name)


def test_how_a_node_is_reached_needs_its_place() -> None:
    with pytest.raises(NoSuchHost, match=r"has no \{host\}"):
        target_of("node", "ssh -T")
    with pytest.raises(NoSuchHost, match="No closing quotation"):
        target_of("node", "ssh '{host}")


@pytest.mark.parametrize(
    ("over", "argv"),
    [
        ("", ["--", "user@node", "sh -c 'echo a b'"]),
        ("timeout 9 ssh -p 22 {host}", ["22", "user@node", "sh -c 'echo a b'"]),
        ("srun -w {host}", ["srun", "-w", "user@node", "sh", "-c", "echo a b"]),
    ],
)
def test_only_ssh_gets_a_command_for_a_shell(over: str, argv: list[str]) -> None:
    assert target_of("user@node", over).command(["sh", "-c", "echo a b"])[-len(argv) :] == argv
