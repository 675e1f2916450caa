"""What the answers of the registering program mean."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.prove import (
    Answer,
    GpuTrial,
    NicTrial,
    Outcome,
    dmabuf_error,
    parse_answer,
    peer_memory_error,
    results_of,
    setup_error,
)
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.pilot import SteppedClock

NODE = examine(SimulatedHost("hgx-h100", clock=SteppedClock()))
TRIAL = GpuTrial("GPU0", "0000:18:00.0", (NicTrial("mlx5_0", "mlx5_0", 7),))


@pytest.mark.slow
@given(st.text() | st.from_regex(r'\[("\w*"|\d+|null|\[)*,?"?.*'))
def test_no_line_of_a_library_is_taken_for_an_error(text: str) -> None:
    answer = parse_answer(text)
    assert answer is None or json.loads(text)[:2] == [answer.nic, answer.call]


@pytest.mark.parametrize(
    "text", ['["mlx5_0", "DMA-BUF", true]', '["", "cuInit", 99999999999]', '["", "cuInit", 0, 1]', "[" * 4096]
)
def test_malformed_answers_are_dropped(text: str) -> None:
    assert parse_answer(text) is None


def test_a_text_cannot_act_on_the_terminal() -> None:
    answer = parse_answer(json.dumps(["", "libcuda", "\x1b[2Jgone"]))
    assert answer is not None
    assert "\x1b" not in str(answer.value)


def test_silence_is_no_success() -> None:
    (result,) = results_of(TRIAL, (), "canceled", NODE)
    assert result.outcome is Outcome.NOT_TRIED
    assert result.dmabuf.why == "canceled"


def test_a_call_without_an_end_is_named() -> None:
    (result,) = results_of(TRIAL, [Answer("", "cuInit", None)], "stopped after 30 s", NODE)
    assert result.outcome is Outcome.NO_ANSWER
    assert result.peer_memory.function == "cuInit"


def test_one_path_is_enough_for_a_pair() -> None:
    answers = [Answer("mlx5_0", "DMA-BUF", 95), Answer("mlx5_0", "peer memory", 0)]
    (result,) = results_of(TRIAL, answers, "", NODE)
    assert result.outcome is Outcome.REGISTERS
    assert result.dmabuf.error == "EOPNOTSUPP (95)"


@pytest.mark.parametrize(
    ("number", "word"),
    [(524, "PCI topology"), (12, "of 131072 MiB of BAR1"), (93, "Linux 5.12"), (22, "virtual function")],
)
def test_each_errno_of_a_dma_buf_has_its_sentence(number: int, word: str) -> None:
    assert word in dmabuf_error(number, TRIAL.bdf, "mlx5_0", NODE)


def test_no_memory_of_an_older_driver_may_be_its_refusal() -> None:
    newer = examine(SimulatedHost("hgx-b200", clock=SteppedClock()))
    assert "the GPU driver refused" in dmabuf_error(12, TRIAL.bdf, "mlx5_0", NODE)
    assert "the GPU driver refused" not in dmabuf_error(12, TRIAL.bdf, "mlx5_0", newer)


def test_not_supported_says_whether_the_nic_driver_knows_dma_buf_at_all() -> None:
    other = examine(SimulatedHost("hgx-h100+dmabuf-nic-driver-lacks-support", clock=SteppedClock()))
    assert "knows DMA-BUF" in dmabuf_error(95, TRIAL.bdf, "mlx5_6", NODE)
    assert "does not support DMA-BUF" in dmabuf_error(95, TRIAL.bdf, "mlx5_6", other)


def test_a_bad_address_says_whether_the_module_is_loaded() -> None:
    unloaded = examine(SimulatedHost("hgx-h100+peermem-not-loaded", clock=SteppedClock()))
    assert "is loaded, but" in peer_memory_error(14, "mlx5_0", NODE)
    assert "is not loaded" in peer_memory_error(14, "mlx5_0", unloaded)


def test_the_limit_of_locked_memory_stands_beside_enomem() -> None:
    small = examine(SimulatedHost("hgx-h100+memlock-shell", clock=SteppedClock()))
    assert "8192 KiB" in peer_memory_error(12, "mlx5_0", small)
    assert "8192 KiB" in setup_error("host memory", 12, small)


def test_an_unknown_cuda_error_invents_no_reason() -> None:
    unknown, known = (results_of(TRIAL, [Answer("", "cuInit", code)], "", NODE)[0] for code in (12345, 802))
    assert unknown.dmabuf.why == "dmesg may show the reason"
    assert "Fabric Manager" in known.dmabuf.why
