"""A GPU's registration with the NVLink fabric, as NVML reports it (nvmlDeviceGetGpuFabricInfoV).

Before a GPU behind NVSwitches is registered, every CUDA program fails with error 802 (NVIDIA Fabric Manager
user guide). GPUs of one cluster and clique reach each other over NVLink, also between the nodes of a rack.
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.host.nvml import FABRIC_STATES, NvmlGpu

NOT_SUPPORTED, COMPLETED = FABRIC_STATES[0], FABRIC_STATES[-1]
UNFINISHED = ("not started", "in progress", "failed")
"""States in which CUDA programs fail with error 802."""

_NOT_REPORTED = Unknown(Reason.NOT_THERE, "NVML", "not reported by this driver")
_NO_CLUSTER = Unknown(Reason.NOT_THERE, "NVML", "not part of a rack's NVLink domain")
# Offset of a two-bit field (0: not supported, 1: true, 2: false) and what its bad value means (nvml.h,
# NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…).
_FLAGS = (
    (0, 1, "reduced NVLink bandwidth"),
    (2, 1, "route recovery in progress"),
    (4, 1, "a route is unhealthy"),
    (6, 1, "recovery after an access timeout"),
    (12, 2, "no partition is assigned"),
    (14, 2, "the rack's fabric manager is disconnected"),
)
# NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…, four bits at offset 8; 1: none.
_CONFIGURATION = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible GPU firmware",
    7: "wrong location",
    8: "invalid GPU state",
}


@frozen
class GpuFabric:
    """State and place of a GPU in the NVLink fabric."""

    state: Maybe[str]  # one of FABRIC_STATES, "failed", or "unknown" for a state that NVML adds later
    clique: Maybe[int]  # known once registered
    cluster: Maybe[str]  # UUID; NOT_THERE on a board that is not part of a rack
    problems: Maybe[tuple[str, ...]]  # (): healthy


def fabric_of(nvml: Maybe[NvmlGpu]) -> GpuFabric:
    """Return what NVML reports about a GPU's place in the fabric."""
    if isinstance(nvml, Unknown):
        return GpuFabric(nvml, nvml, nvml, nvml)
    cluster = nvml.fabric_cluster
    if not isinstance(cluster, Unknown) and not cluster.strip("0-"):
        cluster = _NO_CLUSTER
    health = nvml.fabric_health
    if health == 0:  # every field is "not supported"
        health = _NOT_REPORTED
    return GpuFabric(nvml.fabric, nvml.fabric_clique, cluster, map_known(health, problems_of))


def problems_of(mask: int) -> tuple[str, ...]:
    """Return what a health mask reports as wrong."""
    found = [text for shift, bad, text in _FLAGS if mask >> shift & 0x3 == bad]
    reason = mask >> 8 & 0xF
    if reason > 1:
        found.append(f"incorrect configuration: {_CONFIGURATION.get(reason, f'reason {reason}')}")
    return tuple(found)
