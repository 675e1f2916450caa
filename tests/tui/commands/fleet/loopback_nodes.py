"""A stand-in for ssh: a node's questions go to a simulated node, and its benchmark tools run here.

Only nodes named "busy…" have running jobs.

python -m tests.tui.commands.fleet.loopback_nodes 'gpu1=pcie-l40s;gpu2=dead' {host} sh -c COMMAND
"""

import os
import sys

from probes.host.remote.transport import collector_source
from probes.simulation.host import SimulatedHost
from tests.probes.host.remote import stand_in


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
