"""`gdrtop reliability`: the history as text and JSON, in recordings, in the doctor, and what watch writes."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from probes.base.origin import Origin, Source
from probes.base.unknown import Reason, Unknown
from probes.checks.registry import findings
from probes.facts.node import probe_node
from probes.host.component_history import ComponentHistory
from probes.host.protocol import Host
from probes.live.reliability import identities_of
from probes.recording.format import Question, RecordingError, decode_blob, encode
from probes.recording.recording_host import Moment, RecordingHost
from probes.recording.redaction.identifiers import Identifiers
from probes.simulation.host import SimulatedHost
from probes.snapshot.condition import SLOW_NIC, Condition, Watched
from tests.support.doctor import examination_of
from tests.support.documents import valid
from tests.support.live_samples import a_sample
from tests.support.pilot import SteppedClock
from tests.support.scripted_watch import Scripted
from tui.cli import main
from tui.command_line.options import OutputOptions, TableOptions
from tui.commands.reliability import write_reliability
from tui.commands.watch.ring_directory import RingDirectory
from tui.commands.watch.ring_recorder import Limits
from tui.commands.watch.watch import Output, Watcher
from tui.files.reliability import database
from tui.files.reliability.reading import read_history
from tui.runtime.node_monitor import NodeMonitor

SLOW = "mlx5_6 was the slow NIC in 7 of its last 9 jobs"


@cache
def host_of(name: str) -> SimulatedHost:
    return SimulatedHost(name, clock=SteppedClock())


def printed(host: Host, asked: str = "", as_json: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    status = write_reliability(host, out, asked, TableOptions(json=as_json))
    return status, out.getvalue()


def test_a_script_gets_the_rows_alone(capsys: pytest.CaptureFixture[str]) -> None:
    demo = ("--demo", "hgx-h100+nic-slow", "reliability")
    assert main([*demo, "--rows"]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 16  # 8 NICs that were compared, and 8 GPUs
    name, bdf, guid = rows[0].split()[:3]
    assert (name, bdf) == ("mlx5_6", "0000:9d:00.0")
    assert main([*demo, guid, "--rows"]) == 1
    jobs = capsys.readouterr().out.splitlines()
    assert len(jobs) == 9
    assert re.match(r"\d{4}-\d\d-\d\d  +6 h 0 min  +90 % of 4 h 48 min  train\.py", jobs[0])


def test_the_slow_nic_comes_first_and_is_labeled_as_simulated() -> None:
    status, text = printed(host_of("hgx-h100+nic-slow"))
    assert status == 1
    assert "SIMULATED hgx-h100+nic-slow" in text
    rows = [row.split() for row in text.splitlines()]
    table = next(number for number, row in enumerate(rows) if row[:1] == ["Component"])
    assert rows[table + 1] == ["mlx5_6", "0000:9d:00.0", "7", "of", "9", "jobs", "-"]
    assert f"{SLOW}." in text
    assert "at least 10 % of that time" in text


def test_gpu_hours_say_what_is_counted_and_what_is_not_known() -> None:
    _, text = printed(host_of("hgx-h100+nic-slow"))
    rows = [row.split() for row in text.splitlines()]
    assert ["pcie-link-degraded-width", "12.0", "10.0", "5.0"] in rows
    assert ["acs-redirect-enabled", "96.0", "64.0", "unknown"] in rows
    assert ["any", "of", "them", "108.0", "74.0", "at", "least", "5.0"] in rows
    assert "GPUs that a finding concerns, while gdrtop watch saw it" in text
    document = valid("reliability", printed(host_of("hgx-h100+nic-slow"), as_json=True)[1])
    (lost,) = (each for each in document["losses"] if each["finding"] == "pcie-link-degraded-width")
    assert (lost["gpu_seconds"], lost["lost_seconds"]) == (12 * 3600, 5 * 3600)
    assert "GPU-hours" not in printed(host_of("hgx-h100"))[1]


def test_a_healthy_node_has_nothing_that_stands_out() -> None:
    status, text = printed(host_of("hgx-h100"))
    assert (status, "slow NIC" in text, "0 of 9 jobs" in text) == (0, False, True)


def test_a_nic_that_was_replaced_stands_out_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost("hgx-h100+nic-slow", clock=SteppedClock())
    monkeypatch.setattr(host, "component_history", host_of("hgx-h100+nic-slow").component_history)
    host.tree.add(host.tree.real("/sys/class/infiniband/mlx5_6") + "/node_guid", "51a0:1a7e:0000:00ff\n")
    status, text = printed(host)
    assert (status, "mlx5_6 (gone)" in text, f"{SLOW}." in text) == (0, True, False)
    assert "mlx5_6 (gone) (51a0" in printed(host, "51a0:1a7e:0000:0006/1")[1]
    status, text = printed(host, as_json=True)
    gone = [each["name"] for each in json.loads(text)["components"] if each["is_gone"]]
    assert (status, gone) == (0, ["mlx5_6"])


@pytest.mark.parametrize("asked", ["mlx5_6", "0000:9d:00.0", "51a0:1a7e:0000:0006/1"])
def test_a_component_has_its_jobs(asked: str) -> None:
    status, text = printed(host_of("hgx-h100+nic-slow"), asked)
    assert status == 1
    assert text.count("train.py (alice, Slurm job 47") == 9
    assert text.count(" 90 % of") == 7


def test_a_wrong_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reliability", "--demo", "hgx-h100", "mlx9"]) == 3
    assert "the history has no component 'mlx9'; it has mlx5_0, " in capsys.readouterr().err


def test_json_is_what_its_schema_says() -> None:
    status, text = printed(host_of("hgx-h100+nic-slow"), as_json=True)
    document = valid("reliability", text)
    assert document["exit_status"] == status
    (slow,) = [each for each in document["components"] if each["stands_out"]]
    assert (slow["name"], slow["slow_jobs"], slow["compared_jobs"]) == ("mlx5_6", 7, 9)
    assert [part["is_slow"] for part in slow["jobs"]].count(True) == 7
    assert len(document["jobs"]) == 9


@pytest.mark.parametrize("since", [-1.0, 1e18])
def test_a_recording_with_impossible_times_is_refused(since: float) -> None:
    history = host_of("hgx-h100").component_history()
    assert isinstance(history, ComponentHistory)
    question = Question("component_history")
    content = encode(question, replace(history, since=since)).blob
    with pytest.raises(RecordingError, match="since"):
        decode_blob(question, content)


class WithoutHistory(SimulatedHost):
    """A node on which gdrtop watch has never run."""

    def component_history(self) -> Unknown:
        return Unknown(Reason.NOT_THERE, "gdrtop watch", "gdrtop watch has kept no history")


def test_without_a_history_it_says_how_to_get_one() -> None:
    host = WithoutHistory("cloud-vm", clock=SteppedClock())
    status, text = printed(host)
    assert status == 2
    assert "gdrtop watch has kept no history" in text
    assert "gdrtop help watch" in text
    document = valid("reliability", printed(host, as_json=True)[1])
    assert "no history" in document["unknown"]["since"]


@pytest.mark.parametrize(
    ("why", "told"),
    [
        (Unknown(Reason.NEEDS_ROOT, "", "root's gdrtop watch may have kept one"), "as root to see it."),
        (
            Unknown(Reason.IO_ERROR, "", "/var/x.sqlite is damaged; remove it"),
            "x.sqlite is damaged; remove it.",
        ),
    ],
)
def test_what_cannot_be_read_ends_with_what_to_do(
    why: Unknown, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithoutHistory, "component_history", lambda host: why)
    status, text = printed(WithoutHistory("cloud-vm", clock=SteppedClock()))
    assert status == 2
    assert text.rstrip().endswith(told)
    assert "gdrtop help watch" not in text


def test_an_old_history_says_when_it_ends() -> None:
    assert re.search("9 jobs, and events from 20..-..-.. to 20..-..-..[.]", printed(host_of("hgx-h100"))[1])


def recorded(host: Host, redact: bool) -> ComponentHistory:
    """Return the history as a recording has it."""
    moments: list[Moment] = []
    recording = RecordingHost(host, moments.append)
    recording.component_history()
    recording.end_moment()
    (moment,) = moments
    answer = Identifiers(redact).apply(moment).answers[Question("component_history")]
    answer = decode_blob(Question("component_history"), encode(Question("component_history"), answer).blob)
    assert isinstance(answer, ComponentHistory)
    return answer


def test_a_recording_has_the_history_and_a_redacted_one_its_figures() -> None:
    host = host_of("hgx-h100+nic-slow")
    assert recorded(host, redact=False) == host.component_history()
    redacted = recorded(host, redact=True)
    assert redacted.losses == recorded(host, redact=False).losses != ()
    original = host.component_history()
    assert isinstance(original, ComponentHistory)
    assert [each.parts for each in redacted.components] == [each.parts for each in original.components]
    assert [each.name for each in redacted.components] == [each.name for each in original.components]
    assert not {each.id for each in redacted.components} & {each.id for each in original.components}
    assert not any(re.search("alice|train|47[01]", job.name) for job in redacted.jobs)
    assert len({job.name for job in redacted.jobs}) == len(original.jobs)


def test_the_doctor_says_how_often_the_nic_was_slow_before() -> None:
    condition = Condition(SLOW_NIC, "mlx5_6", "mlx5_6 carries 80 Gb/s", 0.0, devices=("mlx5_6",))
    examination = replace(
        examination_of("hgx-h100+nic-slow"), watched=Watched(60.0, jobs=1, conditions=(condition,))
    )
    (finding,) = findings(examination, {SLOW_NIC})
    assert finding.evidence[-1].source.startswith("gdrtop watch, since 20")
    assert finding.evidence[-1].value == SLOW


def test_samples_of_a_checked_node_say_how_its_nics_did_before() -> None:
    monitor = NodeMonitor(host_of("hgx-h100+nic-slow"))
    monitor.read()
    monitor.check()
    assert monitor.read().past == {"mlx5_6": SLOW}


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source, read_only: bool = False) -> str:
    """Watch a node for some seconds, and return the path of its history."""
    path = str(tmp_path / "reliability" / "gpu1.sqlite")
    monkeypatch.setattr("tui.commands.watch.watch.history_path", lambda: path)
    monkeypatch.setattr(database, "WRITE_SECONDS", 3.0)
    monkeypatch.setattr("probes.live.reliability.LEAST_JOB_SECONDS", 2.0)
    monkeypatch.setattr(NodeMonitor, "needs_check", False)
    clock = SteppedClock()
    host = SimulatedHost("cloud-vm", clock=clock)
    host.origin = Origin(source, host.origin.label)
    directory = RingDirectory(str(tmp_path / "ring"))
    watcher = Watcher(
        host, directory, Limits(max_bytes=16 << 20), Output(io.StringIO(), OutputOptions()), read_only
    )
    for _ in range(6):
        watcher.step()
        clock.now += 1.0
    watcher.close("")
    directory.close()
    return path


def test_watch_keeps_the_history_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    device = next(iter(identities_of(probe_node(host_of("cloud-vm")))))
    scripted(sample_of=lambda second: a_sample(float(second)))
    found = read_history(watched(tmp_path, monkeypatch, Source.LIVE))
    assert isinstance(found, ComponentHistory)
    assert device in [each.name for each in found.components]


@pytest.mark.parametrize(("source", "read_only"), [(Source.SIMULATED, False), (Source.LIVE, True)])
def test_watch_keeps_none_of_a_simulated_node_or_with_read_only(
    source: Source, read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    scripted(sample_of=lambda second: a_sample(float(second)))
    watched(tmp_path, monkeypatch, source, read_only)
    assert not (tmp_path / "reliability").exists()
