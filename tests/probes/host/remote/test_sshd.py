"""gdrtop against real ssh servers: each node that cannot be read says why, and nothing is left on any."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from probes.host.remote.transport import GARBLED, NOISY, SILENT
from tests.support.process_families import wait_for
from tests.support.sshd import Network, complaint, is_running, network
from tests.support.system_packages import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(complaint()), reason=f"no ssh server can be started: {complaint()}"),
]
COMMAND = 'sh -c "$SSH_ORIGINAL_COMMAND"'
MUTED = f"ForceCommand {COMMAND} | tail -c 1"  # its collector waits, and nothing arrives before it ends
SECONDS = 20
READ = ("good", "talkative", "slow", "other-python")
REASONS = {
    "closed": "it refuses connections to its ssh port",
    "unresolved": "no such host",
    "silent": "it does not answer on its ssh port",
    "http": "what listens on its ssh port is no ssh server",
    "bytes": "what listens on its ssh port is no ssh server",
    "full": "its ssh server closes connections before login; check MaxStartups there, or who may connect",
    "beyond": "its jump host cannot reach its ssh port",
    "stranger": "it accepts no key of yours; make `ssh stranger true` work without a password",
    "unknown": "its host key is unknown; run `ssh unknown` once to check and accept it",
    "changed": "its host key has changed; find out why, then remove the old one with `ssh-keygen -R changed`",
    "noise": NOISY,
    "flood": NOISY,
    "loud": NOISY,
    "garbled": GARBLED,
    "no-python": "it has no Python 3.6 or newer; install python3 there, or use --root with a copy of /",
    "broken-python": "python3: libpython3.9.so.1.0: cannot open shared object file",
    "old-python": "its Python is older than 3.6; install a newer python3 there",
    "no-shell": "ssh closed the connection; the node printed: This account is currently not available.",
    "hung": SILENT,
}
OTHER_PYTHON = f'echo loaded module python; echo use conda >&2; exec {sys.executable} "$@"'
BROKEN_PYTHON = "echo python3: libpython3.9.so.1.0: cannot open shared object file >&2; exit 127"
OLD_PYTHON = f'{sys.executable} "$@" <&- >&-; echo Python 2.7 is too old for gdrtop >&2; exit 1'


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """All of them; each is read by many tests."""
    directory = tmp_path_factory.mktemp("network")
    with network(directory) as found:
        _serve_good(found, directory)
        _refuse(found)
        _misbehave(found, directory)
        yield found


def _serve_good(found: Network, directory: Path) -> None:
    (directory / "banner").write_text("Authorized use only.\n")
    found.serve("good")
    found.serve("talkative", f"Banner {directory}/banner\nForceCommand echo welcome; {COMMAND}")
    found.serve("slow", f"ForceCommand sleep 2; {COMMAND}")
    found.serve("other-python", _with_python(directory / "other-python", OTHER_PYTHON))


def _refuse(found: Network) -> None:
    found.add("closed", free_port())
    found.add("unresolved", 22, more="HostName no-such-node.invalid")
    found.listen("silent")
    found.listen("http", b"HTTP/1.1 400 Bad Request\r\n\r\n")
    found.listen("bytes", bytes(range(256)))
    port = found.serve("full", "MaxStartups 1")
    found.hold(socket.create_connection(("127.0.0.1", port)))
    found.serve("jump", "AllowTcpForwarding no")
    found.add("beyond", free_port(), more="ProxyJump jump")
    found.serve("stranger", "AuthorizedKeysFile none")
    found.serve("unknown", known="")
    found.serve("changed", known="other")


def _misbehave(found: Network, directory: Path) -> None:
    found.serve("noise", "ForceCommand cat /dev/urandom")
    found.serve("flood", "ForceCommand yes")
    found.serve("loud", "ForceCommand yes >&2")
    found.serve("garbled", f"ForceCommand {COMMAND} | sed -u 's/^e/garbage:/'")
    found.serve("no-python", _with_python(directory / "no-python", ""))
    found.serve("broken-python", _with_python(directory / "broken-python", BROKEN_PYTHON))
    found.serve("old-python", _with_python(directory / "old-python", OLD_PYTHON))
    found.serve("no-shell", "ForceCommand echo This account is currently not available.; exit 1")
    found.serve("hung", "ForceCommand sleep 1000")


def _with_python(path: Path, script: str) -> str:
    """Return the configuration of a node whose shell finds this python3 and nothing else, or none."""
    path.mkdir()
    (path / "sh").symlink_to("/bin/sh")
    if script:
        (path / "python3").write_text(f"#!/bin/sh\n{script}\n")
        (path / "python3").chmod(0o755)
    return f"ForceCommand export PATH={path}; {COMMAND}"


@pytest.mark.parametrize("node", READ)
def test_check_of_a_node_over_ssh_judges_it_like_check_on_it(nodes: Network, node: str) -> None:
    status, out, errors = nodes.gdrtop("check", "--json", "--host", node)
    here, own, _ = nodes.gdrtop("check", "--json")
    assert (errors, status) == ("", here)
    assert _judged(out) == _judged(own)


def _judged(document: str) -> object:
    found = json.loads(document)
    return found["verdict"]["state"], sorted(finding["id"] for finding in found["findings"])


@pytest.mark.parametrize("node", REASONS)
def test_a_node_that_cannot_be_read_says_why(nodes: Network, node: str) -> None:
    assert nodes.gdrtop("check", "--host", node) == (3, "", f"gdrtop: cannot read {node}: {REASONS[node]}\n")


def test_a_fleet_lists_each_node_with_its_verdict_or_its_reason(nodes: Network) -> None:
    names = ",".join((*READ, *REASONS))
    status, out, errors = nodes.gdrtop("fleet", "check", "--json", "-w", names, "--timeout", str(SECONDS))
    found = json.loads(out)
    assert (status, errors) == (3, "")
    assert sorted(node for group in found["groups"] for node in group["nodes"]) == sorted(READ)
    late = f"it did not answer within {SECONDS} s"
    assert {each["node"]: each["reason"] for each in found["unanswered"]} == {**REASONS, "hung": late}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(("command", "nodes"), [("check --host muted1", 1), ("fleet check -w muted[1-2]", 2)])
def test_no_collector_outlives_gdrtop(
    tmp_path: Path, command: str, nodes: int, number: signal.Signals
) -> None:
    with network(tmp_path) as found:
        found.serve("muted1", MUTED)
        found.serve("muted2", MUTED)
        gdrtop = found.start("-m", "tui", *command.split())
        wait_for(lambda: len(found.collectors()) == nodes)
        below = psutil.Process(gdrtop.pid).children(recursive=True)
        assert any(process.name() == "ssh" for process in below)
        if number == signal.SIGINT:  # a terminal sends it to the whole group
            os.killpg(gdrtop.pid, number)
        else:
            gdrtop.send_signal(number)
        out, errors = gdrtop.communicate()
        assert (out, "Traceback" in errors) == ("", False)
        wait_for(lambda: not found.collectors())
        wait_for(lambda: not any(map(is_running, below)))
