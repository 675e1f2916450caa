"""What NVML reports of a simulated node: its driver and GPUs, and one reading of every GPU."""

from __future__ import annotations

from functools import lru_cache

from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.functions import generation, parse_speed
from probes.host.nvml import NvmlFacts, NvmlGpu, NvmlLive
from probes.simulation.node.jobs.programs import programs_by_gpu
from probes.simulation.node.jobs.traffic import held_rank, nics_of_gpu, traffic_of_gpu
from probes.simulation.node.model.tree import GIB, Tree, uuid_of
from probes.simulation.node.model.workload import GPU_LOAD, Wave, angle_of, phase_at
from probes.simulation.node.system.services import fabric_place, fabric_state
from probes.simulation.node.system.software import library_mismatch, library_missing

_NVLINK_BYTES_PER_SECOND = 7e9  # of each link during an all-reduce
_BAR1_MIB = 1412
_SM_CLOCK_MHZ = 1755
_SPINNING_LOAD = 0.2
_NOT_LOADED = Unknown(Reason.NOT_THERE, "NVML", "the NVIDIA driver is not loaded")


def nvml_facts(tree: Tree) -> Maybe[NvmlFacts]:
    """Return driver and GPUs as described."""
    if "nvidia" not in tree.live_modules:
        return _NOT_LOADED
    driver, special = tree.description.driver, tree.description.nvml
    if missing := library_missing(tree):
        return Unknown(Reason.NOT_THERE, "NVML", missing)
    if refusal := special.refusal or library_mismatch(tree) or tree.unstarted:
        return Unknown(Reason.DRIVER_ERROR, "NVML", refusal)
    return NvmlFacts(
        driver_version=tree.text("/sys/module/nvidia/version").strip() or driver.version,
        cuda_version=driver.cuda,
        gpus=tuple(
            _gpu(tree, number, placed.bdf)
            for number, placed in enumerate(tree.gpus)
            if number not in special.unlisted
        ),
        confidential_computing=special.confidential_computing,
    )


def _gpu(tree: Tree, number: int, bdf: str) -> Maybe[NvmlGpu]:
    gpu, special = tree.description.gpu, tree.description.nvml
    if number in special.lost | tree.lost:
        detail = "the GPU has fallen off the bus (see the kernel log, then reboot)"
        return Unknown(Reason.DRIVER_ERROR, bdf, detail)
    peers = _nvlink_peers(tree)
    state = fabric_state(tree, number)
    unset = Unknown(Reason.NOT_THERE, bdf, f"the NVLink fabric is {state}")
    place = fabric_place(tree, number) if state == "completed" else (unset, unset, unset)
    if number in special.with_fewer_nvlinks:
        peers = tuple((switch, links - 1) for switch, links in peers)
    return NvmlGpu(
        index=number,
        bdf=bdf,
        name=gpu.name,
        uuid=uuid_of(number),
        compute_capability=gpu.capability,
        memory_total_bytes=_reported(bdf, gpu.memory_gib * GIB),
        bar1_total_bytes=_reported(bdf, gpu.bar1_gib * GIB),
        nvlinks=sum(links for _, links in peers),
        nvlink_peers=peers,
        c2c_links=gpu.c2c,
        persistence=number in tree.persistent,
        mig=number in tree.mig,
        is_vgpu=special.is_vgpu,
        fabric=state,
        fabric_clique=place[0],
        fabric_cluster=place[1],
        fabric_health=place[2],
        serial=f"16509230{number:05}",
    )


def _nvlink_peers(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Return the links to each NVSwitch; without one in this PCI tree, to one remote switch."""
    links = tree.description.gpu.nvlinks
    if not links:
        return ()
    switches = tree.nvswitches or ["ffff:ff:00.0"]
    shares = [links // len(switches) + (number < links % len(switches)) for number in range(len(switches))]
    return tuple(zip(switches, shares, strict=True))


def nvml_live(tree: Tree, seconds: float) -> Maybe[tuple[NvmlLive, ...]]:
    """Return one reading of every GPU, at a moment in seconds since the node started."""
    if "nvidia" not in tree.live_modules:
        return _NOT_LOADED
    special = tree.description.nvml
    if special.refusal:
        return Unknown(Reason.DRIVER_ERROR, "NVML", special.refusal)
    silent = special.lost | special.unlisted | tree.lost
    gbps = max((nic.gbps for nic in tree.description.nic.values()), default=0.0)
    is_used = ("nvidia", "job") in tree.references
    pids = programs_by_gpu(tree) if is_used else {}
    return tuple(
        _live(tree, number, gbps, seconds, pids.get(number, ()))
        for number in range(len(tree.gpus))
        if number not in silent
    )


def _live(tree: Tree, number: int, gbps: float, seconds: float, pids: tuple[int, ...]) -> NvmlLive:
    gpu, bdf = tree.description.gpu, tree.gpus[number].bdf
    load_wave, tx, rx, nvlink_tx, nvlink_rx = _waves(tree.seed, bdf)
    load = 0.76 * load_wave.at(seconds) * GPU_LOAD[phase_at(tree.seed, seconds)]
    serving = next((engine for engine in tree.engine_loads if number in engine.gpus), None)
    if serving is not None:
        load = serving.load(seconds)
    percent = min(100, round(load * 100))
    if serving is None and (held := held_rank(tree, number, seconds)) is not None:
        # A kernel that waits for a peer spins, at a fraction of the power (nccl#968).
        percent, load = (0, 0.0) if held.behind_at is not None else (100, _SPINNING_LOAD)
    # Over the last second, as the counters of NICs: a frame in which a phase begins has one figure for both.
    share = sum(traffic_of_gpu(tree, number, seconds - part / 4) for part in range(4)) / 4
    traffic = gbps * nics_of_gpu(tree, number) / 8 * 1e9 * share
    if not gpu.memory_gib:  # it uses the CPU's, which NICs reach without the GPU's link
        traffic = 0.0
    nvlink = gpu.nvlinks * _NVLINK_BYTES_PER_SECOND * share
    rates = [traffic * tx.at(seconds), traffic * 0.98 * rx.at(seconds)]
    rates += [nvlink * nvlink_tx.at(seconds), nvlink * nvlink_rx.at(seconds)]
    if serving is not None:
        rates = [rate(seconds) for rate in (*serving.pcie, *serving.nvlink)]
    no_nvlink = None if gpu.nvlinks else Unknown(Reason.NOT_THERE, bdf, "no NVLink")
    idle, busy = gpu.watts
    return NvmlLive(
        bdf=bdf,
        utilization_percent=percent,
        memory_used_bytes=_reported(bdf, round(gpu.memory_gib * GIB * 0.87), number * (37 << 20)),
        temperature_celsius=round(34 + 30 * load),
        power_watts=round(idle + (busy - idle) * min(1.0, load), 1),
        pcie_tx_bytes_per_second=rates[0],
        pcie_rx_bytes_per_second=rates[1],
        link_generation=generation(parse_speed(_link_file(tree, bdf, "speed", seconds)) or 0.0)
        or gpu.link[0],
        link_width=int(_link_file(tree, bdf, "width", seconds) or gpu.link[1]),
        processes=pids,
        nvlink_tx_bytes_per_second=rates[2] if no_nvlink is None else no_nvlink,
        nvlink_rx_bytes_per_second=rates[3] if no_nvlink is None else no_nvlink,
        bar1_used_bytes=_reported(bdf, gpu.bar1_gib and _BAR1_MIB << 20, number * 3 << 20),
        sm_clock_mhz=_SM_CLOCK_MHZ,
        throttle_reasons=("HW thermal",) if number in tree.throttled else (),
    )


def _link_file(tree: Tree, bdf: str, name: str, seconds: float) -> str:
    content = tree.content(f"/sys/bus/pci/devices/{bdf}/current_link_{name}", seconds)
    return known(content, b"").decode().strip()


@lru_cache(maxsize=256)
def _waves(seed: int, bdf: str) -> tuple[Wave, ...]:
    """Return the waves of a GPU's load, and of what it sends and receives over PCIe and NVLink."""
    names = ("tx", "rx", "nvlink tx", "nvlink rx")
    load = Wave(1.0, angle_of(seed, f"{bdf} load"), 61.0, 7.1)
    return load, *(Wave(1.0, angle_of(seed, f"{bdf} {name}")) for name in names)


def _reported(bdf: str, figure: int, more: int = 0) -> Maybe[int]:
    """Return a figure of memory; an integrated GPU has none."""
    if not figure:
        return Unknown(Reason.NOT_THERE, bdf, "not supported by this GPU or driver")
    return figure + more
