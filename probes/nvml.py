"""NVML's facts as plain dataclasses, each asked one by one so that one failing call costs one fact."""

from __future__ import annotations

from dataclasses import dataclass

from probes.unknown import Maybe, Reason, Unknown


@dataclass(frozen=True)
class NvmlGpu:
    """What NVML says of one GPU and does not change from second to second."""

    index: int
    bdf: str  # "0000:1b:00.0", sysfs spelling
    name: Maybe[str]
    uuid: Maybe[str]
    compute_capability: Maybe[tuple[int, int]]
    memory_total_bytes: Maybe[int]
    bar1_total_bytes: Maybe[int]
    link_generation_max: Maybe[int]  # of GPU and slot together
    link_width_max: Maybe[int]
    nvlinks: Maybe[int]  # active NVLinks
    nvlink_peers: Maybe[tuple[tuple[str, int], ...]]  # (remote BDF, links); a switch is a remote too
    c2c_links: Maybe[int]  # chip-to-chip links to the CPU (Grace); 0 elsewhere
    persistence: Maybe[bool]
    mig: Maybe[bool]


@dataclass(frozen=True)
class NvmlFacts:
    """What NVML says of the driver and of every GPU it can reach."""

    driver_version: Maybe[str]
    nvml_version: Maybe[str]
    cuda_version: Maybe[str]  # "12.4", the newest the driver serves
    gpus: tuple[Maybe[NvmlGpu], ...]  # a GPU off the bus is an Unknown whose source is its index or BDF


@dataclass(frozen=True)
class NvmlLive:
    """One reading of one GPU's moving figures."""

    bdf: str
    utilisation_percent: Maybe[int]
    memory_used_bytes: Maybe[int]
    temperature_celsius: Maybe[int]
    power_watts: Maybe[float]
    pcie_tx_bytes_per_second: Maybe[float]  # from the GPU
    pcie_rx_bytes_per_second: Maybe[float]  # to the GPU
    link_generation: Maybe[int]
    link_width: Maybe[int]
    processes: Maybe[tuple[int, ...]]  # pids with a compute context


class NvmlLibrary:
    """The one NVML session; opened at the first question and after it has failed, asked again."""

    def facts(self) -> Maybe[NvmlFacts]:
        """Driver and GPUs; the reason says: no library, no driver, versions differ, GPU lost."""
        return Unknown(Reason.NOT_THERE, "libnvidia-ml.so.1")

    def live(self) -> Maybe[tuple[NvmlLive, ...]]:
        """One reading of every GPU."""
        return Unknown(Reason.NOT_THERE, "libnvidia-ml.so.1")
