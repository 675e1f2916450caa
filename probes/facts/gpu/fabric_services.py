"""What the NVLink fabric needs on this node: NVLSM and ib_umad for the NVSwitches, IMEX for other nodes.

On boards with fourth-generation NVSwitches (HGX B200, B300) Fabric Manager's unit starts NVLSM, the NVLink
subnet manager, and does not start without ib_umad (its user guide; spectrocloud/CanvOS pull request 700).
Jobs that reach GPUs of other nodes over NVLink need an IMEX channel (NVIDIA IMEX guide, "IMEX Channels").
"""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.pci.functions import PciFacts
from probes.host.protocol import Host

NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
NODES_CONFIG = "/etc/nvidia-imex/nodes_config.cfg"
CHANNELS = "/dev/nvidia-caps-imex-channels"
UMAD_MODULE = "/sys/module/ib_umad"
_CHANNEL = re.compile(r"channel\d{1,5}")
_MAX_PROCESSES = 32768
_NO_SWITCHES = Unknown(Reason.NOT_THERE, NVLSM, "no NVSwitch here is managed through a ConnectX")


@frozen
class FabricServiceFacts:
    """The parts besides the services of systemd."""

    nvlsm_program: Maybe[str]  # path; NOT_THERE: not installed on the host, but perhaps in a driver container
    nvlsm_runs: Maybe[bool]
    umad_loaded: Maybe[bool]  # ib_umad is loaded or built in
    imex_channels: Maybe[int]  # number of channel files; NOT_THERE: no such directory
    imex_nodes: Maybe[int]  # nodes of the IMEX domain; NOT_THERE: it is not configured


def probe(host: Host, pci: Maybe[PciFacts]) -> FabricServiceFacts:
    """Look for programs, processes and files; processes only where NVLSM may run."""
    has_bridge = not isinstance(pci, Unknown) and bool(pci.management)
    channels = map_known(host.names(CHANNELS), lambda names: len([n for n in names if _CHANNEL.fullmatch(n)]))
    return FabricServiceFacts(
        nvlsm_program=map_known(host.size(NVLSM), lambda _: NVLSM) if has_bridge else _NO_SWITCHES,
        nvlsm_runs=_runs(host) if has_bridge else _NO_SWITCHES,
        umad_loaded=_is_there(host, UMAD_MODULE),
        imex_channels=channels,
        imex_nodes=map_known(host.read(NODES_CONFIG), count_nodes),
    )


def count_nodes(text: str) -> int:
    """Count the nodes in nodes_config.cfg: one IP address a line, comments begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def _is_there(host: Host, directory: str) -> Maybe[bool]:
    names = host.names(directory)
    if isinstance(names, Unknown):
        return False if names.reason is Reason.NOT_THERE else names
    return True


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
