"""The dashboard on a simulated node that is far bigger than usual: `… tests.perf.crowded_app 256 256`.

On SIGUSR1 it writes the CPU seconds of the simulated node's answers, which are not gdrtop's, to a file.
"""

from __future__ import annotations

import argparse
import gc
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.crowded_node import add_processes, crowded_node


def main() -> None:
    """Open the dashboard as tui/cli.py does, on the node that the arguments describe."""
    gc.disable()
    parser = argparse.ArgumentParser(prog="python -m tests.perf.crowded_app")
    for name in ("gpus", "nics"):
        parser.add_argument(name, type=int)
    for option in ("--functions", "--processes"):
        parser.add_argument(option, type=int, default=0)
    parser.add_argument("--seconds-file", type=Path)
    options = parser.parse_args()
    from probes.base.origin import Origin, Source
    from tui.app import GdrtopApp
    from tui.runtime.memory import collect_garbage_rarely, limit_malloc

    limit_malloc()

    def open_host() -> Any:
        from probes.simulation.host import SimulatedHost
        from tests.perf.live import TimedHost

        began = time.thread_time()
        description = crowded_node(options.gpus, options.nics, options.functions)
        simulated = SimulatedHost("crowded", clock=time.monotonic, description=description)
        add_processes(simulated.tree, options.processes)
        built = time.thread_time() - began
        host.append(TimedHost(simulated))
        host[0].seconds += built
        return host[0]

    def write_seconds(*_: object) -> None:
        options.seconds_file.write_text(f"{host[0].seconds}\n")

    host: list[Any] = []
    if options.seconds_file is not None:
        signal.signal(signal.SIGUSR1, write_seconds)
    collect_garbage_rarely()
    GdrtopApp(open_host, Origin(Source.SIMULATED, "crowded")).run()


if __name__ == "__main__":
    main()
