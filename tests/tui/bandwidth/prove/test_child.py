"""The program that registers GPU memory, with small libcuda and libibverbs of its own."""

import errno
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

from probes.bandwidth import prove
from probes.bandwidth.prove import GpuTrial, NicTrial, Outcome, PairResult
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.pilot import SteppedClock
from tests.tui.bandwidth.prove.stub_libraries import libcuda, libibverbs
from tui.bandwidth.processes import LocalProcessStarter, ToolProcess
from tui.bandwidth.prove import child
from tui.bandwidth.prove.session import RegistrationSession

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
GPU = GpuTrial("GPU0", "0000:1b:00.0", (NicTrial("mlx5_0", "mlx5_0", 7), NicTrial("mlx5_1", "mlx5_1", 7)))
EFA = GpuTrial("GPU0", "0000:1b:00.0", (NicTrial("efa_0", "efa_0", 1),))


@cache
def examination() -> Examination:
    return examine(SimulatedHost("hgx-h100", clock=SteppedClock()))


def register(cuda: str, verbs: str, trial: GpuTrial = GPU, seconds: float = 30.0) -> tuple[PairResult, ...]:
    def start(trial: GpuTrial, _: float) -> ToolProcess:
        program = ("python3", "-I", "-S", child.__file__, trial.bdf, cuda, verbs, *trial.words)
        return LocalProcessStarter(lambda _: sys.executable, grace_seconds=0.1).start(program, seconds)

    session = RegistrationSession(SimulatedHost("hgx-h100", clock=SteppedClock()), start=start)
    results = session.run(examination(), [trial], lambda _: None)
    assert isinstance(results, tuple)
    return results


def calls(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def outcomes(results: tuple[PairResult, ...]) -> list[tuple[Outcome, Outcome]]:
    return [(result.dmabuf.outcome, result.peer_memory.outcome) for result in results]


def test_every_nic_registers_both_ways_and_everything_is_released(tmp_path: Path) -> None:
    results = register(libcuda(tmp_path), libibverbs(tmp_path))
    assert outcomes(results) == [(Outcome.REGISTERS, Outcome.REGISTERS)] * 2
    of_nic = [line.removeprefix("mlx5_1 ") for line in calls(tmp_path) if line.startswith("mlx5_1")]
    assert of_nic == [
        *("open", "pd", "host", "dereg"),
        *("dmabuf 7", "dereg", "peer 7", "dereg"),
        *("dealloc", "close"),
    ]
    assert calls(tmp_path)[-2:] == ["cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"]
    assert "0000:1b:00.0" in calls(tmp_path)


def test_host_memory_registers_before_a_context_takes_gpu_memory(tmp_path: Path) -> None:
    register(libcuda(tmp_path), libibverbs(tmp_path))
    order = calls(tmp_path)
    assert order.index("mlx5_1 host") < order.index("cuDevicePrimaryCtxRetain")


def test_efa_gets_no_remote_access_flags(tmp_path: Path) -> None:
    register(libcuda(tmp_path), libibverbs(tmp_path), EFA)
    assert {"efa_0 dmabuf 1", "efa_0 peer 1"} <= set(calls(tmp_path))


def test_a_nic_that_refuses_the_dma_buf_still_tries_peer_memory(tmp_path: Path) -> None:
    results = register(libcuda(tmp_path), libibverbs(tmp_path, fails="dmabuf 7", code=524))
    assert outcomes(results) == [(Outcome.REGISTERS, Outcome.REGISTERS), (Outcome.REFUSED, Outcome.REGISTERS)]
    assert results[1].dmabuf.error == "ENOTSUPP (524)"
    assert results[1].dmabuf.function == "ibv_reg_dmabuf_mr"
    assert "GPU driver refuses" in results[1].dmabuf.why


def test_a_nic_without_access_leaves_the_other_one_to_register(tmp_path: Path) -> None:
    verbs = libibverbs(tmp_path, fails="open", code=errno.EACCES)
    first, second = register(libcuda(tmp_path), verbs)
    assert first.outcome is Outcome.REGISTERS
    assert second.outcome is Outcome.NOT_TRIED
    assert "/dev/infiniband" in second.dmabuf.why


@pytest.mark.slow
def test_no_context_is_created_if_no_nic_registers_host_memory(tmp_path: Path) -> None:
    verbs = libibverbs(tmp_path, nic="efa_0", fails="host", code=errno.ENOMEM)
    (result,) = register(libcuda(tmp_path), verbs, EFA)
    assert result.outcome is Outcome.NOT_TRIED
    assert "the GPU is not the reason" in result.dmabuf.why
    assert "cuInit" not in calls(tmp_path)


@pytest.mark.parametrize(("mode", "supported", "why"), [(3, 1, "exclusive process"), (0, 0, "neither path")])
def test_no_context_where_it_would_do_harm_or_nothing(
    tmp_path: Path, mode: int, supported: int, why: str
) -> None:
    results = register(libcuda(tmp_path, mode=mode, supported=supported), libibverbs(tmp_path))
    assert all(result.outcome is Outcome.NOT_TRIED for result in results)
    assert why in results[0].dmabuf.why
    assert "cuDevicePrimaryCtxRetain" not in calls(tmp_path)


def test_a_gpu_that_is_full_is_not_tried_and_its_context_is_released(tmp_path: Path) -> None:
    results = register(libcuda(tmp_path, fails="cuMemAlloc_v2", code=2), libibverbs(tmp_path))
    assert all(result.outcome is Outcome.NOT_TRIED for result in results)
    assert results[0].dmabuf.error == "CUDA error 2"
    assert calls(tmp_path)[-1] == "cuDevicePrimaryCtxRelease_v2"


def test_memory_that_cannot_be_exported_may_still_register_as_peer_memory(tmp_path: Path) -> None:
    cuda = libcuda(tmp_path, fails="cuMemGetHandleForAddressRange", code=801)
    results = register(cuda, libibverbs(tmp_path))
    assert outcomes(results) == [(Outcome.REFUSED, Outcome.REGISTERS)] * 2
    assert not [line for line in calls(tmp_path) if "dmabuf" in line]


def test_an_old_libibverbs_has_no_dma_buf(tmp_path: Path) -> None:
    results = register(libcuda(tmp_path), libibverbs(tmp_path, "-DOLD"))
    assert outcomes(results) == [(Outcome.NOT_TRIED, Outcome.REGISTERS)] * 2


def test_libraries_that_are_not_installed_are_named(tmp_path: Path) -> None:
    (result,) = register("libno-such-cuda.so.1", libibverbs(tmp_path), EFA)
    assert result.dmabuf.why == "libno-such-cuda.so.1 is not installed"


def test_a_crash_costs_one_gpu_and_names_the_call(tmp_path: Path) -> None:
    results = register(libcuda(tmp_path, crashes="cuInit"), libibverbs(tmp_path))
    assert {result.outcome for result in results} == {Outcome.NO_ANSWER}
    assert results[0].dmabuf.function == "cuInit"
    assert "signal 6" in results[0].dmabuf.why


def test_a_hang_is_ended_and_names_the_call(tmp_path: Path) -> None:
    verbs = libibverbs(tmp_path, hangs="dmabuf 7")
    first, second = register(libcuda(tmp_path), verbs, seconds=1.0)
    assert first.outcome is Outcome.REGISTERS
    assert second.dmabuf.outcome is Outcome.NO_ANSWER
    assert second.dmabuf.function == "ibv_reg_dmabuf_mr"
    assert "time limit of 1 s" in second.dmabuf.why
    assert second.peer_memory.outcome is Outcome.NOT_TRIED


def test_both_sides_use_the_same_names_of_calls(tmp_path: Path) -> None:
    """A name that only one of them knows would make a failure look like a crash."""
    text = Path(child.__file__).read_text()
    names = (*prove.LIBRARIES, *prove.NIC_CALLS, *prove.GPU_CALLS, *prove.SUPPORTED)
    for name in (*names, prove.COMPUTE_MODE, prove.EXPORT, prove.DMABUF, prove.PEER_MEMORY):
        assert f'"{name}"' in text
