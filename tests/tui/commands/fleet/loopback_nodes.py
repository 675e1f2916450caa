"""A stand-in for ssh: a node's questions go to a simulated node, and its benchmark tools run here.

Only nodes named "busy…" have running jobs.

python -m tests.tui.commands.fleet.loopback_nodes 'gpu1=pcie-l40s;gpu2=dead' {host} sh -c COMMAND
"""

import os
import sys
from pathlib import Path

from probes.host.remote import collector
from probes.host.remote.transport import collector_source, program
from probes.simulation.host import SimulatedHost
from tests.support import stand_in
from tui.bandwidth import supervisor
from tui.bandwidth.pairs import node_server

PERFTEST = """#!/bin/sh
# Both ends of a test; they meet in a file. The server's arguments end with an option.
echo started >> {directory}/log
for last; do :; done
case $last in
--*) echo '* Waiting for client to connect... *'
  while [ ! -e {directory}/done ]; do sleep 0.05; done
  rm {directory}/done;;
*) echo '                    RDMA_Write BW Test'
  echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
  echo ' 1048576    112303           0.00               188.41                       0.022461'
  touch {directory}/done;;
esac
"""


def write_perftest(directory: Path, script: str = PERFTEST) -> Path:
    """Write the tools that a test runs; return the directory that has them."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("numactl", "ib_write_bw"):
        (tools / name).write_text(script.format(directory=directory))
        (tools / name).chmod(0o755)
    return tools


def server_source(tools: Path) -> bytes:
    """Return the program that runs benchmark tools on a node, which trusts only this directory."""
    start = (
        f"import sys\nsys.modules[{collector.__name__!r}].TRUSTED_PATH = ({str(tools)!r},)\n"
        f"from {node_server.__name__} import main\nmain(60)"
    )
    return program(start, collector, supervisor, node_server)


def idle_host(label: str, seed: int) -> SimulatedHost:
    host = SimulatedHost(label, seed)
    host.reboot(with_jobs=False)
    return host


def main(fleet: str, node: str, *command: str) -> None:
    """Be that node."""
    if f"read({len(collector_source())})" in command[-1]:
        if not node.startswith("busy"):
            stand_in.SimulatedHost = idle_host  # type: ignore[misc, assignment]
        stand_in.main(fleet, node, *command)
    elif stand_in.nodes_in(fleet).get(node) == "dead":
        sys.exit(f"ssh: Could not resolve hostname {node}: Name or service not known")
    else:
        os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
