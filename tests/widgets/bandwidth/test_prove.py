"""The tables of a registration, and each reason once."""

from probes.bandwidth.prove import Outcome, PairResult, PathResult
from widgets.bandwidth.prove import draw_results
from widgets.base.lines import plain

WORKS = PathResult(Outcome.REGISTERS)
REFUSED = PathResult(Outcome.REFUSED, "BAR1 is full", "ibv_reg_dmabuf_mr", "ENOMEM (12)")
HUNG = PathResult(Outcome.NO_ANSWER, "stopped after its time limit of 30 s", "cuInit")
LEFT_OUT = PathResult(Outcome.NOT_TRIED, "MIG is on")


def pair(gpu: int, nic: int, dmabuf: PathResult, peer_memory: PathResult) -> PairResult:
    return PairResult(f"GPU{gpu}", f"0000:{gpu:02x}:00.0", f"mlx5_{nic}", dmabuf, peer_memory)


def drawn(*results: PairResult, width: int = 80) -> str:
    return "\n".join(plain(line) for line in draw_results(results, width))


def test_a_reason_stands_once_with_all_of_its_pairs() -> None:
    text = drawn(*(pair(gpu, nic, REFUSED, WORKS) for gpu in range(2) for nic in range(10)))
    assert text.count("BAR1 is full") == 1
    assert "GPU0, GPU1 with 10 NICs, DMA-BUF" in text
    assert "ibv_reg_dmabuf_mr failed with ENOMEM" in " ".join(text.split())


def test_the_same_reason_on_both_paths_stands_once() -> None:
    text = drawn(pair(0, 0, LEFT_OUT, LEFT_OUT), pair(0, 1, LEFT_OUT, LEFT_OUT))
    assert text.count("MIG is on") == 1
    assert "GPU0 with mlx5_0, mlx5_1, both paths" in text


def test_a_call_that_did_not_return_is_named() -> None:
    text = drawn(pair(0, 0, HUNG, HUNG))
    assert "no answer: stopped after its time limit of 30 s, in cuInit" in text


def test_no_line_is_wider_than_the_terminal() -> None:
    pairs = [pair(0, nic, REFUSED, WORKS) for nic in range(4)]
    pairs += [pair(gpu, nic, WORKS, LEFT_OUT) for gpu in range(1, 5) for nic in range(4)]
    for width in (40, 80, 120):
        assert max(map(len, drawn(*pairs, width=width).splitlines())) <= width
