"""`gdrtop fleet bench` between nodes behind real ssh servers, with tools that print what perftest prints."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.process_families import ROOT, wait_for
from tests.support.sshd import Network, complaint, is_running, network
from tests.tui.commands.fleet.loopback_nodes import write_perftest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(complaint()), reason=f"no ssh server can be started: {complaint()}"),
]
GDRTOP = """
import sys
from pathlib import Path
from tests.tui.commands.fleet.loopback_nodes import server_source
from tui.bandwidth.pairs import remote_processes
from tui.cli import main
source = server_source(Path({tools!r}))
remote_processes.server_source = lambda: source
sys.exit(main("fleet bench -w gpu[1-2] --memory host --yes".split()))
"""
# A server says that it waits, as perftest does; both ends ignore what would end them, and have a child.
ENDLESS = """#!/bin/sh
trap '' HUP TERM INT
echo '* Waiting for client to connect... *'
sleep 1000 &
echo $$ $! >> {directory}/pids
sleep 1000
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Network]:
    """Two nodes whose facts are those of a simulated node, without jobs."""
    with network(tmp_path) as found:
        for name in ("gpu1", "gpu2"):
            stand_in = [sys.executable, "-m", "tests.tui.commands.fleet.loopback_nodes", f"{name}=pcie-l40s"]
            node = shlex.join([*stand_in, name, "sh", "-c"])
            found.serve(name, f'ForceCommand cd {ROOT} && exec {node} "$SSH_ORIGINAL_COMMAND"')
        yield found


def start(nodes: Network, tools: Path) -> psutil.Popen:
    return nodes.start("-c", GDRTOP.format(tools=str(tools)))


def test_two_nodes_are_measured_and_nothing_is_left(nodes: Network, tmp_path: Path) -> None:
    bench = start(nodes, write_perftest(tmp_path))
    out, errors = bench.communicate()
    assert "The usual NIC reaches 188 Gb/s with host memory." in out, errors
    assert (bench.returncode, (tmp_path / "log").read_text()) == (0, "started\nstarted\n")
    wait_for(lambda: not nodes.sessions())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_benchmark_tool_outlives_gdrtop(nodes: Network, tmp_path: Path, number: signal.Signals) -> None:
    bench = start(nodes, write_perftest(tmp_path, ENDLESS))
    pids = tmp_path / "pids"
    wait_for(lambda: (pids.exists() and pids.read_text().count("\n") == 2) or bench.poll() is not None)
    assert bench.poll() is None, bench.communicate()
    tools = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    if number == signal.SIGINT:  # a terminal sends it to the whole group
        os.killpg(bench.pid, number)
    else:
        bench.send_signal(number)
    _, errors = bench.communicate()
    assert "Traceback" not in errors
    wait_for(lambda: not nodes.sessions())
    wait_for(lambda: not any(map(is_running, tools)))
