"""The history is written once a minute, and each reason why it cannot be is reported once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from probes.base.evidence import Severity
from probes.facts.node import Node, probe_node
from probes.host.component_history import ComponentHistory
from probes.live.model.sample import EventKind, LiveEvent
from probes.live.reliability import ComponentTally
from probes.simulation.host import SimulatedHost
from tests.support.live_samples import a_sample
from tui.files.reliability.database import HistoryRecorder
from tui.files.reliability.reading import NOT_KEPT, read_history


@cache
def node() -> Node:
    return probe_node(SimulatedHost("hgx-h100"), seconds=60.0)


def test_a_minute_of_a_job_is_written_at_once_and_the_rest_at_the_end(tmp_path: Path) -> None:
    path, told = str(tmp_path / "gpu1.sqlite"), list[str]()
    recorder = HistoryRecorder(path, lambda at, text: told.append(text))
    for at in range(0, 60):
        recorder.update(a_sample(float(at)), node())
    assert read_history(path) == NOT_KEPT
    for at in range(60, 100):
        recorder.update(a_sample(float(at)), node())
    halfway = read_history(path)
    assert isinstance(halfway, ComponentHistory)
    recorder.close()
    whole = read_history(path)
    assert isinstance(whole, ComponentHistory)
    for found, seconds in ((halfway, 60.0), (whole, 99.0)):
        assert [job.ended - job.began for job in found.jobs] == [seconds]
        assert {part.compared_seconds for each in found.components for part in each.parts} == {seconds}
    assert told == []


def test_a_reason_is_told_once_and_nothing_is_lost_meanwhile(tmp_path: Path) -> None:
    path, told = tmp_path / "gpu1.sqlite", list[str]()
    path.mkdir()
    recorder = HistoryRecorder(str(path), lambda at, text: told.append(text))
    for at in range(0, 200):
        recorder.update(a_sample(float(at)), node())
    assert told == [f"{path} cannot be used: it is not a regular file"]
    path.rmdir()
    recorder.close()
    found = read_history(str(path))
    assert isinstance(found, ComponentHistory)
    assert [job.ended - job.began for job in found.jobs] == [199.0]


def test_two_watches_count_an_event_once(tmp_path: Path) -> None:
    path, told = str(tmp_path / "gpu1.sqlite"), list[str]()
    first = HistoryRecorder(path, lambda at, text: told.append(text))
    second = HistoryRecorder(path, lambda at, text: told.append(text))
    rising = LiveEvent(0.0, EventKind.ERRORS_RISING, Severity.WARNING, "mlx5_3", "mlx5_3 …")
    for at in range(0, 100):
        for recorder in (first, second):
            recorder.update(a_sample(float(at), events=(rising,) if at == 30 else ()), node())
    first.close()
    for at in range(100, 140):
        second.update(a_sample(float(at)), node())
    second.close()
    assert told == [f"another gdrtop watch writes {path}"]
    found = read_history(path)
    assert isinstance(found, ComponentHistory)
    assert [job.ended - job.began for job in found.jobs] == [139.0]
    assert {each.name: each.counts for each in found.components if each.counts} == {"mlx5_3": {"errors": 1}}


def test_an_error_in_gdrtop_does_not_end_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("mlx5_0")

    monkeypatch.setattr(ComponentTally, "update", fail)
    told = list[str]()
    recorder = HistoryRecorder(str(tmp_path / "gpu1.sqlite"), lambda at, text: told.append(text))
    for at in range(0, 3):
        recorder.update(a_sample(float(at)), node())
    recorder.close()
    assert told == ["an error in gdrtop (KeyError)"]
