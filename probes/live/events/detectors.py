"""What changed between samples, as debounced events; those of the node itself are made here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import median

from probes.base.evidence import Severity
from probes.base.text import minutes
from probes.base.unknown import Maybe, Unknown
from probes.host.protocol import KernelMessage
from probes.live.events.conditions import Conditions
from probes.live.events.errors import ErrorEvents
from probes.live.events.gpus import GpuEvents
from probes.live.events.kernel import KernelEvents, limit_of
from probes.live.events.ports import NicLinkEvents, PortEvents
from probes.live.events.processes import ProcessEvents
from probes.live.events.rates import RateEvents
from probes.live.model.explanations import EXPLANATIONS
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, failed
from probes.snapshot.condition import Condition

# Events of the node: modules, the use of nvidia_peermem, and samples that gdrtop missed.

_LOADED = ("live", "built-in", "builtin")
_NOT_LOADED = "not loaded"
_USUAL_SECONDS = 1.0
_GAPS = 9  # that the interval is taken from
_MISSED = 3  # intervals


class ModuleEvents:
    """Compare the loaded modules."""

    def __init__(self) -> None:
        self._loaded: dict[str, bool] = {}
        self._modules: object = None  # of the sample before

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the modules that were loaded or unloaded; nothing while their state is unknown."""
        events: list[LiveEvent] = []
        if sample.modules is self._modules:
            return events
        self._modules = sample.modules
        for name, state in sample.modules.items():
            if state not in (*_LOADED, _NOT_LOADED):
                continue  # being loaded or unloaded
            is_loaded = state != _NOT_LOADED
            before = self._loaded.get(name)
            self._loaded[name] = is_loaded
            if before is not None and before != is_loaded:
                kind = EventKind.MODULE_LOADED if is_loaded else EventKind.MODULE_UNLOADED
                severity = Severity.NOTE if is_loaded else Severity.WARNING
                text = f"{name} was {'loaded' if is_loaded else 'unloaded'}"
                events.append(LiveEvent(sample.taken_at, kind, severity, name, text, EXPLANATIONS[kind]))
        return events


class PeermemEvents:
    """Compare the reference count of nvidia_peermem."""

    def __init__(self) -> None:
        self._is_used: bool | None = None

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return that the count left or reached 0; nothing while it is unknown."""
        count = sample.peermem.refcnt
        if isinstance(count, Unknown):
            return []
        before, self._is_used = self._is_used, count > 0
        if before is None or before == self._is_used:
            return []
        kind = EventKind.PEERMEM_IN_USE if self._is_used else EventKind.PEERMEM_RELEASED
        text = f"nvidia_peermem is in use (reference count {count})"
        if not self._is_used:
            text = "nvidia_peermem is no longer in use (reference count 0)"
        return [LiveEvent(sample.taken_at, kind, Severity.NOTE, "nvidia_peermem", text, EXPLANATIONS[kind])]


class MissedSamples:
    """Compare the time between samples with the usual one."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._gaps: deque[float] = deque(maxlen=_GAPS)

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return that gdrtop took no sample for more than three intervals."""
        before, self._at = self._at, sample.at
        if before is None:
            return []
        gap = sample.at - before
        usual = max(_USUAL_SECONDS, median(self._gaps) if self._gaps else _USUAL_SECONDS)
        self._gaps.append(gap)
        if gap <= _MISSED * usual:
            return []
        kind = EventKind.SAMPLES_MISSED
        text = f"gdrtop took no sample for {minutes(gap)}"
        return [LiveEvent(sample.taken_at, kind, Severity.NOTE, "gdrtop", text, EXPLANATIONS[kind])]


_ONE_LOSS_SECONDS = 120.0  # NVML and several kernel messages report one lost GPU


class EventDetector:
    """Compare each sample with the ones before."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._at: float | None = None
        self._kernel = KernelEvents()
        self._lost: dict[str, float] = {}
        # Causes before their effects.
        self._gpus, self._ports, self._processes = GpuEvents(), PortEvents(), ProcessEvents()
        self._rates, self._errors = RateEvents(), ErrorEvents()
        self._conditions = Conditions()
        self._detectors: dict[str, Callable[[LiveSample], list[LiveEvent]]] = {
            "missed samples": MissedSamples().update,
            "modules": ModuleEvents().update,
            "GPUs": self._gpus.update,
            "PCIe links of NICs": NicLinkEvents().update,
            "ports": self._ports.update,
            "processes": self._processes.update,
            "nvidia_peermem": PeermemEvents().update,
            "rates": self._rates.update,
            "error counters": self._errors.update,
        }

    def update(
        self,
        sample: LiveSample,
        messages: Maybe[tuple[KernelMessage, ...]],
        names: Mapping[str, str] | None = None,
    ) -> LiveSample:
        """Return the sample with its events, and with limits for what could not be followed.

        `names`: of the devices that kernel messages give as BDFs. A detector that fails costs only its own
        events.
        """
        if self._at is not None and sample.at < self._at:
            self._start()  # a recording was rewound
        self._at = sample.at
        limits = list(sample.limits)
        if isinstance(messages, Unknown):
            limits.append(limit_of(messages))
        events: list[LiveEvent] = []
        try:
            events += self._kernel.update(messages, sample.at, sample.taken_at, names)
        except Exception as error:
            limits.append(failed("kernel messages", error))
        for name, detect in self._detectors.items():
            try:
                events += detect(sample)
            except Exception as error:
                limits.append(failed(f"events of {name}", error))
        events = [event for event in events if not self._is_known_loss(event, sample.at)]
        watched = sample.watched
        try:
            watched = self._conditions.update(sample, self._detected(sample), self._processes.is_stopped)
        except Exception as error:
            limits.append(failed("what lasts", error))
        return replace(
            sample,
            events=tuple(events),
            downs=self._ports.downs,
            limits=tuple(dict.fromkeys(limits)),
            watched=watched,
        )

    def _detected(self, sample: LiveSample) -> Iterator[Condition]:
        """Yield the conditions of the detectors that compare samples; a job that waits comes last."""
        yield from self._ports.conditions()
        yield from self._gpus.conditions()
        yield from self._processes.conditions(sample)
        yield from self._errors.conditions()
        yield from self._rates.congested(sample, self._errors.congested())
        yield from self._rates.conditions()

    def _is_known_loss(self, event: LiveEvent, at: float) -> bool:
        """Return whether a lost GPU was reported already, by NVML, by Xid 79 or by another message."""
        is_loss = event.kind is EventKind.GPU_LOST
        if not is_loss and not (event.kind is EventKind.XID and event.text.startswith("Xid 79 ")):
            return False
        before = self._lost.get(event.subject)
        self._lost[event.subject] = at
        return is_loss and before is not None and at - before < _ONE_LOSS_SECONDS
