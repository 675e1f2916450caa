"""The settings of a test: what the others take the meaning from does not count."""

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
    return next((one.value for one in on.rows() if one.name == row), None)


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
    assert shown(wish, "memory") == "GPU memory as NCCL chooses"
    turn(wish, "memory", MemoryPath.STAGED)
    assert wish.request.memory is MemoryPath.STAGED
    step = Request(tool="all_reduce_perf", over_network=True, memory=MemoryPath.COMPARE)
    wish.preset_request(step)
    assert wish.request == step
    assert shown(wish, "nic") == "all, as NCCL chooses"
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
