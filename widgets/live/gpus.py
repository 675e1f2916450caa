"""The GPUs, one row each: PCIe and NVLink rates, utilization, memory, BAR1, temperature, throttling."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.unknown import Maybe, Unknown
from probes.host.nvml import NvmlLive
from probes.live.model.sample import GpuSample, LiveSample
from widgets.base.columns import Column, draw_columns
from widgets.base.figures import UNKNOWN_MARK, gibibytes, in_gbps, short
from widgets.base.lines import Line, Run, Tone, line
from widgets.live.figures import gpu_labels


def draw(sample: LiveSample, width: int, selected: str = "", only: str = "") -> list[Line]:
    """Draw a row a GPU, or one GPU `only`; a GPU that does not respond shows why."""
    if not sample.gpus:
        return [(Run("No NVIDIA GPU.", Tone.DIM),)]
    labels = gpu_labels(sample)
    shown = [gpu for gpu in sample.gpus if not only or gpu.bdf == only]
    lives = [gpu.live for gpu in shown]

    def figures(of: Sequence[Run]) -> list[Line]:
        return [line(run) for run in of]

    def column(title: str, importance: int, cells: Sequence[Run], least: int = 0) -> Column:
        return Column(title, figures(cells), importance, True, least=least)

    columns = [
        Column("GPU", figures([_name(gpu, labels) for gpu in shown]), 1, least=4),
        column("use", 2, [_percent(live) for live in lives], 4),
        column("↑PCIe", 3, [_rate(live, "pcie_tx_bytes_per_second") for live in lives]),
        column("↓PCIe", 3, [_rate(live, "pcie_rx_bytes_per_second") for live in lives]),
        column("↑NVLink", 7, [_rate(live, "nvlink_tx_bytes_per_second") for live in lives]),
        column("↓NVLink", 7, [_rate(live, "nvlink_rx_bytes_per_second") for live in lives]),
        column("memory", 5, [_bytes(live, "memory_used_bytes") for live in lives], 6),
        column("BAR1", 8, [_bytes(live, "bar1_used_bytes") for live in lives], 6),
        column("°C", 6, [_integer(live, "temperature_celsius") for live in lives], 3),
        column("W", 9, [_integer(live, "power_watts") for live in lives], 4),
        column("SM MHz", 10, [_integer(live, "sm_clock_mhz") for live in lives]),
        Column("throttled", figures([_throttle(live) for live in lives]), 4, least=9, grows=True),
    ]
    return draw_columns(columns, [gpu.bdf for gpu in shown], width, selected)


def _name(gpu: GpuSample, labels: dict[str, str]) -> Run:
    return Run(labels[gpu.bdf], Tone.BAD if isinstance(gpu.live, Unknown) else Tone.GPU)


def _field(live: Maybe[NvmlLive], name: str) -> Maybe[float]:
    if isinstance(live, Unknown):
        return live
    value: Maybe[float] = getattr(live, name)
    return value


def _unknown() -> Run:
    return Run(UNKNOWN_MARK, Tone.DIM)


def _percent(live: Maybe[NvmlLive]) -> Run:
    value = _field(live, "utilisation_percent")
    return _unknown() if isinstance(value, Unknown) else Run(f"{value:.0f}%")


def _rate(live: Maybe[NvmlLive], name: str) -> Run:
    value = in_gbps(_field(live, name))
    return _unknown() if isinstance(value, Unknown) else Run(short(value))


def _bytes(live: Maybe[NvmlLive], name: str) -> Run:
    value = _field(live, name)
    return _unknown() if isinstance(value, Unknown) else Run(gibibytes(int(value)))


def _integer(live: Maybe[NvmlLive], name: str) -> Run:
    value = _field(live, name)
    return _unknown() if isinstance(value, Unknown) else Run(f"{value:.0f}")


def _throttle(live: Maybe[NvmlLive]) -> Run:
    if isinstance(live, Unknown):
        return Run(str(live), Tone.BAD)
    reasons = live.throttle_reasons
    if isinstance(reasons, Unknown):
        return _unknown()
    return Run(", ".join(reasons), Tone.WARNING) if reasons else Run("none", Tone.DIM)
