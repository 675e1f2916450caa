"""The settings of a test on this node: the nearest NIC, an active port, GID, NUMA node, path, time limit.

On RoCE the GID is the one that NCCL uses too: RoCE v2 with a routed address. InfiniBand needs none.
"""

from __future__ import annotations

from dataclasses import replace

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.request import DEFAULT_BYTES, Mode, Request
from probes.bandwidth.tools.perftest_command import GpuMemory, PerftestSettings
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, map_known
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, RdmaPort
from probes.facts.rdma.port_health import routable_gids
from probes.facts.system.tools import ToolFacts
from probes.queries.pcie_paths import is_gb10
from probes.queries.ports import key_table
from probes.snapshot.examination import Examination
from probes.topology.endpoints import is_down
from probes.topology.nccl_paths import ORDER
from probes.topology.paths import Topology


class NoSuchDevice(Refused):
    """This node does not have the requested GPU or NIC."""


def bdf_of(examination: Examination, typed: str) -> str | Refused:
    """Return the PCI address of a GPU given by its number or address, with or without the domain."""
    facts = examination.node.gpus
    if not isinstance(facts, GpuFacts):
        return Refused(f"GPUs unknown: {facts}")
    name = typed.lower()
    for gpu in facts.gpus:
        if name in (str(gpu.index), f"gpu{gpu.index}", gpu.bdf, gpu.bdf.removeprefix("0000:")):
            return gpu.bdf
    gpus = ", ".join(f"{gpu.index} ({gpu.bdf})" for gpu in facts.gpus) or "none"
    return NoSuchDevice(f"there is no GPU {printable(typed, 40)!r}; the GPUs are: {gpus}")


def no_such_nic(rdma: RdmaFacts, typed: str) -> Refused:
    """Return that there is no such NIC, and which there are."""
    names = ", ".join(device.name for device in rdma.devices) or "none"
    return NoSuchDevice(f"there is no NIC {printable(typed, 40)!r}; the NICs are: {names}")


_ROCE_V2 = "RoCE v2"
ITERATIONS_OF_EACH_SIZE = 1000
"""With all sizes: 16 GiB in total, a third of a second at 400 Gb/s."""
_ALL_SIZES_SECONDS = 20.0
_LATENCY_SECONDS = 3.0
_START_SECONDS = 3.0  # until the ends are connected; CUDA takes most of it
_TIME_LIMIT_SECONDS = 300.0
_WAIT_FOR_PEER_SECONDS = 600.0


def gid_index(port: RdmaPort) -> Maybe[int | None]:
    """Return the GID index to use; None on InfiniBand, which needs none; Unknown if no GID will do."""
    if isinstance(port.link_layer, Unknown):
        return port.link_layer
    if port.link_layer != "Ethernet":
        return None
    if isinstance(port.gids, Unknown):
        return port.gids
    if routed := routable_gids(port.gids):
        return routed[0][0]
    version_2 = [gid for gid in port.gids if gid.type == _ROCE_V2]
    if version_2:
        return min(version_2, key=lambda gid: gid.gid.startswith("fe80:")).index
    return Unknown(Reason.NOT_THERE, f"port {port.number}", "no RoCE v2 GID: the netdev has no address")


def pkey_index(examination: Examination, device: str, port: int) -> int | None:
    """Return the index of the first full member's key where index 0, which tools use, has none."""
    table = key_table(examination, device, port)
    return None if table is None or isinstance(table, Unknown) or table.is_usable else table.first_full


def active_port(device: RdmaDevice) -> RdmaPort | None:
    """Return the first port that is ACTIVE; else the first whose state is unknown."""
    ports = [port for port in device.ports if port.is_active]
    return next(iter(ports or [port for port in device.ports if isinstance(port.state, Unknown)]), None)


def nearest_nic(topology: Topology, gpu: str) -> str | None:
    """Return the name of a GPU's best RDMA device that is not down."""
    devices = topology.devices
    return next((name for name in topology.best_nics.get(gpu, ()) if not is_down(devices.get(name))), None)


def better_nics_down(topology: Topology, gpu: str | None, nic: str) -> tuple[str, ...]:
    """Return the RDMA devices without an active port that a GPU would use instead of this one.

    They are nearer; or equally near, and this one also serves another GPU.
    """
    used = topology.paths.get((gpu or "", nic))
    if used is None or isinstance(used.nccl_pcie, Unknown):
        return ()
    is_shared = sum(best[:1] == (nic,) for best in topology.best_nics.values()) > 1
    farthest = ORDER[used.nccl_pcie] - (0 if is_shared else 1)
    found = []
    for device in topology.devices.values():
        path = topology.paths.get((gpu or "", device.name))
        if path is not None and not isinstance(path.nccl_pcie, Unknown) and is_down(device):
            found += [device.name] if ORDER[path.nccl_pcie] <= farthest else []
    return tuple(found)


_SHARE_OF_FREE = 16  # the buffers of a test take up to four times its largest message
_UNREAD_BYTES = 256 << 20


def most_bytes(examination: Examination) -> int | None:
    """Return the largest message that is safe where GPU memory is the node's memory; None: it has its own.

    A test with 16 GiB froze such a node (https://github.com/NVIDIA/dgx-spark-playbooks/issues/102).
    """
    if not is_gb10(examination):
        return None
    available = map_known(examination.memory, lambda memory: memory.available)
    if isinstance(available, Unknown):
        return _UNREAD_BYTES
    return 1 << max(0, (available // _SHARE_OF_FREE).bit_length() - 1)


def is_without_dmabuf(tools: ToolFacts) -> bool:
    """Return whether perftest is installed, with CUDA and without DMA-BUF."""
    build = tools.perftest
    return not isinstance(build, Unknown) and build.cuda is True and build.dmabuf is False


def gpu_memory(
    examination: Examination, gpu: Gpu, nic: str, dmabuf: bool | None = None
) -> GpuMemory | Refused:
    """Return a GPU's memory by the path that this node would use; `dmabuf` requests one of the two."""
    direct = uses_data_direct(examination, nic)
    if dmabuf is not None:
        return GpuMemory(gpu.index, gpu.bdf, dmabuf, dmabuf and direct)
    facts = examination.node.gpudirect
    if not isinstance(facts, GpuDirectFacts):
        return Refused(f"the usable path to GPU memory is unknown: {facts}")
    of_nic = facts.nic_dmabuf.get(nic)
    tools = examination.tools
    is_too_old = not isinstance(tools, Unknown) and is_without_dmabuf(tools) and facts.peermem.usable is True
    if facts.dmabuf.usable is True and of_nic is not False and not is_too_old:
        return GpuMemory(gpu.index, gpu.bdf, True, direct)
    if facts.peermem.usable is True:
        return GpuMemory(gpu.index, gpu.bdf, False)
    if facts.by_design:
        return Refused(f"by design: {facts.by_design}; host memory can be measured")
    if facts.dmabuf.usable is False and facts.peermem.usable is False:
        return Refused(
            "neither DMA-BUF nor nvidia-peermem is usable on this node (gdrtop check shows why);"
            " host memory can be measured"
        )
    # If unknown, try the path that needs no module: the test will show.
    by_dmabuf = facts.preferred is not GdrPath.PEERMEM
    return GpuMemory(gpu.index, gpu.bdf, by_dmabuf, by_dmabuf and direct)


def uses_data_direct(examination: Examination, nic: str) -> bool:
    """Return whether a NIC has a Data Direct function, and the installed perftest can use it."""
    build = map_known(examination.tools, lambda tools: tools.perftest)
    has_one = any(end.id == nic and end.data_direct for end in examination.topology.nics)
    return has_one and not isinstance(build, Unknown) and build.data_direct is True


def no_rdma(why: Unknown) -> Refused:
    """Return why nothing can be measured over RDMA if no device was found."""
    if why.reason is Reason.NOT_THERE:
        return Refused("no RDMA device; gdrtop check shows why. Tests without a NIC still work")
    return Refused(f"the RDMA devices are unknown: {why}")


def perftest_defaults(
    examination: Examination, gpu: str | None = None, nic: str | None = None, dmabuf: bool | None = None
) -> PerftestSettings | Refused:
    """Return the settings for GPU memory over a NIC (by default its nearest), or for host memory over a NIC.

    `gpu` is a BDF, `nic` an RDMA device. Size and duration are added by `with_duration`.
    """
    node = examination.node
    if not isinstance(node.rdma, RdmaFacts):
        return no_rdma(node.rdma)
    card: Gpu | None = None
    if gpu is not None:
        if not isinstance(node.gpus, GpuFacts):
            return Refused(f"the GPUs are unknown: {node.gpus}")
        card = next((candidate for candidate in node.gpus.gpus if candidate.bdf == gpu), None)
        if card is None:
            return Refused(f"there is no GPU {gpu[:40]}")
        nic = nic or nearest_nic(examination.topology, gpu)
    if nic is None:
        return Refused("no NIC is active" if gpu else "neither a GPU nor a NIC was specified")
    device = next((candidate for candidate in node.rdma.devices if candidate.name == nic), None)
    if device is None:
        return no_such_nic(node.rdma, nic)
    if (port := active_port(device)) is None:
        return Refused(f"no port of {device.name} is active")
    if not has_verbs(device):
        return Refused(f"{device.name} is a Slingshot NIC: it does not support verbs, which perftest needs")
    is_efa = device.driver == "efa"
    index = 0 if is_efa else gid_index(port)  # an EFA has one GID
    memory = None if card is None else gpu_memory(examination, card, device.name, dmabuf)
    if isinstance(memory, Refused):
        return memory
    return PerftestSettings(
        device=device.name,
        port=port.number,
        # If no GID will do, perftest's own choice is as good as any, and its error shows why.
        gid_index=None if isinstance(index, Unknown) else index,
        pkey_index=pkey_index(examination, device.name, port.number),
        connection="SRD" if is_efa else "",  # EFA has no RC (hw/efa/efa_verbs.c)
        gpu=memory,
        # The CPU's buffers and the thread belong on the NIC's NUMA node.
        numa_node=None if isinstance(device.numa_node, Unknown) else device.numa_node,
    )


@frozen
class TimedSettings:
    """Settings with size and duration, and the times that follow from them."""

    settings: PerftestSettings
    seconds: float
    time_limit_s: float
    end_after_s: float | None


def with_duration(request: Request, settings: PerftestSettings) -> TimedSettings:
    """Return how to measure: latency by messages, bandwidth over all sizes or one size for a time.

    perftest prints a row a second only if it runs endlessly (--run_infinitely with -D 1), and never at a
    server that is written to. gdrtop cannot stop the peer's server of a client on this node, but it ends when
    its client has gone.
    """
    limit = _TIME_LIMIT_SECONDS + (_WAIT_FOR_PEER_SECONDS if request.setup is Mode.SERVER else 0.0)
    if request.all_sizes:
        iterations = None if settings.is_latency else ITERATIONS_OF_EACH_SIZE
        settings = replace(settings, size_bytes=None, duration_s=None, all_sizes=True, iterations=iterations)
        return TimedSettings(settings, _ALL_SIZES_SECONDS, limit, None)
    if settings.is_latency:
        settings = replace(settings, size_bytes=request.size_bytes, duration_s=None)
        return TimedSettings(settings, _LATENCY_SECONDS, limit, None)
    duration, size = request.duration_s, request.size_bytes or DEFAULT_BYTES
    seconds, limit = duration + _START_SECONDS, limit + duration
    settings = replace(settings, size_bytes=size, duration_s=duration)
    if request.setup is Mode.SERVER:
        return TimedSettings(settings, seconds, limit, None)
    endless = replace(settings, is_endless=True, duration_s=1)
    return TimedSettings(endless, seconds, limit, float(duration))
