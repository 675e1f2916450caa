"""The GPUs, one row each: PCIe and NVLink rates, utilization, memory, BAR1, temperature, throttling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from probes.base.unknown import Maybe, Unknown
from probes.host.nvml import NvmlLive
from probes.live.model.sample import GpuSample, LiveSample
from widgets.base.columns import Column, ColumnWidths, cells_of, draw_columns
from widgets.base.figures import figure_run, gibibytes, in_gbps, short
from widgets.base.lines import LazyLines, Line, Run, Tone, wrapped
from widgets.live.columns import COLUMNS, sorted_title
from widgets.live.figures import gpu_labels
from widgets.live.order import FINE, SortKeys, badness_of_devices, falling, sorted_by_column


def draw(
    sample: LiveSample,
    width: int,
    selected: str = "",
    only: str = "",
    widths: ColumnWidths | None = None,
    hidden: Collection[str] = (),
    sort: str | None = None,
) -> Sequence[Line]:
    """Draw a row a GPU, or one GPU `only`; a GPU that does not respond shows why.

    `widths`: of the drawing before; `hidden`: titles of columns; `sort`: the order of `sorted_rows`, which a
    click on a head changes; None: by index.
    """
    if not sample.gpus:
        return wrapped(sample.no_gpus or "No NVIDIA GPU.", width, Tone.DIM)
    labels = gpu_labels(sample)
    rows = sample.gpus if sort is None else sorted_rows(sample, sort)
    shown = [gpu for gpu in rows if not only or gpu.bdf == only]

    def cells(cell: Callable[[GpuSample], Run]) -> LazyLines:
        return cells_of(shown, cell)

    def column(title: str, importance: int, field: str, text: Callable[[float], str], least: int) -> Column:
        figures = cells(lambda gpu: figure_run(_field(gpu.live, field), text))
        return Column(title, figures, importance, True, least=least)

    columns = [
        Column("GPU", cells(lambda gpu: _name(gpu, labels)), 1, least=4),
        *(column(*row) for row in FIGURES),
        Column("throttled", cells(lambda gpu: _throttle(gpu.live)), 4, least=9, grows=True),
    ]
    marked = None if sort is None else sorted_title("gpus", sort)
    return draw_columns(columns, [gpu.bdf for gpu in shown], width, selected, widths, hidden, marked)


def sorted_rows(sample: LiveSample, sort: str) -> list[GpuSample]:
    """Return the GPUs by a column, or for "" the worst first: those that do not respond."""
    badness = badness_of_devices(sample)
    lost = {gpu.bdf: (0, 0) for gpu in sample.gpus if isinstance(gpu.live, Unknown)}
    worst_first = sorted(sample.gpus, key=lambda gpu: lost.get(gpu.bdf, badness.get(gpu.bdf, FINE)))
    places = {gpu.bdf: float(place) for place, gpu in enumerate(sample.gpus)}
    names = {column.title: column.key for column in COLUMNS["gpus"]}
    keys: SortKeys[GpuSample] = {
        "GPU": lambda gpu: places[gpu.bdf],
        "throttled": lambda gpu: _throttle(gpu.live).text,
        **{names[title]: partial(_figure, field) for title, _, field, _, _ in FIGURES},
    }
    return sorted_by_column(worst_first, keys, sort)


def _figure(field: str, gpu: GpuSample) -> Maybe[float]:
    return falling(_field(gpu.live, field))


def _name(gpu: GpuSample, labels: dict[str, str]) -> Run:
    return Run(labels[gpu.bdf], Tone.BAD if isinstance(gpu.live, Unknown) else Tone.GPU)


def _field(live: Maybe[NvmlLive], name: str) -> Maybe[float]:
    if isinstance(live, Unknown):
        return live
    value: Maybe[float] = getattr(live, name)
    return value


def _gbps(bytes_per_second: float) -> str:
    return short(in_gbps(bytes_per_second))


def _size(size_bytes: float) -> str:
    return gibibytes(int(size_bytes))


def _throttle(live: Maybe[NvmlLive]) -> Run:
    if isinstance(live, Unknown):
        return Run(str(live), Tone.BAD)
    reasons = live.throttle_reasons
    if isinstance(reasons, Unknown):
        return figure_run(reasons)
    return Run(", ".join(reasons), Tone.WARNING) if reasons else Run("none", Tone.DIM)


# Title, importance, field of NVML, text and cells of each figure.
FIGURES: tuple[tuple[str, int, str, Callable[[float], str], int], ...] = (
    ("use", 2, "utilization_percent", "{:.0f}%".format, 4),
    ("↑PCIe", 3, "pcie_tx_bytes_per_second", _gbps, 0),
    ("↓PCIe", 3, "pcie_rx_bytes_per_second", _gbps, 0),
    ("↑NVLink", 7, "nvlink_tx_bytes_per_second", _gbps, 0),
    ("↓NVLink", 7, "nvlink_rx_bytes_per_second", _gbps, 0),
    ("memory", 5, "memory_used_bytes", _size, 6),
    ("BAR1", 8, "bar1_used_bytes", _size, 6),
    ("°C", 6, "temperature_celsius", "{:.0f}".format, 3),
    ("W", 9, "power_watts", "{:.0f}".format, 4),
    ("SM MHz", 10, "sm_clock_mhz", "{:.0f}".format, 0),
)
