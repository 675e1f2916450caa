"""NVML's facts as dataclasses, and what its numbers mean."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown

_NOT_ASKED = Unknown(Reason.NOT_RECORDED, "NVML", "not queried")
LOST = "the GPU has fallen off the bus"
"""Detail for NVML_ERROR_GPU_IS_LOST."""


@frozen
class NvmlGpu:
    """What NVML reports about a GPU and does not change from second to second."""

    index: int
    bdf: str  # "0000:1b:00.0", as in sysfs
    name: Maybe[str]
    uuid: Maybe[str]
    compute_capability: Maybe[tuple[int, int]]
    memory_total_bytes: Maybe[int]
    bar1_total_bytes: Maybe[int]
    nvlinks: Maybe[int]  # active NVLinks
    nvlink_peers: Maybe[tuple[tuple[str, int], ...]]  # (remote BDF, links); a switch is also a remote
    c2c_links: Maybe[int]  # chip-to-chip links to the CPU (Grace); 1 if NVML does not count them; 0 elsewhere
    persistence: Maybe[bool]
    mig: Maybe[bool]
    is_vgpu: Maybe[bool] = _NOT_ASKED  # part of a GPU, created by a hypervisor
    fabric: Maybe[str] = _NOT_ASKED  # one of FABRIC_STATES, or "failed"
    # Known once the state is "completed".
    fabric_clique: Maybe[int] = _NOT_ASKED  # GPUs with the same cluster and clique share NVLink
    fabric_cluster: Maybe[str] = _NOT_ASKED  # UUID; all zeros on a board that is not part of a rack
    fabric_health: Maybe[int] = _NOT_ASKED  # NVML_GPU_FABRIC_HEALTH_MASK_…
    serial: Maybe[str] = _NOT_ASKED  # of its board, as on the label; some boards have several GPUs


@frozen
class NvmlFacts:
    """What NVML reports about the driver and every GPU it can reach."""

    driver_version: Maybe[str]
    cuda_version: Maybe[str]  # "12.4", the newest version that the driver supports
    gpus: tuple[Maybe[NvmlGpu], ...]  # a GPU off the bus is an Unknown whose source is its index or BDF
    confidential_computing: Maybe[bool] = _NOT_ASKED  # other devices cannot access GPU memory


@frozen
class NvmlLive:
    """One reading of a GPU's live figures."""

    bdf: str
    utilization_percent: Maybe[int]
    memory_used_bytes: Maybe[int]
    temperature_celsius: Maybe[int]
    power_watts: Maybe[float]
    pcie_tx_bytes_per_second: Maybe[float]  # from the GPU
    pcie_rx_bytes_per_second: Maybe[float]  # to the GPU
    link_generation: Maybe[int]
    link_width: Maybe[int]
    processes: Maybe[tuple[int, ...]]  # pids with a compute context
    nvlink_tx_bytes_per_second: Maybe[float] = _NOT_ASKED  # all links together
    nvlink_rx_bytes_per_second: Maybe[float] = _NOT_ASKED
    bar1_used_bytes: Maybe[int] = _NOT_ASKED
    sm_clock_mhz: Maybe[int] = _NOT_ASKED
    throttle_reasons: Maybe[tuple[str, ...]] = _NOT_ASKED  # "power cap", "thermal", …; (): none


FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
"""Registration states with the NVLink fabric, by nvmlGpuFabricState_t."""
# nvmlClocksEventReason…. Idle GPUs and clocks set by an admin are not throttled.
_THROTTLE_REASONS = {
    0x04: "power cap",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "HW thermal",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}
_HW_SLOWDOWN = 0x08  # set together with HW thermal and power brake


def bdf_of(bus_id: str) -> str:
    """Convert NVML's "00000000:1B:00.0" to "0000:1b:00.0" as in sysfs; longer domains keep their digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain[:-4].strip('0') == '' else domain.lstrip('0')}:{rest}"


def throttle_words(reasons: int) -> tuple[str, ...]:
    """Return why clocks are reduced."""
    words = tuple(word for bit, word in _THROTTLE_REASONS.items() if reasons & bit)
    return words or (("HW slowdown",) if reasons & _HW_SLOWDOWN else ())
