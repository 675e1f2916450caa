"""The one line on top, and what is commonly got wrong about it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import NOT_LISTED, GpuFacts
from probes.facts.gpudirect import (
    GdrPath,
    GpuDirectFacts,
    GpuSupport,
    MemoryPeer,
    PathState,
    PeermemReading,
    Requirement,
)
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.nccl.topology_file import TopologyFile, TopologyFileFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import Reading, read
from probes.snapshot.verdict import State, Verdict, judge
from probes.topology.paths import build

ABSENT = Unknown(Reason.NOT_THERE, "absent")
DENIED = Unknown(Reason.NEEDS_ROOT, "/sys/kernel/debug")
NEEDS_OPEN = "DMA-BUF needs the open kernel modules"
NOT_LOADED = "nvidia_peermem is not loaded"


@cache
def simulated(name: str) -> Node:
    return probe_node(SimulatedHost(name), seconds=60.0)


def state_of(path: GdrPath, usable: Maybe[bool], lack: str = "") -> PathState:
    return PathState(path, usable, (Requirement("a condition", usable, "evidence", lack),))


def direct(
    dmabuf: Maybe[bool] = True,
    peermem: Maybe[bool] = False,
    in_use: Maybe[bool] = DENIED,
    nics: dict[str, Maybe[bool]] | None = None,
) -> GpuDirectFacts:
    preferred = GdrPath.DMABUF if dmabuf is True else GdrPath.PEERMEM if peermem is True else None
    able = {f"mlx5_{n}": dmabuf for n in range(10)}
    return GpuDirectFacts(
        state_of(GdrPath.DMABUF, dmabuf, NEEDS_OPEN),
        state_of(GdrPath.PEERMEM, peermem, NOT_LOADED),
        preferred,
        able | (nics or {}),
        in_use,
    )


def a_node(facts: GpuDirectFacts | None = None, name: str = "hgx-h100", **parts: Any) -> Node:
    return replace(simulated(name), gpudirect=facts or direct(), **parts)


def reading_of(
    refcnt: Maybe[int] = 0,
    peers: Maybe[tuple[MemoryPeer, ...]] = ABSENT,
    states: dict[tuple[str, int], Maybe[str]] | None = None,
) -> Reading:
    return Reading(0.0, {}, ABSENT, PeermemReading(refcnt, peers), {}, states or {})


def verdict_of(node: Node, reading: Reading | None = None) -> Verdict:
    return judge(node, build(node), reading_of() if reading is None else reading)


def with_ports(node: Node, state: Maybe[str], *names: str) -> Node:
    """The node with the ports of those devices (all, if none is named) in that state."""
    assert isinstance(node.rdma, RdmaFacts)
    devices = [
        replace(one, ports=tuple(replace(port, state=state) for port in one.ports))
        if not names or one.name in names
        else one
        for one in node.rdma.devices
    ]
    return replace(node, rdma=RdmaFacts(tuple(devices)))


def with_gpu(node: Node, index: int, **facts: Any) -> Node:
    assert isinstance(node.gpus, GpuFacts)
    gpus = [replace(gpu, **facts) if gpu.index == index else gpu for gpu in node.gpus.gpus]
    return replace(node, gpus=replace(node.gpus, gpus=tuple(gpus)))


def with_gpus(node: Node, **facts: Any) -> Node:
    assert isinstance(node.gpus, GpuFacts)
    for index in range(len(node.gpus.gpus)):
        node = with_gpu(node, index, **facts)
    return node


def without(node: Node, kind: PciKind) -> Node:
    """The node with no such function on its bus."""
    assert isinstance(node.pci, PciFacts)
    assert isinstance(node.gpus, GpuFacts)
    left = {bdf: one for bdf, one in node.pci.functions.items() if one.kind is not kind}
    node = replace(node, pci=replace(node.pci, functions=left))
    if kind is PciKind.GPU:
        return replace(node, gpus=replace(node.gpus, gpus=()))
    return replace(node, rdma=ABSENT)


def with_module(node: Node, name: str, state: ModuleState) -> Node:
    assert isinstance(node.modules, ModuleFacts)
    module = replace(node.modules.modules[name], state=state)
    return replace(node, modules=replace(node.modules, modules={**node.modules.modules, name: module}))


def in_place(node: Node, place: Environment) -> Node:
    """The node as this kind of place; bare metal has no hypervisor."""
    assert isinstance(node.platform, PlatformFacts)
    hypervisor = node.platform.hypervisor if place is Environment.VIRTUAL_MACHINE else ABSENT
    return replace(node, platform=replace(node.platform, environment=place, hypervisor=hypervisor))


def driven_by(node: Node, kind: PciKind, driver: str) -> Node:
    """The node with all of its GPUs or NICs bound to a driver."""
    assert isinstance(node.pci, PciFacts)
    functions = {
        bdf: replace(one, driver=driver) if one.kind is kind else one
        for bdf, one in node.pci.functions.items()
    }
    return replace(node, pci=replace(node.pci, functions=functions))


def without_nvlink(node: Node) -> Node:
    return with_gpus(node, nvlinks=0, nvlink_peers=())


def nearest(node: Node, index: int) -> list[str]:
    """The NICs that serve a GPU."""
    topology = build(node)
    gpu = topology.gpus[index].id
    words = ("PIX", "PXB", "P2C")
    return [
        nic for nic in topology.best_nics[gpu] if getattr(topology.paths[gpu, nic].nccl, "value", "") in words
    ]


# READY and ACTIVE


def test_ready_by_dmabuf_without_peermem() -> None:
    """Peermem that is not loaded is no fault where DMA-BUF works."""
    verdict = verdict_of(a_node(), reading_of(refcnt=ABSENT))
    assert (verdict.state, verdict.path) == (State.READY, GdrPath.DMABUF)
    assert (verdict.gpus_served, verdict.gpus) == (8, 8)
    assert "peermem" not in verdict.reason


def test_refcnt_zero_is_no_fault() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=False, peermem=True)), reading_of(refcnt=0))
    assert (verdict.state, verdict.path) == (State.READY, GdrPath.PEERMEM)
    assert "no memory region" in verdict.reason


def test_missing_memory_peers_are_no_fault() -> None:
    facts = direct(dmabuf=False, peermem=True)
    assert verdict_of(a_node(facts), reading_of(0, peers=ABSENT)).state is State.READY


def test_a_refcnt_above_zero_is_active_by_peermem() -> None:
    verdict = verdict_of(a_node(direct(peermem=True)), reading_of(refcnt=112))
    assert (verdict.state, verdict.path) == (State.ACTIVE, GdrPath.PEERMEM)
    assert "112 memory regions" in verdict.reason
    assert "NCCL prefers DMA-BUF for new jobs" in verdict.reason


def test_peermem_in_use_where_it_is_the_only_path_needs_no_explanation() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=False, peermem=True)), reading_of(refcnt=112))
    assert verdict.state is State.ACTIVE
    assert "DMA-BUF" not in verdict.reason


def test_what_is_known_of_use_is_said_where_only_root_can_see_dmabuf() -> None:
    node = simulated("gb200")
    host = SimulatedHost("gb200", clock=iter([0.0, *range(1, 999)]).__next__)
    before, reading = read(host, node), read(host, node)
    reason = judge(node, build(node), reading, before).reason
    assert "GPU processes" in reason
    assert "8 RDMA contexts" in reason
    assert "Tb/s on the NICs" in reason
    assert reason.endswith("Only root can tell whether DMA-BUF is in use")


def test_memory_peers_prove_use_where_refcnt_cannot_be_read() -> None:
    peers = (MemoryPeer("nv_mem", 12, 1 << 30),)
    assert verdict_of(a_node(direct(peermem=True)), reading_of(ABSENT, peers)).state is State.ACTIVE


def test_attached_buffers_are_active_by_dmabuf_with_refcnt_zero() -> None:
    verdict = verdict_of(a_node(direct(in_use=True, peermem=True)), reading_of(refcnt=0))
    assert (verdict.state, verdict.path) == (State.ACTIVE, GdrPath.DMABUF)


def test_what_is_in_use_can_be_used_whatever_could_not_be_read() -> None:
    assert verdict_of(a_node(direct(DENIED, DENIED, in_use=True))).state is State.ACTIVE
    assert verdict_of(a_node(direct(DENIED, DENIED)), reading_of(3)).path is GdrPath.PEERMEM


def test_use_that_only_root_can_see_is_said_to_need_root() -> None:
    assert "only root can tell" in verdict_of(a_node(direct(in_use=DENIED))).reason.lower()
    assert "no memory region" in verdict_of(a_node(direct(in_use=False))).reason


def test_peermem_that_is_known_to_work_counts_while_dmabuf_is_unknown() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=DENIED, peermem=True)))
    assert (verdict.state, verdict.path) == (State.READY, GdrPath.PEERMEM)


def test_without_a_reading_the_nodes_own_facts_speak() -> None:
    node = a_node(direct(dmabuf=False, peermem=True))
    assert isinstance(node.modules, ModuleFacts)
    for refcnt, state in ((0, State.READY), (5, State.ACTIVE)):
        peermem = replace(node.modules.modules["nvidia_peermem"], refcnt=refcnt)
        modules = replace(node.modules, modules={**node.modules.modules, "nvidia_peermem": peermem})
        here = replace(node, modules=modules)
        assert judge(here, build(here), None).state is state


def test_grace_is_served_by_its_cpu_link() -> None:
    verdict = verdict_of(a_node(name="gb200"))
    assert (verdict.state, verdict.gpus_served) == (State.READY, verdict.gpus)


# DEGRADED


def test_a_gpu_whose_nics_are_down_degrades_the_node_and_is_named() -> None:
    node = a_node()
    near = nearest(node, 3)
    alone = [gpu for gpu in range(8) if set(nearest(node, gpu)) <= set(near)]
    verdict = verdict_of(with_ports(node, "DOWN", *near))
    assert verdict.state is State.DEGRADED
    assert verdict.gpus_served == 8 - len(alone)
    assert "no usable NIC within PXB" in verdict.reason
    assert any(f"{nic} is DOWN" in verdict.reason for nic in near)


def test_the_reading_has_the_last_word_on_a_port() -> None:
    node = a_node()
    near = nearest(node, 0)
    down: dict[tuple[str, int], Maybe[str]] = {(name, 1): "DOWN" for name in near}
    assert verdict_of(node, reading_of(states=down)).state is State.DEGRADED
    up: dict[tuple[str, int], Maybe[str]] = {(name, 1): "ACTIVE" for name in near}
    assert verdict_of(with_ports(node, "DOWN", *near), reading_of(states=up)).state is State.READY


@pytest.mark.parametrize("state", ["INIT", "ARMED", "ACTIVE_DEFER"])
def test_only_an_active_port_counts(state: str) -> None:
    node = a_node()
    assert verdict_of(with_ports(node, state, *nearest(node, 0))).state is State.DEGRADED


def test_gpus_behind_the_cpu_are_not_served_by_default() -> None:
    """The default level is PXB: PHB, nvidia-smi's NODE and SYS are past it."""
    node = without_nvlink(in_place(a_node(name="cloud-vm"), Environment.BARE_METAL))
    verdict = verdict_of(node)
    assert (verdict.state, verdict.gpus_served) == (State.DEGRADED, 0)
    assert "PHB" in verdict.reason


def test_a_nic_that_takes_no_dmabuf_serves_nobody_but_by_peermem() -> None:
    node = a_node()
    refusing: dict[str, Maybe[bool]] = dict.fromkeys(nearest(node, 0), False)
    verdict = verdict_of(a_node(direct(nics=refusing)))
    assert verdict.state is State.DEGRADED
    assert "cannot register GPU memory" in verdict.reason
    assert verdict_of(a_node(direct(peermem=True, nics=refusing))).state is State.READY


def test_a_gpu_off_the_bus_is_named() -> None:
    lost = Unknown(Reason.DRIVER_ERROR, "NVML", "GPU is lost")
    verdict = verdict_of(with_gpu(a_node(), 3, nvml=lost))
    assert (verdict.state, verdict.gpus_served, verdict.gpus) == (State.DEGRADED, 7, 8)
    assert "GPU3 does not answer: GPU is lost" in verdict.reason


@pytest.mark.parametrize(("driver", "word"), [(ABSENT, "no driver"), ("nouveau", "nouveau")])
def test_a_gpu_without_the_nvidia_driver_is_named(driver: Maybe[str], word: str) -> None:
    verdict = verdict_of(with_gpu(a_node(), 2, driver=driver))
    assert verdict.state is State.DEGRADED
    assert "GPU2" in verdict.reason
    assert word in verdict.reason


def test_a_gpu_handed_to_a_virtual_machine_is_not_missed() -> None:
    verdict = verdict_of(with_gpu(a_node(), 2, driver="vfio-pci"))
    assert (verdict.state, verdict.gpus_served, verdict.gpus) == (State.READY, 7, 7)


def test_a_gpu_hidden_from_a_pod_is_not_missed_but_on_bare_metal_it_is() -> None:
    hidden = Unknown(Reason.NOT_THERE, "NVML", NOT_LISTED)
    node = with_gpu(a_node(), 5, nvml=hidden)
    pod = verdict_of(in_place(node, Environment.KUBERNETES_POD))
    assert (pod.state, pod.gpus) == (State.READY, 7)
    assert verdict_of(in_place(node, Environment.BARE_METAL)).state is State.DEGRADED


def test_degraded_says_so_even_while_in_use() -> None:
    node = with_ports(a_node(direct(peermem=True)), "DOWN", *nearest(a_node(), 0))
    assert verdict_of(node, reading_of(refcnt=9)).state is State.DEGRADED


# BROKEN


def test_neither_path_is_broken_and_says_why_of_both() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=False, peermem=False)))
    assert (verdict.state, verdict.path) == (State.BROKEN, None)
    assert verdict.reason == f"{NEEDS_OPEN}; {NOT_LOADED}"


def test_without_the_driver_nothing_else_is_said() -> None:
    node = with_module(a_node(direct(False, False)), "nvidia", ModuleState.NOT_LOADED)
    verdict = verdict_of(node)
    assert verdict.state is State.BROKEN
    assert "peermem" not in verdict.reason


def test_no_active_port_at_all_is_broken() -> None:
    verdict = verdict_of(with_ports(a_node(), "DOWN"))
    assert verdict.state is State.BROKEN
    assert "ACTIVE" in verdict.reason


def test_cards_without_their_module_are_broken_not_absent() -> None:
    node = with_module(replace(a_node(), rdma=ABSENT), "mlx5_ib", ModuleState.NOT_LOADED)
    verdict = verdict_of(node)
    assert verdict.state is State.BROKEN
    assert "mlx5_ib is not loaded" in verdict.reason


# NOT APPLICABLE


def test_no_gpu_is_not_applicable() -> None:
    verdict = verdict_of(without(a_node(), PciKind.GPU))
    assert verdict.state is State.NOT_APPLICABLE
    assert "no NVIDIA GPU" in verdict.reason


def test_no_nic_is_not_applicable() -> None:
    verdict = verdict_of(without(a_node(), PciKind.NIC))
    assert verdict.state is State.NOT_APPLICABLE
    assert "no RDMA NIC" in verdict.reason


def test_where_nothing_is_the_demo_is_pointed_to_on_a_live_machine_only() -> None:
    bare = without(without(a_node(), PciKind.GPU), PciKind.NIC)
    assert "--demo" in verdict_of(replace(bare, origin=Origin(Source.LIVE))).reason
    assert "--demo" not in verdict_of(replace(bare, origin=Origin(Source.TREE, "/dump"))).reason


def test_a_software_rdma_device_is_no_rdma_nic() -> None:
    node = a_node()
    assert isinstance(node.rdma, RdmaFacts)
    soft = replace(node.rdma.devices[0], name="rxe0", bdf=ABSENT)
    bare = replace(without(node, PciKind.NIC), rdma=RdmaFacts((soft,)))
    verdict = verdict_of(bare)
    assert verdict.state is State.NOT_APPLICABLE
    assert "rxe0" in verdict.reason


def test_devices_handed_to_virtual_machines_are_not_applicable() -> None:
    node = a_node()
    assert verdict_of(with_gpus(node, driver="vfio-pci")).state is State.NOT_APPLICABLE
    assert isinstance(node.pci, PciFacts)
    functions = {
        bdf: replace(one, driver="vfio-pci") if one.kind is PciKind.NIC else one
        for bdf, one in node.pci.functions.items()
    }
    handed = replace(node, pci=replace(node.pci, functions=functions), rdma=ABSENT)
    assert verdict_of(handed).state is State.NOT_APPLICABLE


# UNKNOWN


@pytest.mark.parametrize(("dmabuf", "peermem"), [(DENIED, False), (False, DENIED), (DENIED, DENIED)])
def test_what_decides_but_could_not_be_read_is_unknown_with_its_reason(
    dmabuf: Maybe[bool], peermem: Maybe[bool]
) -> None:
    verdict = verdict_of(a_node(direct(dmabuf, peermem)))
    assert verdict.state is State.UNKNOWN
    assert "needs root" in verdict.reason


def test_probes_that_gave_nothing_are_unknown_and_named() -> None:
    silent = Unknown(Reason.TIMED_OUT, "probe", "no answer for 5 s")
    node = a_node()
    for part, word in (("pci", "PCI"), ("rdma", "RDMA")):
        verdict = verdict_of(replace(node, **{part: silent}, **({"gpus": silent} if part == "pci" else {})))
        assert verdict.state is State.UNKNOWN
        assert word in verdict.reason
        assert "no answer for 5 s" in verdict.reason
    assert verdict_of(replace(node, gpudirect=silent)).state is State.UNKNOWN


def test_ports_that_could_not_be_read_are_unknown_not_down() -> None:
    node = a_node()
    verdict = verdict_of(with_ports(node, Unknown(Reason.IO_ERROR, "state"), *nearest(node, 0)))
    assert verdict.state is State.UNKNOWN
    assert "I/O error" in verdict.reason


def test_every_verdict_has_a_reason() -> None:
    for name in ("hgx-h100", "dgx-a100", "pcie-l40s", "cloud-vm", "gb200"):
        node = simulated(name)
        assert judge(node, build(node), None).reason


# Numbers


def test_the_numbers_say_how_many_gpus_can_and_how_many_nics_serve_them() -> None:
    node = a_node()
    assert (verdict_of(node).gpus_served, verdict_of(node).nics) == (8, 8)  # mlx5_4 and mlx5_9 are far
    one_down = verdict_of(with_ports(node, "DOWN", "mlx5_1"))
    assert (one_down.gpus_served, one_down.nics) == (8, 7)
    broken = verdict_of(a_node(direct(False, False)))
    assert (broken.gpus_served, broken.gpus, broken.nics) == (0, 8, 0)


# Not possible by design


def supporting(node: Node, support: GpuSupport, *indexes: int) -> Node:
    """The node with this support of its GPUs, all or some."""
    assert isinstance(node.gpus, GpuFacts)
    assert isinstance(node.gpudirect, GpuDirectFacts)
    chosen = {gpu.bdf: support for gpu in node.gpus.gpus if not indexes or gpu.index in indexes}
    return replace(node, gpudirect=replace(node.gpudirect, gpu_support=chosen))


NEVER = GpuSupport(False, False, "GeForce GPUs do not support GPUDirect RDMA", "GPU0: RTX 4090", True)


@pytest.mark.parametrize(
    "name",
    [
        "pcie-l40s+geforce-no-gdr",
        "gb200+c2c-grace-specifics-gb10",
        "hgx-h100+confidential-computing-on",
        "cloud-vm+vgpu-without-gdr",
    ],
)
def test_hardware_that_cannot_by_design_is_not_applicable_and_named(name: str) -> None:
    node = simulated(name)
    verdict = judge(node, build(node), read(SimulatedHost(name), node))
    assert verdict.state is State.NOT_APPLICABLE
    assert verdict.reason.startswith("by design: ")


def test_by_design_comes_before_what_is_broken() -> None:
    node = supporting(a_node(direct(False, False)), NEVER)
    assert verdict_of(node).state is State.NOT_APPLICABLE
    assert verdict_of(replace(node, rdma=RdmaFacts(()))).state is State.NOT_APPLICABLE


def test_a_gpu_that_cannot_by_design_is_not_missed_beside_those_that_can() -> None:
    verdict = verdict_of(supporting(a_node(), NEVER, 7))
    assert (verdict.state, verdict.gpus_served, verdict.gpus) == (State.READY, 7, 7)


def test_a_vgpu_that_nobody_could_ask_is_unknown() -> None:
    unknown = Unknown(Reason.NOT_THERE, "libcuda", "libcuda was not asked")
    node = a_node(direct(unknown, unknown), "cloud-vm")
    assert verdict_of(supporting(node, GpuSupport(unknown, unknown))).state is State.UNKNOWN


def test_a_gpu_that_libcuda_denies_is_not_served() -> None:
    denied = GpuSupport(False, False, "GPU3 does not support it", "GPU3: cuDeviceGetAttribute(116) = 0")
    verdict = verdict_of(supporting(a_node(), denied, 3))
    assert (verdict.state, verdict.gpus_served) == (State.DEGRADED, 7)
    assert "GPU3" in verdict.reason


# Each kind of node: what trials of 0.1.0 found right and wrong


def by_nics(driver: str, **answers: Any) -> Node:
    """hgx-h100 with NICs of another driver: `dmabuf`, `peermem` and `nic` are what each of them answers."""
    node = a_node(direct(answers.get("dmabuf", False), answers.get("peermem", False)))
    assert isinstance(node.rdma, RdmaFacts)
    assert isinstance(node.gpudirect, GpuDirectFacts)
    names = [device.name for device in node.rdma.devices]
    facts = replace(node.gpudirect, nic_peermem=dict.fromkeys(names, answers.get("nic", False)))
    devices = tuple(replace(device, driver=driver) for device in node.rdma.devices)
    return replace(node, rdma=RdmaFacts(devices), gpudirect=facts)


def test_a_driver_that_asks_no_peer_memory_client_is_not_served_by_peermem() -> None:
    """irdma or bnxt_re without ib_peer_mem beside a live nvidia_peermem."""
    assert verdict_of(by_nics("ice", peermem=True)).state is State.BROKEN
    assert verdict_of(by_nics("ice", peermem=True, dmabuf=True)).path is GdrPath.DMABUF
    assert verdict_of(by_nics("bnxt_en", peermem=True, nic=True)).state is State.READY


def test_efa_with_its_own_peer_memory_is_ready_without_nvidia_peermem() -> None:
    node = by_nics("efa", nic=True)
    assert isinstance(node.gpudirect, GpuDirectFacts)
    own = state_of(GdrPath.EFA, True)
    verdict = verdict_of(replace(node, gpudirect=replace(node.gpudirect, peermem=own)))
    assert (verdict.state, verdict.path) == (State.READY, GdrPath.EFA)


def test_a_library_too_old_to_ask_says_that_a_container_has_its_own() -> None:
    old = Unknown(Reason.NOT_THERE, "ibv_reg_dmabuf_mr on mlx5_0", "a container has its own")
    verdict = verdict_of(a_node(direct(dmabuf=old)))
    assert verdict.state is State.UNKNOWN
    assert "a container has its own" in verdict.reason


@pytest.mark.parametrize(("driver", "word"), [("cxi_ss1", "cxi"), ("gve", "TCPX")])
def test_nics_that_need_no_verbs_are_named(driver: str, word: str) -> None:
    node = without(a_node(), PciKind.NIC)
    assert isinstance(node.pci, PciFacts)
    card = next(one for one in simulated_pci(a_node()).values() if one.kind is PciKind.NIC)
    card = replace(card, driver=driver, vendor_id=0x17DB)
    node = replace(node, pci=replace(node.pci, functions={**node.pci.functions, card.bdf: card}))
    verdict = verdict_of(node)
    assert verdict.state is State.NOT_APPLICABLE
    assert "no verbs NIC" in verdict.reason
    assert word in verdict.reason


def simulated_pci(node: Node) -> dict[str, Any]:
    assert isinstance(node.pci, PciFacts)
    return node.pci.functions


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci", "nvgrace_gpu_vfio_pci", "pci-stub"])
def test_every_vfio_driver_keeps_a_device_for_virtual_machines(driver: str) -> None:
    one = verdict_of(with_gpu(a_node(), 2, driver=driver))
    assert (one.state, one.gpus) == (State.READY, 7)
    assert verdict_of(with_gpus(a_node(), driver=driver)).state is State.NOT_APPLICABLE
    nics = driven_by(replace(a_node(), rdma=ABSENT), PciKind.NIC, driver)
    assert verdict_of(nics).state is State.NOT_APPLICABLE


def test_a_fabric_that_is_not_set_up_is_not_ready() -> None:
    """HGX B200: no NVSwitch on the bus; Fabric Manager or NVLSM is down, and CUDA fails with 802."""
    node = a_node()
    assert isinstance(node.gpus, GpuFacts)
    for state in ("in progress", "not started", "failed"):
        nvml = replace(node.gpus.gpus[0].nvml, fabric=state)  # type: ignore[type-var]
        verdict = verdict_of(with_gpus(node, nvml=nvml, name="NVIDIA B200"))
        assert verdict.state is State.DEGRADED
        assert "802" in verdict.reason
    failure = "CUDA programs fail to start: cuInit(0) returned 802"
    fails = a_node(replace(direct(True, True), cuda_failure=failure))
    assert verdict_of(fails).state is State.BROKEN
    assert verdict_of(fails, reading_of(refcnt=9)).state is State.DEGRADED


def topology_file(endpoints: Maybe[tuple[str, ...]]) -> TopologyFileFacts:
    return TopologyFileFacts((TopologyFile("/opt/microsoft/ndv5/topo.xml", None, endpoints),))


def test_the_paths_of_a_virtual_machine_are_unknown_not_degraded() -> None:
    verdict = verdict_of(a_node(name="cloud-vm"))
    assert verdict.state is State.UNKNOWN
    assert "no topology file" in verdict.reason
    missing = topology_file(Unknown(Reason.NOT_THERE, "/opt/microsoft/ndv5/topo.xml"))
    node = a_node(name="cloud-vm")
    assert judge(node, build(node), reading_of(), files=missing).state is State.UNKNOWN


@pytest.mark.parametrize("endpoints", [("0001:00:00.0",), Unknown(Reason.NEEDS_ROOT, "/proc/7/root/topo")])
def test_a_virtual_machine_with_a_topology_file_is_ready(endpoints: Maybe[tuple[str, ...]]) -> None:
    node = a_node(name="cloud-vm")
    verdict = judge(node, build(node), reading_of(), files=topology_file(endpoints))
    assert (verdict.state, verdict.gpus_served) == (State.READY, 8)
    assert "/opt/microsoft/ndv5/topo.xml, and were not checked" in verdict.reason


def test_a_virtual_machine_whose_jobs_registered_memory_is_active() -> None:
    node = a_node(direct(peermem=True), "cloud-vm")
    verdict = verdict_of(node, reading_of(refcnt=5))
    assert verdict.state is State.ACTIVE
    assert "unknown" in verdict.reason


def test_devices_in_another_network_namespace_are_unknown_not_broken() -> None:
    node = a_node()
    assert isinstance(node.rdma, RdmaFacts)
    bdfs = {device.name: device.bdf for device in node.rdma.devices if not isinstance(device.bdf, Unknown)}
    gone = replace(node, rdma=RdmaFacts((), tuple(bdfs.values())))
    assert verdict_of(gone).state is State.UNKNOWN
    assert "another network namespace" in verdict_of(gone).reason
    near = nearest(node, 0)
    left = tuple(device for device in node.rdma.devices if device.name not in near)
    some = replace(node, rdma=RdmaFacts(left, tuple(bdfs[name] for name in near)))
    assert verdict_of(some).state is State.UNKNOWN
    assert "another network namespace" in verdict_of(some).reason


def test_gpus_without_a_nic_below_their_switch_are_served_by_pxn() -> None:
    """Eight GPUs with NVLink, and NICs below some of their switches only."""
    node = simulated("dgx-a100+gpu-nic-through-cpu")
    node = replace(node, gpudirect=direct(dmabuf=False, peermem=True))
    verdict = verdict_of(node)
    assert (verdict.state, verdict.gpus_served) == (State.READY, 8)
    assert "2 GPUs by PXN" in verdict.reason
    assert verdict_of(without_nvlink(node)).state is State.DEGRADED


def test_a_near_nic_that_is_down_is_not_made_up_for_by_pxn() -> None:
    node = a_node()
    verdict = verdict_of(with_ports(node, "DOWN", *nearest(node, 0)))
    assert verdict.state is State.DEGRADED


# What sysfs does not show


@pytest.mark.parametrize("listed", [("0000:1b:00.0", "0000:2b:00.0"), ("0000:1b:00.0",)])
def test_gpus_that_only_the_driver_lists_are_unknown(listed: tuple[str, ...]) -> None:
    """A sandbox that hides /sys; a dump whose vendor files could not be read."""
    node = without(a_node(), PciKind.GPU)
    assert isinstance(node.gpus, GpuFacts)
    verdict = verdict_of(replace(node, gpus=replace(node.gpus, unplaced=listed)))
    assert verdict.state is State.UNKNOWN
    assert f"lists {len(listed)} GPU" in verdict.reason
    assert "/sys/bus/pci/devices" in verdict.reason
