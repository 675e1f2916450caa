"""The verdict: what is usable, in use, degraded or broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.base.latest import Latest
from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import NOT_LISTED
from probes.facts.gpudirect import GdrPath, MemoryPeer
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import Environment
from probes.simulation.host import SimulatedHost
from probes.snapshot.path_verdict import ServedGpus
from probes.snapshot.rates import read
from probes.snapshot.verdict import State, assess
from probes.topology.paths import build
from tests.support.verdict_nodes import (
    ABSENT,
    DENIED,
    NEEDS_OPEN,
    NOT_LOADED,
    a_node,
    direct,
    in_place,
    judged,
    nearest,
    reading_of,
    simulated,
    verdict_of,
    with_gpu,
    with_gpus,
    with_module,
    with_ports,
    without,
    without_nvlink,
)


def test_ready_by_dmabuf_without_peermem() -> None:
    """Peermem that is not loaded is no fault if DMA-BUF works."""
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


def test_signs_of_use_are_shown_if_only_root_can_see_dmabuf() -> None:
    node = simulated("gb200")
    host = SimulatedHost("gb200", clock=iter([0.0, *range(1, 999)]).__next__)
    before, reading = read(host, node), read(host, node)
    reason = assess(node, build(node), reading, before).reason
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


def test_a_path_in_use_is_usable_even_if_facts_are_unknown() -> None:
    assert verdict_of(a_node(direct(DENIED, DENIED, in_use=True))).state is State.ACTIVE
    assert verdict_of(a_node(direct(DENIED, DENIED)), reading_of(3)).path is GdrPath.PEERMEM


def test_use_that_only_root_can_see_is_reported_as_such() -> None:
    assert "only root can tell" in verdict_of(a_node(direct(in_use=DENIED))).reason.lower()
    assert "no memory region" in verdict_of(a_node(direct(in_use=False))).reason


def test_peermem_that_is_known_to_work_counts_while_dmabuf_is_unknown() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=DENIED, peermem=True)))
    assert (verdict.state, verdict.path) == (State.READY, GdrPath.PEERMEM)


def test_without_a_reading_the_probed_facts_decide() -> None:
    node = a_node(direct(dmabuf=False, peermem=True))
    assert isinstance(node.modules, ModuleFacts)
    for refcnt, state in ((0, State.READY), (5, State.ACTIVE)):
        peermem = replace(node.modules.modules["nvidia_peermem"], refcnt=refcnt)
        modules = replace(node.modules, modules={**node.modules.modules, "nvidia_peermem": peermem})
        here = replace(node, modules=modules)
        assert judged(here, assess(here, build(here), None)).state is state


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


def test_the_reading_overrides_the_probed_state_of_a_port() -> None:
    node = a_node()
    near = nearest(node, 0)
    down: dict[tuple[str, int], Maybe[str]] = {(name, 1): "DOWN" for name in near}
    assert verdict_of(node, reading_of(states=down)).state is State.DEGRADED
    up: dict[tuple[str, int], Maybe[str]] = {(name, 1): "ACTIVE" for name in near}
    assert verdict_of(with_ports(node, "DOWN", *near), reading_of(states=up)).state is State.READY


def test_a_verdict_each_second_follows_ports_and_use() -> None:
    node = a_node(direct(peermem=True))
    topology, cache = build(node), Latest[ServedGpus]()
    down: dict[tuple[str, int], Maybe[str]] = {(name, 1): "DOWN" for name in nearest(node, 0)}
    readings = [
        reading_of(refcnt=112),
        reading_of(refcnt=96),
        reading_of(refcnt=0),
        reading_of(states=down, refcnt=96),
        reading_of(refcnt=96),
    ]
    each_second = [assess(node, topology, reading, cache=cache) for reading in readings]
    assert each_second == [assess(node, topology, reading) for reading in readings]
    words = [judged(node, usability).state for usability in each_second]
    assert words == [State.ACTIVE, State.ACTIVE, State.READY, State.DEGRADED, State.ACTIVE]


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


def test_a_nic_without_dmabuf_serves_gpus_only_by_peermem() -> None:
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
    assert "GPU3 does not respond: GPU is lost" in verdict.reason


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


def test_without_a_path_the_node_is_broken_with_both_reasons() -> None:
    verdict = verdict_of(a_node(direct(dmabuf=False, peermem=False)))
    assert (verdict.state, verdict.path) == (State.BROKEN, None)
    assert verdict.reason == f"{NEEDS_OPEN}; {NOT_LOADED}"


def test_without_the_driver_no_other_reason_is_given() -> None:
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


def test_only_a_live_machine_without_devices_mentions_the_demo() -> None:
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
        bdf: replace(function, driver="vfio-pci") if function.kind is PciKind.NIC else function
        for bdf, function in node.pci.functions.items()
    }
    handed = replace(node, pci=replace(node.pci, functions=functions), rdma=ABSENT)
    assert verdict_of(handed).state is State.NOT_APPLICABLE


# UNKNOWN


@pytest.mark.parametrize(("dmabuf", "peermem"), [(DENIED, False), (False, DENIED), (DENIED, DENIED)])
def test_unreadable_decisive_facts_make_the_verdict_unknown(
    dmabuf: Maybe[bool], peermem: Maybe[bool]
) -> None:
    verdict = verdict_of(a_node(direct(dmabuf, peermem)))
    assert verdict.state is State.UNKNOWN
    assert "needs root" in verdict.reason


def test_failed_probes_are_unknown_and_named() -> None:
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
        assert assess(node, build(node), None).reason


# Numbers


def test_the_numbers_say_how_many_gpus_can_and_how_many_nics_serve_them() -> None:
    node = a_node()
    assert (verdict_of(node).gpus_served, verdict_of(node).nics) == (8, 8)  # mlx5_4 and mlx5_9 are far
    one_down = verdict_of(with_ports(node, "DOWN", "mlx5_1"))
    assert (one_down.gpus_served, one_down.nics) == (8, 7)
    broken = verdict_of(a_node(direct(False, False)))
    assert (broken.gpus_served, broken.gpus, broken.nics) == (0, 8, 0)
