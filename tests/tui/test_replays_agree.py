"""A recorded problem that shows only by what was before it is the same in every command and on the screen."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock
from tui.cli import main
from tui.commands.record import record
from tui.runtime.json_values import plain_value
from tui.runtime.open_host import open_recording
from tui.runtime.replay_source import ReplaySource

# Longer than any window of seconds that a rule looks back: what was usual is only at the beginning.
SECONDS = 430


@pytest.fixture
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Record a simulated node with this fault."""
    clock = SteppedClock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    file = str(tmp_path / "node.tar.gz")
    record(SimulatedHost(f"hgx-h100+{request.param}", clock=clock), file, SECONDS, False, None, clock, wait)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "problem"),
    [("congestion", "network-congested"), ("rank-behind", "job-silent")],
    indirect=["recording"],
    ids=["congestion", "rank-behind"],
)
def test_check_topo_live_and_the_screen_show_the_same_at_the_end_of_a_recording(
    recording: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def last_printed(command: str) -> dict[str, object]:
        main([command, "--replay", recording, "--json"])
        out = capsys.readouterr().out
        content: dict[str, object] = json.loads(out.splitlines()[-1] if command == "live" else out)
        return content

    source = ReplaySource(open_recording(Namespace(replay=recording, demo=None, root="/", host="")))
    source.move(source.last)
    for _ in source.read(probe=False):
        pass
    _, judgment = source.examine()
    shown = [
        (finding.id, finding.severity.value, finding.cause, list(finding.devices))
        for finding in judgment.listed
    ]
    assert [name for name, *_ in shown] == [problem]

    def listed(content: dict[str, object]) -> list[tuple[object, ...]]:
        findings = content["findings"]
        assert isinstance(findings, list)
        return [
            (finding["id"], finding["severity"], finding["cause"], finding["devices"])
            for finding in findings
            if finding["severity"] != "note" and not finding.get("part_of")
        ]

    checked, live, topo = last_printed("check"), last_printed("live"), last_printed("topo")
    assert listed(checked) == listed(live) == shown
    assert plain_value(judgment.verdict) == checked["verdict"] == topo["verdict"]
    assert live["verdict"] == plain_value(judgment.verdict)
