"""An idle simulated node: no job, idle GPUs, counters that only tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.base.unknown import Maybe, Unknown
from probes.host.nvml import NvmlLive
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.jobs.processes import add_rank
from tests.support.simulated_commands import end_job

_JOB_PID = 4242


class QuietHost(SimulatedHost):
    """A node whose job has ended; `start_job` starts another one."""

    def __init__(self, name: str = "hgx-h100", clock: Callable[[], float] = lambda: 1000.0) -> None:
        super().__init__(name, clock=clock)
        end_job(self)
        for nic in self.tree.nics:
            for counter in ("port_xmit_data", "port_rcv_data"):
                self.tree.add(f"{port_of(nic)}/counters/{counter}", "1000\n")

    def nvml_live(self) -> Maybe[tuple[NvmlLive, ...]]:
        live = super().nvml_live()
        if isinstance(live, Unknown):
            return live
        return tuple(replace(gpu, utilization_percent=0, memory_used_bytes=600 << 20) for gpu in live)

    def start_job(self) -> None:
        add_rank(self.tree, _JOB_PID)

    def stop_job(self) -> None:
        self.tree.remove(f"/proc/{_JOB_PID}")
