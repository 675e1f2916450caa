"""What changed between samples, as events; debounced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from probes.base.unknown import Maybe, Unknown
from probes.host.answers import KernelMessage
from probes.live.events.conditions import Conditions
from probes.live.events.errors import ErrorEvents
from probes.live.events.gpus import GpuEvents
from probes.live.events.kernel import KernelEvents, limit_of
from probes.live.events.node import MissedSamples, ModuleEvents, PeermemEvents
from probes.live.events.ports import NicLinkEvents, PortEvents
from probes.live.events.processes import ProcessEvents
from probes.live.events.rates import RateEvents
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, failed
from probes.snapshot.condition import Condition

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
