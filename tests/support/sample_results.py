"""Results as tests want them."""

from dataclasses import replace

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.rating import Assessment, Rating
from probes.bandwidth.model.result import Ending, Result
from probes.bandwidth.model.samples import BY_DMABUF, HOST_MEMORY, Latency, Sample

MORNING = 1_795_000_000.0


def result(gbps: float | None = 186.0, memory: str = BY_DMABUF, **changed: object) -> Result:
    """GPU0 over mlx5_0 in loopback, near the line of 200 Gb/s from 180 on."""
    near = gbps is not None and gbps >= 180
    words = "" if gbps is None else f"{gbps:.0f} of 200 Gb/s, {gbps / 2:.0f} %"
    gpu = ("", "") if memory == HOST_MEMORY else ("0000:18:00.0", "GPU0")
    figure = None if gbps is None else Sample("RDMA_Write", f" 1048576 {gbps}", size_bytes=1 << 20, gbps=gbps)
    sample_result = Result(
        taken_at=MORNING,
        seconds=13.0,
        node="h100-07",
        machine="Supermicro, 8 × H100",
        origin="live",
        title=f"{gpu[1]} → mlx5_0 · {memory}" if gpu[1] else f"mlx5_0 · {memory}",
        tool="ib_write_bw",
        setup="loopback",
        pair=Pair(gpu[0], gpu[1], "mlx5_0", 1),
        memory=memory,
        size_bytes=1 << 20,
        queue_pairs=1,
        is_bidirectional=False,
        commands=("ib_write_bw -d mlx5_0", "ib_write_bw -d mlx5_0 127.0.0.1"),
        ending=Ending.DONE,
        samples=() if figure is None else (figure,),
        facts=(),
        figure=figure,
        judgment=Assessment(Rating.NEAR if near else Rating.BELOW, words, "port 1 limits: 4X HDR", 0.9),
        limit_gbps=200.0,
        limit_by="port 1 of mlx5_0",
    )
    return replace(sample_result, **changed)  # type: ignore[arg-type]


def failed(memory: str = BY_DMABUF, failure: str = "it broke", raw: str = "error=14") -> Result:
    return result(None, memory, ending=Ending.FAILED, failure=failure, failure_line=raw)


def latency(us: float, **changed: object) -> Result:
    row = Sample(
        "RDMA_Write", f" 2 {us}", size_bytes=2, latencies=(Latency("min", 1.0), Latency("typical", us))
    )
    told = {"tool": "ib_write_lat", "figure": row, "samples": (row,), "size_bytes": None, **changed}
    return result(None, **told)  # type: ignore[arg-type]


def judged(sample_result: Result, verdict: Rating, why: str = "") -> Result:
    return replace(sample_result, judgment=replace(sample_result.judgment, verdict=verdict, why=why))
