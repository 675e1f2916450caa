"""A GPU's registration with the NVLink fabric, as NVML reports it, and what the fabric needs on this node.

Before a GPU behind NVSwitches is registered, every CUDA program fails with error 802 (NVIDIA Fabric Manager
user guide). GPUs of one cluster and clique reach each other over NVLink, also between the nodes of a rack
(nvmlDeviceGetGpuFabricInfoV).

On boards with fourth-generation NVSwitches (HGX B200, B300) Fabric Manager's unit starts NVLSM, the NVLink
subnet manager, and does not start without ib_umad (its user guide; spectrocloud/CanvOS pull request 700).
Jobs that reach GPUs of other nodes over NVLink need an IMEX channel (NVIDIA IMEX guide, "IMEX Channels").
"""

from __future__ import annotations

import re
import zlib

from probes.base.frozen import frozen
from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, is_there, map_known
from probes.facts.pci.functions import PciFacts
from probes.host.nvml import FABRIC_STATES, NvmlGpu
from probes.host.protocol import Host

NOT_SUPPORTED, COMPLETED = FABRIC_STATES[0], FABRIC_STATES[-1]
UNFINISHED = ("not started", "in progress", "failed")
"""States in which CUDA programs fail with error 802."""
NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
NODES_CONFIG = "/etc/nvidia-imex/nodes_config.cfg"
CHANNELS = "/dev/nvidia-caps-imex-channels"
UMAD_MODULE = "/sys/module/ib_umad"
_CHANNEL = re.compile(r"channel\d{1,5}")
_MAX_PROCESSES = 32768
_NO_SWITCHES = Unknown(Reason.NOT_THERE, NVLSM, "no NVSwitch here is managed through a ConnectX")

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


@frozen
class FabricServiceFacts:
    """The parts besides the services of systemd."""

    nvlsm_program: Maybe[str]  # path; NOT_THERE: not installed on the host, but perhaps in a driver container
    nvlsm_runs: Maybe[bool]
    umad_loaded: Maybe[bool]  # ib_umad is loaded or built in
    imex_channels: Maybe[int]  # number of channel files; NOT_THERE: no such directory
    imex_nodes: Maybe[int]  # nodes of the IMEX domain; NOT_THERE: it is not configured
    imex_list: Maybe[str]  # "18 nodes, 3f2a91c0": equal for equal lists


def probe(host: Host, pci: Maybe[PciFacts]) -> FabricServiceFacts:
    """Look for programs, processes and files; processes only where NVLSM may run."""
    has_bridge = not isinstance(pci, Unknown) and bool(pci.management)
    channels = map_known(host.names(CHANNELS), lambda names: len([n for n in names if _CHANNEL.fullmatch(n)]))
    nodes = host.read(NODES_CONFIG)
    return FabricServiceFacts(
        nvlsm_program=map_known(host.size(NVLSM), lambda _: NVLSM) if has_bridge else _NO_SWITCHES,
        nvlsm_runs=_runs(host) if has_bridge else _NO_SWITCHES,
        umad_loaded=is_there(host.names(UMAD_MODULE)),
        imex_channels=channels,
        imex_nodes=map_known(nodes, lambda text: len(addresses_of(text))),
        imex_list=map_known(nodes, _list_of),
    )


def addresses_of(text: str) -> list[str]:
    """Parse nodes_config.cfg: one IP address a line, comments begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _list_of(text: str) -> str:
    addresses = sorted(addresses_of(text))
    digest = zlib.crc32("\n".join(addresses).encode("utf-8", "replace"))
    return f"{plural(len(addresses), 'node')}, {digest:08x}"


def _runs(host: Host) -> Maybe[bool]:
    """Return whether a process is NVLSM; unknown if the processes of others are not visible."""
    names = host.names("/proc")
    if isinstance(names, Unknown):
        return names
    pids = [name for name in names if name.isdecimal()][:_MAX_PROCESSES]
    if any(host.read(f"/proc/{pid}/comm", 4096) == "nvlsm" for pid in pids):
        return True
    first = host.read("/proc/1/comm", 4096)
    if isinstance(first, Unknown) or first not in ("systemd", "init"):
        detail = "the node's processes are not visible from here (a container, or hidepid)"
        return Unknown(Reason.NOT_THERE, "/proc/1/comm", detail)
    return False
