"""A result against earlier ones and the baseline; and what host memory, peermem and DMA-BUF mean together."""

import pytest

from probes.bandwidth.model.planned_series import LeftOut, Pair
from probes.bandwidth.model.rating import Rating
from probes.bandwidth.model.result import Ending
from probes.bandwidth.model.samples import BY_DMABUF, BY_PEERMEM, HOST_MEMORY, About, Fact
from probes.bandwidth.results.against_earlier import baseline_result, change, changes, earlier, newest
from probes.bandwidth.results.comparison import conclusions
from tests.support.sample_results import MORNING, failed, judged, latency, result

NOW = MORNING + 86_400


def test_the_last_result_of_the_same_test_is_the_one_to_compare() -> None:
    now = result(186.0, taken_at=NOW)
    first, last = result(150.0), result(192.0, taken_at=MORNING + 60)
    others = [
        result(1.0, taken_at=MORNING + 90, node="h100-08"),
        result(2.0, taken_at=MORNING + 90, origin="simulated hgx-h100"),
        result(3.0, BY_PEERMEM, taken_at=MORNING + 90),
        result(4.0, taken_at=MORNING + 90, size_bytes=64),
        result(5.0, taken_at=MORNING + 90, ending=Ending.CANCELED),
        result(6.0, taken_at=NOW + 1),
        now,
    ]
    assert earlier(now, [last, first, *others]) == last
    assert earlier(now, others) is None


def test_the_newest_of_a_test_is_of_this_node_and_origin_alone() -> None:
    ours = result(186.0)
    others = [
        result(1.0, taken_at=NOW, node="h100-08"),
        result(2.0, taken_at=NOW, origin="simulated hgx-h100"),
        result(3.0, BY_PEERMEM, taken_at=NOW),
        result(4.0, taken_at=NOW, ending=Ending.FAILED),
        result(5.0, taken_at=MORNING - 60),
    ]
    assert newest([*others[:2], ours, *others[2:]], ours.key, "h100-07", "live") == ours
    assert newest(others, ours.key, "h100-09", "live") is None


def test_a_collective_over_the_nics_is_another_test_than_one_inside_the_node() -> None:
    inside = result(title="8 GPUs · all_reduce_perf inside this node", tool="all_reduce_perf", memory="")
    over = result(
        title="8 GPUs · all_reduce_perf over the NICs", tool="all_reduce_perf", memory="", taken_at=NOW
    )
    assert earlier(over, [inside]) is None


def test_the_baseline_may_be_of_another_node() -> None:
    norm = result(195.0, node="h100-01")
    key, origin = result(186.0).key, result(186.0).origin
    assert baseline_result([result(3.0, BY_PEERMEM), norm], key, origin) == norm
    assert baseline_result([result(195.0, origin="simulated hgx-h100")], key, origin) is None


def test_a_change_is_told_in_percent_with_the_other_figure() -> None:
    since = "on 2026-11-20 14:02 UTC"
    assert change(result(186.0), result(192.0), since) == f"186 Gb/s: 3 % less than {since} (192 Gb/s)"
    assert change(result(192.0), result(96.0), since) == f"192 Gb/s: 100 % more than {since} (96 Gb/s)"
    assert (
        change(result(186.0), result(188.0), since) == f"186 Gb/s: the same as {since} (188 Gb/s), within 2 %"
    )
    assert change(latency(2.2), latency(2.0), since) == f"2.20 µs: 10 % longer than {since} (2.00 µs)"
    assert change(result(186.0), latency(2.0), since) == ""
    assert change(result(186.0), result(0.0), since) == ""


def test_both_are_told_and_whose_the_baseline_is() -> None:
    now = result(186.0, taken_at=NOW)
    last, norm = changes(now, [result(192.0)], [result(195.0, node="h100-01")])
    assert "3 % less than on 2026-11-18 11:06 UTC (192 Gb/s)" in last
    assert (
        "5 % less than the baseline of this machine type (h100-01, 2026-11-18 11:06 UTC) (195 Gb/s)" in norm
    )
    # What is both is told once.
    assert len(changes(now, [result(192.0)], [result(192.0)])) == 1
    assert changes(failed(), [result(192.0)], []) == ()


def only(*results: object, left_out: tuple[LeftOut, ...] = ()) -> str:
    return "\n".join(conclusions(results, left_out))  # type: ignore[arg-type]


HOST = result(190.0, HOST_MEMORY)
SLOW_HOST = result(120.0, HOST_MEMORY)


def test_one_test_alone_is_no_comparison() -> None:
    assert conclusions([result(186.0)]) == ()
    assert conclusions([HOST]) == ()


def test_without_any_gpu_memory_host_memory_proves_nothing() -> None:
    lost = [LeftOut(f"GPU0 → mlx5_0 · {path}", "built without CUDA") for path in (BY_PEERMEM, BY_DMABUF)]
    told = only(HOST, left_out=tuple(lost))
    assert "no GPU memory was measured over mlx5_0" in told
    assert "the result with host memory (190 Gb/s) says nothing" in told
    assert "GPU0 → mlx5_0 · nvidia-peermem and GPU0 → mlx5_0 · DMA-BUF were skipped: built without" in told
    # Another GPU's memory was measured over the same NIC.
    skipped = LeftOut("GPU1 → mlx5_0 · DMA-BUF", "it has fallen off the bus")
    assert "no GPU's memory" not in only(HOST, result(186.0), left_out=(skipped,))
    # Another NIC's name that begins alike is another NIC.
    ten = LeftOut("GPU0 → mlx5_00 · DMA-BUF", "it is down")
    assert only(HOST, left_out=(ten,)) == ""
    assert only(result(186.0), left_out=(ten,)) == ""


def test_as_fast_as_host_memory_and_near_the_line_works() -> None:
    told = only(HOST, result(188.0))
    assert "GPUDirect RDMA via DMA-BUF works" in told
    assert "188 of 200 Gb/s" in told
    assert "as fast as host memory (190 Gb/s)" in told


def test_far_below_host_memory_the_way_to_the_gpu_limits() -> None:
    path = "the path crosses from one CPU socket to another"
    why = f"host memory reaches 190 Gb/s: limited by the path to the GPU; {path}"
    told = only(HOST, judged(result(60.0), Rating.BELOW, why))
    assert (
        "limited by the path between mlx5_0 and GPU0 (the path crosses from one CPU socket to another)"
        in told
    )
    assert "60 Gb/s" in told
    assert "gdrtop check" in told
    assert "works" not in told


@pytest.mark.parametrize(
    ("setup", "far", "told"),
    [
        ("loopback", "", "PCIe link twice, out and back"),
        ("loopback", "mlx5_1", "mlx5_0 and mlx5_1"),
        ("client", "", "the network and the peer"),
    ],
)
def test_as_slow_as_host_memory_it_is_not_the_gpu(setup: str, far: str, told: str) -> None:
    pair = {"nic": "mlx5_0", "port": 1, "far_nic": far}
    host = result(120.0, HOST_MEMORY, setup=setup, pair=Pair(**pair))  # type: ignore[arg-type]
    gpu = result(119.0, setup=setup, pair=Pair("0000:18:00.0", "GPU0", **pair))  # type: ignore[arg-type]
    sentence = only(host, judged(gpu, Rating.LIKE_HOST))
    assert "as slow as host memory" in sentence
    assert "the path to the GPU is not the limit" in sentence
    assert told in sentence


def test_loopback_does_not_blame_the_network() -> None:
    sentence = only(SLOW_HOST, judged(result(119.0), Rating.LIKE_HOST))
    assert "before you blame the NIC or the network" in sentence


def test_host_memory_slower_than_the_gpu_is_told_as_that() -> None:
    told = only(SLOW_HOST, judged(result(160.0), Rating.LIKE_HOST))
    assert "host memory (120 Gb/s) is slower than GPU0" in told
    assert "NUMA" in told


def test_an_unknown_limit_claims_nothing() -> None:
    told = only(SLOW_HOST, judged(result(119.0), Rating.UNKNOWN, "the limit of the path is unknown"))
    assert "gdrtop cannot tell whether that is near the limit" in told
    assert "works" not in told


def test_one_path_fails_and_the_other_works() -> None:
    told = only(HOST, failed(BY_PEERMEM, "nvidia_peermem is not loaded"), result(188.0))
    assert "nvidia-peermem failed (nvidia_peermem is not loaded) and DMA-BUF works" in told
    assert "do not need nvidia-peermem" in told
    told = only(HOST, result(188.0, BY_PEERMEM), failed(BY_DMABUF, "CUDA error 1", "error=1"))
    assert "NCCL_DMABUF_ENABLE=0" in told


def test_a_node_without_dmabuf_is_not_told_that_nccl_fails() -> None:
    dmabuf = failed(BY_DMABUF, "the driver does not export it", "DMA-BUF is not supported on this GPU")
    told = only(HOST, result(188.0, BY_PEERMEM), dmabuf)
    assert "NCCL detects that as well and uses nvidia-peermem" in told
    assert "NCCL_DMABUF_ENABLE" not in told


def test_neither_path_works() -> None:
    told = only(HOST, failed(BY_PEERMEM, "not loaded"), failed(BY_DMABUF, "not exported"))
    assert "neither path works" in told
    assert "not loaded" in told
    assert "not exported" in told


def test_the_paths_against_each_other() -> None:
    assert "are equally fast (188 Gb/s and 187 Gb/s)" in only(result(187.0, BY_PEERMEM), result(188.0))
    slower = only(result(188.0, BY_PEERMEM), result(94.0))
    assert "DMA-BUF is 50 % slower than nvidia-peermem (94 Gb/s and 188 Gb/s)" in slower
    assert "nvidia-peermem is 50 % slower" in only(result(94.0, BY_PEERMEM), result(188.0))


def test_host_memory_that_fails_goes_first() -> None:
    told = only(failed(HOST_MEMORY, "the port is down"), failed(BY_DMABUF, "the port is down"))
    assert told.startswith("the test with host memory failed on mlx5_0 too (the port is down)")


def test_memory_that_was_not_asked_for_proves_nothing() -> None:
    by_peermem = result(188.0, facts=(Fact(About.REGISTERED, BY_PEERMEM, ""),))
    told = only(HOST, by_peermem)
    assert "DMA-BUF was not measured: the tool reports registration via nvidia-peermem" in told
    assert "The result (188 Gb/s) was measured with nvidia-peermem and proves nothing about DMA-BUF" in told
    assert "works" not in told
    # Beside a true one of nvidia-peermem they are not two paths that are equally fast.
    told = only(HOST, result(188.0, BY_PEERMEM), by_peermem)
    assert "GPUDirect RDMA via nvidia-peermem works" in told
    assert "via DMA-BUF works" not in told
    assert "equally fast" not in told
    told = only(HOST, result(188.0, facts=(Fact(About.MEMORY, HOST_MEMORY, ""),)))
    assert "the tool printed no line about a GPU buffer" in told
    assert "works" not in told
    assert "as fast as host memory" not in told


def test_a_path_that_is_left_out_says_why() -> None:
    left = LeftOut("GPU0 → mlx5_0 · DMA-BUF", "this perftest is built without DMA-BUF")
    assert "built without DMA-BUF" in only(HOST, result(188.0, BY_PEERMEM), left_out=(left,))
    assert "built without DMA-BUF" in only(result(188.0, BY_PEERMEM), left_out=(left,))


def test_several_pairs_are_named() -> None:
    second = Pair("0000:19:00.0", "GPU1", "mlx5_1", 1)
    host = result(190.0, HOST_MEMORY, pair=Pair(nic="mlx5_1", port=1))
    told = conclusions([HOST, result(188.0), host, result(189.0, pair=second)])
    assert [text.partition(":")[0] for text in told] == ["GPU0 → mlx5_0", "GPU1 → mlx5_1"]


def test_latencies_tell_the_difference_and_no_more() -> None:
    host = latency(1.6, memory=HOST_MEMORY)
    told = only(host, latency(2.2))
    assert "2.20 µs" in told
    assert "1.60 µs" in told
    assert "works" not in told
