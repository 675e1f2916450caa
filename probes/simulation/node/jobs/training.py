"""The phases of the simulated training job: all-reduce, compute and checkpoint, by seed and time.

Times in seconds since the node started; before it was opened, the job was in one long all-reduce.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from functools import cache
from itertools import accumulate

from probes.base.frozen import frozen
from probes.simulation.node.model.description import NicDescription
from probes.simulation.node.model.waves import Steps

OPENED = 3600.0  # when gdrtop opens the node: the job has been running for an hour
_COMPUTE_SECONDS, _CHECKPOINT_SECONDS = 3.0, 8.0
_STEPS_BEFORE_CHECKPOINT = 3
_MOST_ABOVE_MEAN = 1.32  # a wave's highest value, as a share of its mean


class Phase(Enum):
    """What the job does; real steps are shorter than a second and not visible in rates."""

    ALL_REDUCE = "all-reduce"
    COMPUTE = "compute"
    CHECKPOINT = "checkpoint"


_COMPUTE_TRAFFIC = {Phase.ALL_REDUCE: 1.0, Phase.COMPUTE: 0.15, Phase.CHECKPOINT: 0.05}
_CHECKPOINT_TRAFFIC = 3.0  # of storage NICs
_GPU_LOAD = {Phase.ALL_REDUCE: 1.0, Phase.COMPUTE: 1.2, Phase.CHECKPOINT: 0.4}


@frozen
class Schedule:
    """One round of phases: their names, and when they end, in seconds since the round began."""

    phases: tuple[Phase, ...]
    ends: tuple[float, ...]

    def step(self, number: int) -> tuple[float, Phase]:
        """Return the end and the name of phase `number`; number 0 also covers the time before OPENED."""
        rounds, place = divmod(number, len(self.phases))
        return OPENED + rounds * self.ends[-1] + self.ends[place], self.phases[place]

    def at(self, seconds: float) -> Phase:
        """Return the phase at a moment."""
        since = max(0.0, seconds - OPENED) % self.ends[-1]
        return self.phases[min(bisect_right(self.ends, since), len(self.phases) - 1)]


@cache
def schedule(seed: int) -> Schedule:
    """Return the schedule of a seed; all-reduces take 14 to 20 s."""
    phases = (Phase.ALL_REDUCE, Phase.COMPUTE) * _STEPS_BEFORE_CHECKPOINT + (
        Phase.ALL_REDUCE,
        Phase.CHECKPOINT,
    )
    seconds = {
        Phase.ALL_REDUCE: 14.0 + seed % 7,
        Phase.COMPUTE: _COMPUTE_SECONDS,
        Phase.CHECKPOINT: _CHECKPOINT_SECONDS,
    }
    return Schedule(phases, tuple(accumulate(seconds[phase] for phase in phases)))


def traffic_steps(seed: int, nic: NicDescription, is_storage: bool) -> Steps:
    """Return the factor by which the phases change a NIC's traffic, within its line rate."""
    plan = schedule(seed)
    most = float(nic.rate.partition(" ")[0]) / (nic.gbps * _MOST_ABOVE_MEAN) if nic.gbps else 1.0

    def step(number: int) -> tuple[float, float]:
        until, phase = plan.step(number)
        if is_storage:
            return until, min(_CHECKPOINT_TRAFFIC, most) if phase is Phase.CHECKPOINT else 1.0
        return until, _COMPUTE_TRAFFIC[phase]

    return Steps(step)


def gpu_load(seed: int, seconds: float) -> float:
    """Return the factor by which the phase changes a GPU's load."""
    return _GPU_LOAD[schedule(seed).at(seconds)]


def gpu_traffic(seed: int, seconds: float) -> float:
    """Return the factor by which the phase changes a GPU's PCIe and NVLink traffic."""
    return _COMPUTE_TRAFFIC[schedule(seed).at(seconds)]
