"""The settings of a test: what the others take the meaning from does not count."""

import subprocess
import sys
from pathlib import Path

import pytest

from probes.bandwidth.model.request import MemoryPath, Mode, Request, Scope
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tui.bandwidth.settings import BandwidthSettings


def settings() -> BandwidthSettings:
    found = BandwidthSettings()
    found.set_examination(examine(SimulatedHost("hgx-h100", clock=lambda: 1000.0)))
    return found


def turn(on: BandwidthSettings, row: str, wanted: object) -> None:
    """Takes values of a row until it is the one."""
    on.selected = row
    for _ in range(40):
        if on._value(row) == wanted:
            return
        assert on.change(1)
    raise AssertionError(f"{row} has no {wanted}")


def shown(on: BandwidthSettings, row: str) -> str | None:
    return next((setting.value for setting in on.rows() if setting.name == row), None)


def test_one_end_alone_begins_no_matrix_and_no_comparison() -> None:
    wish = settings()
    turn(wish, "scope", Scope.MATRIX)
    turn(wish, "memory", MemoryPath.COMPARE)
    for setup in (Mode.SERVER, Mode.CLIENT):
        turn(wish, "setup", setup)
        assert (wish.request.scope, wish.request.memory) == (Scope.PAIR, MemoryPath.BEST)
        assert wish.request.gpu is not None
        assert shown(wish, "gpu")
        assert shown(wish, "scope") is None
    turn(wish, "setup", Mode.LOOPBACK)  # it was not forgotten
    assert (wish.request.scope, wish.request.memory) == (Scope.MATRIX, MemoryPath.COMPARE)


def test_a_collective_over_the_nics_can_be_staged_and_a_preset_shows_it() -> None:
    wish = settings()
    turn(wish, "test", "all_reduce_perf")
    assert shown(wish, "memory") is None
    turn(wish, "through", True)
    assert shown(wish, "memory") == "GPU memory, NCCL's choice"
    turn(wish, "memory", MemoryPath.STAGED)
    assert wish.request.memory is MemoryPath.STAGED
    step = Request(tool="all_reduce_perf", over_network=True, memory=MemoryPath.COMPARE)
    wish.preset_request(step)
    assert wish.request == step
    assert shown(wish, "nic") == "all, NCCL's choice"
    turn(wish, "test", "ib_write_bw")
    assert "staged" not in str(shown(wish, "memory"))


def test_a_test_without_nics_has_no_matrix() -> None:
    wish = settings()
    turn(wish, "scope", Scope.MATRIX)
    turn(wish, "test", "gdrcopy_copybw")
    assert wish.request.scope is Scope.PAIR
    assert shown(wish, "scope") == "this GPU"
    turn(wish, "scope", Scope.SWEEP)
    assert wish.request.scope is Scope.SWEEP


ROOT = Path(__file__).parents[3]
# Runs gdrtop's code as if one line of request.py were another one.
WITH_OTHER_DEFAULT = """
import importlib.util, sys
name = "probes.bandwidth.model.request"
spec = importlib.util.find_spec(name)
source = spec.loader.get_source(name)
assert source.count({old!r}) == 1
module = sys.modules[name] = importlib.util.module_from_spec(spec)
exec(compile(source.replace({old!r}, {new!r}), spec.origin, "exec"), vars(module))
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tui.bandwidth.settings import BandwidthSettings
from tui.cli import main
made = BandwidthSettings()
made.set_examination(examine(SimulatedHost("cloud-vm")))
rows = {{row.name: row.value for row in made.rows()}}
print("DASHBOARD", rows["seconds"], rows["size"], rows["queue pairs"])
print("DRY RUN")
main(["bench", "--demo", "hgx-h100", "--dry-run", "--serve"])
print("HELP")
main(["bench", "--help"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "dashboard", "command", "help_text"),
    [
        ("duration_s: int = 10", "duration_s: int = 77", "77 s 1 MiB 1", "-D 77", "(default: 77)"),
        ("DEFAULT_BYTES = 1 << 20", "DEFAULT_BYTES = 2 << 20", "10 s 2 MiB 1", "-s 2097152", "(default: 2M)"),
        ("queue_pairs: int = 1", "queue_pairs: int = 3", "10 s 1 MiB 3", "-q 3", "(default: 3)"),
    ],
)
def test_a_default_has_one_place_that_dashboard_command_and_help_follow(
    old: str, new: str, dashboard: str, command: str, help_text: str
) -> None:
    code = WITH_OTHER_DEFAULT.format(old=old, new=new)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    before, _, help_shown = done.stdout.partition("HELP")
    shown_settings, _, dry_run = before.partition("DRY RUN")
    assert f"DASHBOARD {dashboard}" in shown_settings, done.stderr
    assert command in " ".join(dry_run.split())
    assert help_text in " ".join(help_shown.split())
