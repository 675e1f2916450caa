"""Where the programs of a simulated node run, and the path of their data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import PLUGIN_DRIVERS, RDMA_MODULE_OF
from probes.queries.kernel_log import IMPORTER
from probes.simulation.node.devices.ports import is_active
from probes.simulation.node.model.tree import PlacedNic, Program, Tree, Via
from probes.simulation.node.model.workload import angle_of

_ROOT_PORT_DEPTH = len(["", "sys", "devices", "pci0000:15", "0000:15:01.0"])


def path_of(tree: Tree, program: Program) -> Via:
    """Return the path of a program now.

    Regions of nvidia_peermem exist only while the module is loaded, and no rank runs without the driver.
    """
    if program.is_nccl and "nvidia" not in tree.live_modules:
        return Via.NONE
    if program.via is Via.PEERMEM and (PEERMEM, "job") not in tree.references:
        return without_peermem(tree)
    return program.via


def ranks(tree: Tree) -> list[Program]:
    """Return the connected ranks of all jobs."""
    return [program for program in tree.programs if program.is_nccl and program.nics]


def used_nics(tree: Tree) -> list[PlacedNic]:
    """Return the NICs over which ranks are connected."""
    used = {name for program in ranks(tree) for name in program.nics}
    return [nic for nic in tree.nics if nic.name in used]


def settle_paths(tree: Tree) -> None:
    """Give ranks the path that they could take at their start, on this node with all its faults."""
    nics = {nic.name: nic for nic in tree.nics}
    for program in tree.programs:
        if not program.via.is_gdr or "nvidia" not in tree.live_modules:
            continue
        via = path_of(tree, program)
        used = [nics[name] for name in program.nics]
        if via is Via.PEERMEM and not all(takes_peer_memory(tree, nic) for nic in used):
            via = without_peermem(tree)
        if via is Via.DMABUF and not all(registers_dmabuf(tree, nic) for nic in used):
            via = Via.HOST
        program.via = via


def without_peermem(tree: Tree) -> Via:
    """Return the path that NCCL takes on this node without nvidia_peermem."""
    if uses_cxi(tree) and tree.description.offers_gdr:
        return Via.PLUGIN
    return Via.DMABUF if registers_dmabuf(tree) else Via.HOST


def registers_dmabuf(tree: Tree, nic: PlacedNic | None = None) -> bool:
    """Return whether the NIC registers GPU memory through DMA-BUF, and the driver lets it; None: any NIC."""
    node = tree.description
    is_refused = any(words in line for line in tree.kernel_log for words in IMPORTER)
    refuses = nic is not None and nic.name in node.gpudirect.refusing
    return node.gpudirect.dmabuf and node.exports_dmabuf and not (is_refused or refuses or _is_denied(tree))


def takes_peer_memory(tree: Tree, nic: PlacedNic) -> bool:
    """Return whether the NIC's driver calls nvidia_peermem, and the GPU driver lets it."""
    drivers = (*RDMA_MODULE_OF, *(("erdma",) if tree.description.modules.ofed else ()))
    return nic.kind.driver in drivers and tree.description.offers_gdr and not _is_denied(tree)


def _is_denied(tree: Tree) -> bool:
    """Return whether NVreg_GrdmaPciTopoCheckOverride=2 denies every NIC; GPUs with C2C links are exempt."""
    is_set = "GrdmaPciTopoCheckOverride: 2" in tree.text("/proc/driver/nvidia/params")
    return is_set and tree.description.driver.numbers >= (580, 65, 6) and not tree.description.gpu.c2c


def uses_cxi(tree: Tree) -> bool:
    """Return whether the compute NICs are Slingshot's, which have no verbs."""
    nic = tree.description.nic.get("compute")
    return nic is not None and nic.driver == "cxi_ss1"


def needs_plugin(tree: Tree) -> bool:
    """Return whether NCCL can use the compute NICs only through a network plugin: EFA and Slingshot."""
    nic = tree.description.nic.get("compute")
    return nic is not None and nic.driver in PLUGIN_DRIVERS


def path_between(tree: Tree, gpu: int, nic: PlacedNic) -> Via:
    """Return the path that NCCL takes between a GPU and a NIC; on different sockets it copies."""
    node = tree.description
    if needs_plugin(tree) and not node.system.plugin:
        return Via.TCP
    if tree.gpus[gpu].numa != nic.numa and not node.gpu.c2c:
        return Via.HOST
    if PEERMEM in tree.live_modules and takes_peer_memory(tree, nic) and node.gpudirect.regions:
        return Via.PEERMEM
    return without_peermem(tree)


def nearest_nics(tree: Tree) -> list[PlacedNic]:
    """Return the active compute NIC of each GPU: most of the PCIe path in common, used least so far."""
    nics = [nic for nic in tree.compute_nics if is_active(tree, nic)]
    uses = dict.fromkeys((nic.name for nic in nics), 0)
    chosen: list[PlacedNic] = []
    for gpu in range(len(tree.gpus) if nics else 0):
        best = max(nics, key=lambda nic: (*_nearness(tree, gpu, nic), -uses[nic.name]))
        uses[best.name] += 1
        chosen.append(best)
    return chosen


def _nearness(tree: Tree, gpu: int, nic: PlacedNic) -> tuple[int, bool]:
    """Return how much of the PCIe path a GPU and a NIC have in common, and whether their NUMA node is one."""
    path = str(tree.real(f"/sys/bus/pci/devices/{tree.gpus[gpu].bdf}")).split("/")
    pairs = zip(path, nic.path.split("/"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), nic.numa == tree.gpus[gpu].numa


def switches_between(tree: Tree, gpu: int, nic: PlacedNic) -> int:
    """Return how many PCIe switches are between a GPU and a NIC; 0: they are below different root ports."""
    path = str(tree.real(f"/sys/bus/pci/devices/{tree.gpus[gpu].bdf}")).split("/")
    common, _ = _nearness(tree, gpu, nic)
    if common < _ROOT_PORT_DEPTH:
        return 0
    # A switch is an upstream and a downstream port, and the last part is the device.
    return max(1, max(len(path), len(nic.path.split("/"))) - common - 1)


def nics_of_gpus(tree: Tree) -> list[tuple[PlacedNic, ...]]:
    """Return the NICs over which NCCL connects each GPU: its nearest, and those that are nearest to it."""
    chosen = [[nic] for nic in nearest_nics(tree)]
    used = {nic.name for nics in chosen for nic in nics}
    for nic in tree.compute_nics if chosen else ():
        if nic.name not in used and is_active(tree, nic):
            best = max(range(len(chosen)), key=lambda gpu: (*_nearness(tree, gpu, nic), -len(chosen[gpu])))
            chosen[best].append(nic)
    return [tuple(nics) for nics in chosen]


def peermem_regions(tree: Tree, seconds: float, programs: Sequence[Program] | None = None) -> dict[int, int]:
    """Return the number of regions of each pid through nvidia-peermem; it varies as the job runs.

    `programs`: those that are asked about; None: all.
    """
    usual, angle = tree.description.gpudirect.regions, angle_of(tree.seed, "regions")
    total = round(usual * (1 + 0.25 * math.sin(math.tau * seconds / 41.0 + angle)))
    each, more = divmod(max(1, total), len(tree.gpus)) if tree.gpus and usual else (0, 0)
    return {
        program.pid: each + (program.gpu < more) if program.pool is None else len(program.nics)
        for program in (tree.programs if programs is None else programs)
        if program.via is Via.PEERMEM and program.gpu is not None
    }


def is_alive(tree: Tree, program: Program) -> bool:
    """Say whether a program's process is in /proc."""
    return tree.is_there(f"/proc/{program.pid}")


def programs_by_gpu(tree: Tree) -> dict[int, tuple[int, ...]]:
    """Return the pids that NVML lists for each GPU, by its number."""
    found: dict[int, tuple[int, ...]] = {}
    for program in tree.programs:
        is_starting = not program.nics and "nvidia" in tree.live_modules  # before it connects
        if program.gpu is not None and (program.via is not Via.NONE or is_starting):
            found[program.gpu] = (*found.get(program.gpu, ()), program.pid)
    return found
