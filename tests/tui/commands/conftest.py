"""The live view of the commands that print or save it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from probes.base.evidence import Severity
from probes.live.model.sample import LiveSample
from tests.support.live_samples import sample_of as sample_with
from tests.support.live_samples import with_path
from tests.support.scripted_watch import Scripted, ScriptedWatch


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Let the live view see these samples and events, by second."""

    def script(
        sample_of: Callable[[int], LiveSample] = lambda _: sample_with(with_path(0)),
        events_of: Callable[[int], Sequence[Severity]] = lambda _: (),
    ) -> None:
        watch = "tui.runtime.node_monitor.LiveSampler"
        monkeypatch.setattr(watch, lambda *_: ScriptedWatch(sample_of, events_of))

    return script
