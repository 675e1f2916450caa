"""The dashboard on a simulated node that is far bigger than usual: `… tests.perf.crowded_app 256 256`."""

from __future__ import annotations

import argparse
import gc
import time

from tests.perf.crowded_node import add_processes, crowded_node


def main() -> None:
    """Open the dashboard as tui/cli.py does, on the node that the arguments describe."""
    gc.disable()
    parser = argparse.ArgumentParser(prog="python -m tests.perf.crowded_app")
    for name in ("gpus", "nics"):
        parser.add_argument(name, type=int)
    for option in ("--functions", "--processes"):
        parser.add_argument(option, type=int, default=0)
    options = parser.parse_args()
    from probes.base.origin import Origin, Source
    from probes.host.protocol import Host
    from tui.app import GdrtopApp
    from tui.runtime.memory import collect_garbage_rarely, limit_malloc

    limit_malloc()

    def open_host() -> Host:
        from probes.simulation.host import SimulatedHost

        description = crowded_node(options.gpus, options.nics, options.functions)
        host = SimulatedHost("crowded", clock=time.monotonic, description=description)
        add_processes(host.tree, options.processes)
        return host

    collect_garbage_rarely()
    GdrtopApp(open_host, Origin(Source.SIMULATED, "crowded")).run()


if __name__ == "__main__":
    main()
