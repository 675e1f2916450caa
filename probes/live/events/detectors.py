"""What changed between samples, as debounced events; those of the node and its kernel log are made here."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from probes.base.evidence import Severity
from probes.base.text import minutes, printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel import log
from probes.facts.kernel.log import LogKind
from probes.host.protocol import KernelMessage
from probes.live.events.conditions import Conditions
from probes.live.events.errors import ErrorEvents
from probes.live.events.gpus import GpuEvents
from probes.live.events.ports import NicLinkEvents, PortEvents
from probes.live.events.processes import ProcessEvents
from probes.live.events.rates import RateEvents
from probes.live.model.explanations import explained, explanation_of
from probes.live.model.sample import EventKind, LiveEvent, LiveSample, part
from probes.live.model.settled import Settled
from probes.messages.message import Weight
from probes.queries import kernel_log
from probes.snapshot.condition import Condition

# Events from the kernel log: those about GPUs, NICs and what connects them, each with what it means.

_TEXT = 200  # characters
_REPEAT_SECONDS = 60.0  # the same text is counted for this long
_MAX_TEXTS = 512
_MAX_EVENTS, _MAX_EVENTS_SECONDS = 30, 60.0  # over all texts
_BOOT_SECONDS = 300.0  # what drivers log while they start
_AT_BOOT = (LogKind.NVLINK, LogKind.PCIE_BANDWIDTH)
_WARNING = 4  # the kernel's priority
_RELEVANT = re.compile(
    r"NVRM:|nvidia|nv_peer_mem|peer_?mem|mlx[45]_(?:core|ib)|infiniband|\bib_(?:core|uverbs|umad|cm)\b"
    rf"|\brdma_rxe\b|\bAER:|pcieport|DMAR|AMD-Vi|arm-smmu|iommu|\b{log.OTHER_NICS}",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LINK_DOWN = re.compile(r": (Port: \d{1,3} )?(?:NIC )?Link (?:is )?(?:down|DOWN|Down)$")
_ONE_CHANGE_SECONDS = 5.0
_NO_EVENT = (Weight.HARMLESS, Weight.FOLLOWS)
_FINE = (LogKind.UNSIGNED, LogKind.LOCKDOWN, LogKind.HUNG_TASK)
_CRITICAL_XIDS = (*kernel_log.LOST, *kernel_log.GSP)


def limit_of(messages: Unknown) -> str:
    """Return one sentence that says why the kernel log is not followed."""
    if messages.reason is Reason.NEEDS_ROOT:
        return "Run as root to see kernel messages as they arrive"
    if messages.reason is Reason.NOT_RECORDED:
        return "The recording has no kernel messages"
    return f"Kernel messages are not visible ({messages})"


@dataclass
class _Seen:
    at: float
    event: LiveEvent
    more: int = 0


class KernelEvents:
    """Classify kernel messages; count repeated ones."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._reported: deque[float] = deque()
        self._links_down: dict[str, tuple[bool, float]] = {}  # by BDF: whether the RDMA device said it, when
        self._left_out = 0

    def update(
        self,
        messages: Maybe[tuple[KernelMessage, ...]],
        at: float,
        taken_at: float,
        names: Mapping[str, str] | None = None,
    ) -> list[LiveEvent]:
        """Return the new messages that matter.

        `at`: Host.monotonic(), `taken_at`: seconds since 1970, `names`: "GPU 3", "mlx5_0" by BDF.
        """
        events = self._repeated(at, taken_at)
        for message in () if isinstance(messages, Unknown) else messages:
            event = _classify(message, taken_at, names or {})
            if event is None or self._is_second_line(event, message.at):
                continue
            # The text with its numbers left out, except that of an Xid.
            words = event.text.split(maxsplit=2) if event.kind is EventKind.XID else ()
            key = f"{event.kind.value} {event.subject} {' '.join(words[:2])} {_NUMBERS.sub('#', event.text)}"
            if (seen := self._seen.get(key)) is not None:
                seen.more += 1
            elif self._may_report(at) or event.severity is Severity.CRITICAL:
                while len(self._seen) >= _MAX_TEXTS:
                    del self._seen[next(iter(self._seen))]
                self._seen[key] = _Seen(at, event)
                events.append(event)
            else:
                self._left_out += 1
        return events

    def _is_second_line(self, event: LiveEvent, logged_at: float) -> bool:
        """Say whether the other device of an Ethernet port, netdev or RDMA, has already logged this."""
        if (line := _LINK_DOWN.search(event.text)) is None:
            return False
        by_rdma = line[1] is not None
        earlier = self._links_down.get(event.subject)
        if earlier and earlier[0] != by_rdma and abs(logged_at - earlier[1]) < _ONE_CHANGE_SECONDS:
            return True
        while len(self._links_down) >= _MAX_TEXTS:
            del self._links_down[next(iter(self._links_down))]
        self._links_down[event.subject] = by_rdma, logged_at
        return False

    def _may_report(self, at: float) -> bool:
        while self._reported and not 0 <= at - self._reported[0] < _MAX_EVENTS_SECONDS:
            self._reported.popleft()
        if len(self._reported) >= _MAX_EVENTS:
            return False
        self._reported.append(at)
        return True

    def _repeated(self, at: float, taken_at: float) -> list[LiveEvent]:
        """Report how often the texts of a minute ago were repeated, and forget them."""
        events = []
        for key in [key for key, seen in self._seen.items() if not 0 <= at - seen.at < _REPEAT_SECONDS]:
            seen = self._seen.pop(key)
            if seen.more:
                times = "once more" if seen.more == 1 else f"{seen.more:,} more times"
                text = f"{times} in the last minute: {seen.event.text}"
                events.append(replace(seen.event, at=taken_at, text=text))
                self._seen[key] = _Seen(at, seen.event)
        if self._left_out and self._may_report(at):
            text = f"{self._left_out:,} further kernel messages about GPUs and NICs are not listed"
            kind = EventKind.KERNEL_MESSAGE
            events.append(explained(taken_at, kind, Severity.NOTE, "kernel log", text))
            self._left_out = 0
        return events


def _classify(message: KernelMessage, at: float, names: Mapping[str, str]) -> LiveEvent | None:
    known = log.recognize(message.text, message.at)
    if known is None and (message.priority > _WARNING or not _RELEVANT.search(message.text)):
        return None
    is_boot = message.at < _BOOT_SECONDS
    if is_boot and known and (known.kind in _AT_BOOT or log.may_be_unused_port(known)):
        return None
    text, meaning = printable(message.text, _TEXT), kernel_log.meaning_of(message.text)
    explanation = kernel_log.explanation_of(meaning) or explanation_of(EventKind.KERNEL_MESSAGE)
    if known is None:
        weight = Weight.NOTE if meaning is None else meaning.weight
        if weight in _NO_EVENT:
            return None
        severity = Severity.NOTE if weight is Weight.NOTE else Severity.WARNING
        return LiveEvent(at, EventKind.KERNEL_MESSAGE, severity, "kernel log", text, explanation)
    kind = known.kind
    subject = known.bdf or known.module or "kernel log"
    if kind is LogKind.HUNG_TASK and known.number:
        subject = f"pid {known.number}"
    name = names.get(subject, "")
    if kind is LogKind.XID:
        number = known.number
        severity = Severity.WARNING
        if number in _CRITICAL_XIDS:
            severity = Severity.CRITICAL
        elif number in kernel_log.PROGRAM:
            severity = Severity.NOTE
        said = printable(message.text.partition("): ")[2], _TEXT)
        said = (said.partition(", ")[2] or said).removeprefix("pid='<unknown>', name=<unknown>, ")
        where = f"{name} ({subject})" if name else subject
        text = f"Xid {number} on {where}: {said.rstrip('.')}"
        explanation = kernel_log.explanation_of(meaning) or explanation_of(EventKind.XID)
        return LiveEvent(at, EventKind.XID, severity, subject, text, explanation)
    text = f"{name}: {text}" if name else text
    if kind is LogKind.GPU_LOST:
        return LiveEvent(at, EventKind.GPU_LOST, Severity.CRITICAL, subject, text, explanation)
    severity = Severity.NOTE if kind in _FINE or log.is_corrected(known) else Severity.WARNING
    return LiveEvent(at, EventKind.KERNEL_MESSAGE, severity, subject, text, explanation)


# Events of the node: modules, the use of nvidia_peermem, and samples that gdrtop missed.

_LOADED = ("live", "built-in", "builtin")
_NOT_LOADED = "not loaded"
_USUAL_SECONDS = 1.0
_GAPS = 9  # that the interval is taken from
_MISSED = 3  # intervals


class ModuleEvents:
    """Compare the loaded modules."""

    def __init__(self) -> None:
        self._loaded: defaultdict[str, Settled[bool]] = defaultdict(lambda: Settled(1))
        self._modules: object = None  # of the sample before

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return the modules that were loaded or unloaded; nothing while their state is unknown."""
        events: list[LiveEvent] = []
        if sample.modules is self._modules:
            return events
        self._modules = sample.modules
        for name, state in sample.modules.items():
            is_loaded = state != _NOT_LOADED
            is_changing = state not in (*_LOADED, _NOT_LOADED)
            if not is_changing and self._loaded[name].update(is_loaded) is not None:
                kind = EventKind.MODULE_LOADED if is_loaded else EventKind.MODULE_UNLOADED
                severity = Severity.NOTE if is_loaded else Severity.WARNING
                text = f"{name} was {'loaded' if is_loaded else 'unloaded'}"
                events.append(explained(sample.taken_at, kind, severity, name, text))
        return events


class PeermemEvents:
    """Compare the reference count of nvidia_peermem."""

    def __init__(self) -> None:
        self._is_used: Settled[bool] = Settled(1)

    def update(self, sample: LiveSample) -> list[LiveEvent]:
        """Return that the count left or reached 0; nothing while it is unknown."""
        count = sample.peermem.refcnt
        if isinstance(count, Unknown) or self._is_used.update(count > 0) is None:
            return []
        kind = EventKind.PEERMEM_IN_USE if count > 0 else EventKind.PEERMEM_RELEASED
        text = f"nvidia_peermem is {'in use' if count > 0 else 'no longer in use'} (reference count {count})"
        return [explained(sample.taken_at, kind, Severity.NOTE, "nvidia_peermem", text)]


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
        text = f"gdrtop took no sample for {minutes(gap)}"
        return [explained(sample.taken_at, EventKind.SAMPLES_MISSED, Severity.NOTE, "gdrtop", text)]


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
        none: list[LiveEvent] = []
        of_kernel = partial(self._kernel.update, messages, sample.at, sample.taken_at, names)
        events = [*part(limits, "kernel messages", of_kernel, none)]
        for name, detect in self._detectors.items():
            events += part(limits, f"events of {name}", partial(detect, sample), none)
        events = [event for event in events if not self._is_known_loss(event, sample.at)]
        lasting = partial(self._conditions.update, sample, self._detected(sample), self._processes.is_stopped)
        watched = part(limits, "what lasts", lasting, sample.watched)
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
