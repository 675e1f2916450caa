"""Events of GPUs: lost, PCIe link retrained under load, throttled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from probes.base.evidence import Evidence, Severity
from probes.base.unknown import Unknown
from probes.host.nvml import NvmlLive
from probes.live.model.explanations import explained
from probes.live.model.sample import EventKind, GpuSample, LiveEvent, LiveSample
from probes.live.model.settled import Lasting, Settled
from probes.snapshot.condition import THROTTLED, Condition

FULL_SPEED_PERCENT = 10  # a GPU with this load runs its link at full speed
_BUSY_SAMPLES = 3  # until a link that was slowed down while idle is fast again
_MISSED = 3
OFF_THE_BUS = "fallen off the bus"  # NVML_ERROR_GPU_IS_LOST
_THROTTLED, _CLEAR = 3, 60  # samples
# A GPU at its power limit is normal in training, and so are clocks that are set or idle.
_NORMAL = ("power cap", "idle", "clock", "boost", "setting")


@dataclass
class _Gpu:
    is_known: bool = False  # NVML has shown figures
    is_lost: bool = False
    missed: int = 0
    link: Settled[tuple[int, int]] = field(default_factory=lambda: Settled(_BUSY_SAMPLES))
    width: Settled[int] = field(default_factory=lambda: Settled(_BUSY_SAMPLES))
    throttling: dict[str, Lasting] = field(default_factory=dict)
    throttled: Condition | None = None


def name_of(gpu: GpuSample) -> str:
    """Return "GPU 3 (0000:9b:00.0)"."""
    return gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU {gpu.index} ({gpu.bdf})"


class GpuEvents:
    """Compare the GPUs of each sample with those before."""

    def __init__(self) -> None:
        self._known: defaultdict[str, _Gpu] = defaultdict(_Gpu)

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return what has changed; nothing of GPUs that NVML does not show."""
        events: list[LiveEvent] = []
        any_known = any(not isinstance(gpu.live, Unknown) for gpu in sample.gpus)
        for gpu in sample.gpus:
            known = self._known[gpu.bdf]
            live = gpu.live
            if isinstance(live, Unknown):
                # Without any GPU, NVML itself does not answer, as while the driver is reloaded.
                if any_known or OFF_THE_BUS in live.detail:
                    events += _missed(known, gpu, sample.taken_at)
                known.throttling.clear()
                continue
            known.is_known, known.is_lost, known.missed = True, False, 0
            events += _link(known, gpu, live, sample.taken_at)
            events += _throttling(known, gpu, live, sample.taken_at)
        return events

    def conditions(self) -> Iterator[Condition]:
        """Yield the GPUs that are throttled, until they run at full speed for a minute or show no figures."""
        for gpu in self._known.values():
            if gpu.throttled is not None and any(lasting.is_on for lasting in gpu.throttling.values()):
                yield gpu.throttled


def _missed(known: _Gpu, gpu: GpuSample, at: float) -> list[LiveEvent]:
    known.missed += 1
    if not known.is_known or known.is_lost or known.missed < _MISSED:
        return []
    known.is_lost = True
    text = f"{name_of(gpu)} no longer responds, but the other GPUs do"
    if isinstance(gpu.live, Unknown) and OFF_THE_BUS in gpu.live.detail:
        text = f"{name_of(gpu)} has fallen off the bus"
    return [explained(at, EventKind.GPU_LOST, Severity.CRITICAL, gpu.bdf, text)]


def _link(known: _Gpu, gpu: GpuSample, live: NvmlLive, at: float) -> list[LiveEvent]:
    """Compare the link with the one before under load: idle GPUs lower their speed, but not their width."""
    if isinstance(live.link_width, Unknown) or isinstance(live.link_generation, Unknown):
        return []
    busy = live.utilization_percent
    if isinstance(busy, Unknown) or busy < FULL_SPEED_PERCENT:
        changed = known.width.update(live.link_width)
        if changed is None or known.link.value is None or known.link.value[1] == live.link_width:
            return []
        old: tuple[int, int] = known.link.value
        new = (old[0], live.link_width)
        known.link.value = new
        is_slower, (before, now) = new < old, (f"x{width}" for width in changed)
    else:
        known.width.update(live.link_width)
        link = known.link.update((live.link_generation, live.link_width))
        if link is None:
            return []
        before, now = (f"Gen{speed} x{width}" for speed, width in link)
        is_slower = link[1][0] < link[0][0] or link[1][1] < link[0][1]
    text = f"the PCIe link of {name_of(gpu)} changed from {before} to {now}"
    severity = Severity.WARNING if is_slower else Severity.NOTE
    return [explained(at, EventKind.LINK_RETRAINED, severity, gpu.bdf, text)]


def _throttling(known: _Gpu, gpu: GpuSample, live: NvmlLive, at: float) -> list[LiveEvent]:
    if isinstance(live.throttle_reasons, Unknown):
        known.throttling.clear()
        return []
    reasons = {
        reason for reason in live.throttle_reasons if not any(word in reason.lower() for word in _NORMAL)
    }
    for reason in reasons:
        known.throttling.setdefault(reason, Lasting(_THROTTLED, _CLEAR))
    begun = [reason for reason, lasting in known.throttling.items() if lasting.update(reason in reasons)]
    if not begun:
        return []
    reason = ", ".join(sorted(begun))
    text, shown = f"{name_of(gpu)} is throttled ({reason})", Evidence(f"NVML, {gpu.bdf}", reason)
    known.throttled = Condition(THROTTLED, gpu.bdf, text, at, evidence=(shown,), devices=(gpu.bdf,))
    return [explained(at, EventKind.THROTTLED, Severity.WARNING, gpu.bdf, text)]
