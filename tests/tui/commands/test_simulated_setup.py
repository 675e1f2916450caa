"""`gdrtop setup` on a simulated node goes on where the last command stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.simulation.host import SimulatedHost
from tui.cli import main
from tui.commands.setup import SimulatedSetup

DEMO = "hgx-h100+acs-on"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tui.actions.rehearsal._LONGEST_WAIT_SECONDS", 0.0)
    return tmp_path / "gdrtop" / "simulated"


def setup(capsys: pytest.CaptureFixture[str], *arguments: str, node: str = DEMO) -> tuple[int, str]:
    status = main(["setup", "--demo", node, *arguments])
    return status, capsys.readouterr().out


def test_a_step_that_was_run_is_done_for_the_next_command(
    capsys: pytest.CaptureFixture[str], own_cache: Path
) -> None:
    _, out = setup(capsys)
    assert "▸ Disable ACS redirects" in out
    assert not own_cache.exists()  # showing the steps writes nothing
    assert setup(capsys, "acs", "--run", "--disturb", "hgx-h100")[0] == 0
    _, out = setup(capsys)
    assert "✓ Disable ACS redirects" in out
    assert "Simulated: what earlier commands did is in" in out
    # Other commands show the node as it is described.
    assert main(["check", "--demo", DEMO, "--only", "acs-redirect-enabled"]) == 1


def test_a_choice_lasts_and_another_node_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    setup(capsys, "--skip", "measure-all")
    assert "skipped by" in setup(capsys)[1]
    main(["setup", "--demo", "hgx-h100"])
    assert "skipped by" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_new_node_is_set_up_by_commands_from_nothing_to_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    new = "pcie-l40s+new-node-debian"
    for step in ("gpu-driver", "modules", "tools"):
        status, out = setup(capsys, step, "--run", "--yes", node=new)
        assert status == 0
    assert "Simulated: on a real node, these commands are yours: apt-get." in out
    # One of its GPUs has no NIC on its socket, which no command changes.
    setup(capsys, "--skip", "measure-host,measure-pair,measure-all,others", node=new)
    status, out = setup(capsys, "reboot", "--run", "--yes", node=new)
    assert (status, "The simulated node has started again." in out) == (0, True)
    assert main(["report", "--demo", new, str(tmp_path / "report.md")]) == 0
    capsys.readouterr()
    status, out = setup(capsys, node=new)
    assert (status, "the node is set up" in out) == (0, True)
    assert "the path is usable after a reboot" in out


@pytest.mark.slow
def test_a_result_lasts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup(capsys, "measure-host", "--run", "--yes")[0] == 0
    assert "✓ Measure a NIC with host memory" in setup(capsys)[1]


def test_hostile_lines_of_the_log_are_left_out(own_cache: Path) -> None:
    folder = own_cache / "hgx-h100"
    folder.mkdir(parents=True, mode=0o700)
    lines = ["{", "[" * 5000, "[]", '{"event": "step", "run": [], "step": {}}', '{"event": "step end"}']
    (folder / "actions.jsonl").write_text("\n".join(lines))
    SimulatedSetup("hgx-h100").restore(SimulatedHost("hgx-h100"))


def test_without_a_home_directory_it_lasts_as_long_as_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.commands.setup.simulated_directory", lambda name: "")
    state = SimulatedSetup("hgx-h100")
    state.log.add("skip", "skipped by root", "ports")
    assert not state.is_used
    assert state.log.record().skipped == {"ports": "skipped by root"}
