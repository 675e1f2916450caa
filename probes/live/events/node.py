"""Events of the node: modules, the use of nvidia_peermem, and samples that gdrtop missed."""

from __future__ import annotations

from collections import deque
from statistics import median

from probes.base.text import minutes
from probes.base.unknown import Unknown
from probes.live.model.explanations import EXPLANATIONS
from probes.live.model.sample import EventKind, LiveEvent, LiveSample
from probes.queries.finding import Severity

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
