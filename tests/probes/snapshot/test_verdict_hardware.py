"""The verdict on hardware that differs: by design, other NICs, virtual machines, PXN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, GpuSupport
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.host.machine.local import LocalHost
from probes.nccl.topology_file import TopologyFile, TopologyFileFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import read
from probes.snapshot.verdict import State, assess
from probes.topology.paths import build
from tests.support.verdict_nodes import (
    ABSENT,
    a_node,
    direct,
    driven_by,
    judged,
    nearest,
    reading_of,
    simulated,
    state_of,
    verdict_of,
    with_gpu,
    with_gpus,
    with_ports,
    without,
    without_nvlink,
)


def supporting(node: Node, support: GpuSupport, *indexes: int) -> Node:
    """Return the node with this support for all or some of its GPUs."""
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
    verdict = judged(node, assess(node, build(node), read(SimulatedHost(name), node)))
    assert verdict.state is State.NOT_APPLICABLE
    assert verdict.reason.startswith("by design: ")


def test_by_design_comes_before_what_is_broken() -> None:
    node = supporting(a_node(direct(False, False)), NEVER)
    assert verdict_of(node).state is State.NOT_APPLICABLE
    assert verdict_of(replace(node, rdma=RdmaFacts(()))).state is State.NOT_APPLICABLE


def test_a_gpu_that_cannot_by_design_is_not_missed_beside_those_that_can() -> None:
    verdict = verdict_of(supporting(a_node(), NEVER, 7))
    assert (verdict.state, verdict.gpus_served, verdict.gpus) == (State.READY, 7, 7)


def test_a_vgpu_that_libcuda_could_not_check_is_unknown() -> None:
    unknown = Unknown(Reason.NOT_THERE, "libcuda", "libcuda was not queried")
    node = a_node(direct(unknown, unknown), "cloud-vm")
    assert verdict_of(supporting(node, GpuSupport(unknown, unknown))).state is State.UNKNOWN


def test_a_gpu_that_libcuda_denies_is_not_served() -> None:
    reason = "GPU3 does not support GPUDirect RDMA"
    denied = GpuSupport(False, False, reason, "GPU3: cuDeviceGetAttribute(116) = 0")
    verdict = verdict_of(supporting(a_node(), denied, 3))
    assert (verdict.state, verdict.gpus_served) == (State.DEGRADED, 7)
    assert "GPU3" in verdict.reason


# Each kind of node: what trials of 0.1.0 found right and wrong


def by_nics(driver: str, **answers: Any) -> Node:
    """hgx-h100 with NICs of another driver: `dmabuf`, `peermem` and `nic` are the answers of each."""
    node = a_node(direct(answers.get("dmabuf", False), answers.get("peermem", False)))
    assert isinstance(node.rdma, RdmaFacts)
    assert isinstance(node.gpudirect, GpuDirectFacts)
    names = [device.name for device in node.rdma.devices]
    facts = replace(node.gpudirect, nic_peermem=dict.fromkeys(names, answers.get("nic", False)))
    devices = tuple(replace(device, driver=driver) for device in node.rdma.devices)
    return replace(node, rdma=RdmaFacts(devices), gpudirect=facts)


def test_a_driver_that_asks_no_peer_memory_client_is_not_served_by_peermem() -> None:
    """irdma, or bnxt_re without ib_peer_mem, with nvidia_peermem loaded."""
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
    card = next(function for function in simulated_pci(a_node()).values() if function.kind is PciKind.NIC)
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
    reached = verdict_of(with_gpu(a_node(), 2, driver=driver))
    assert (reached.state, reached.gpus) == (State.READY, 7)
    assert verdict_of(with_gpus(a_node(), driver=driver)).state is State.NOT_APPLICABLE
    nics = driven_by(replace(a_node(), rdma=ABSENT), PciKind.NIC, driver)
    assert verdict_of(nics).state is State.NOT_APPLICABLE


def test_a_fabric_that_is_not_set_up_is_not_ready() -> None:
    """HGX B200: no NVSwitch on the bus; Fabric Manager or NVLSM is down, and CUDA fails with 802."""
    node = a_node()
    assert isinstance(node.gpus, GpuFacts)
    for state in ("in progress", "not started", "failed"):
        fabric = replace(node.gpus.gpus[0].fabric, state=state)
        verdict = verdict_of(with_gpus(node, fabric=fabric, name="NVIDIA B200"))
        assert verdict.state is State.DEGRADED
        assert "802" in verdict.reason
    failure = "CUDA programs fail to start: cuInit(0) returned 802"
    fails = a_node(replace(direct(True, True), cuda_failure=failure))
    assert verdict_of(fails).state is State.BROKEN
    # Jobs that run already go on, but none can start.
    assert verdict_of(fails, reading_of(refcnt=9)).state is State.BROKEN


def topology_file(endpoints: Maybe[tuple[str, ...]]) -> TopologyFileFacts:
    return TopologyFileFacts((TopologyFile("/opt/microsoft/ndv5/topo.xml", None, endpoints),))


def test_the_paths_of_a_virtual_machine_are_unknown_not_degraded() -> None:
    verdict = verdict_of(a_node(name="cloud-vm"))
    assert verdict.state is State.UNKNOWN
    assert "no topology file" in verdict.reason
    missing = topology_file(Unknown(Reason.NOT_THERE, "/opt/microsoft/ndv5/topo.xml"))
    node = a_node(name="cloud-vm")
    assert assess(node, build(node), reading_of(), files=missing).state is State.UNKNOWN


@pytest.mark.parametrize("endpoints", [("0001:00:00.0",), Unknown(Reason.NEEDS_ROOT, "/proc/7/root/topo")])
def test_a_virtual_machine_with_a_topology_file_is_ready(endpoints: Maybe[tuple[str, ...]]) -> None:
    node = a_node(name="cloud-vm")
    verdict = judged(node, assess(node, build(node), reading_of(), files=topology_file(endpoints)))
    assert (verdict.state, verdict.gpus_served) == (State.READY, 8)
    assert "/opt/microsoft/ndv5/topo.xml and were not checked" in verdict.reason


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
    """Eight GPUs with NVLink, and NICs below only some of their switches."""
    node = simulated("dgx-a100+gpu-nic-through-cpu")
    node = replace(node, gpudirect=direct(dmabuf=False, peermem=True))
    verdict = verdict_of(node)
    assert (verdict.state, verdict.gpus_served) == (State.READY, 8)
    assert "over NVLink through another GPU (PXN)" in verdict.reason
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


@pytest.mark.parametrize("class_code", ["120000", "38000"])
def test_amd_gpus_are_named(tmp_path: Path, class_code: str) -> None:
    for place in range(8):
        device = tmp_path / f"sys/bus/pci/devices/0000:{place:02x}:00.0"
        device.mkdir(parents=True)
        (device / "uevent").write_text(f"PCI_CLASS={class_code}\nPCI_ID=1002:74A1\n")
    usability = examine(LocalHost(str(tmp_path))).usability
    assert usability.state is State.NOT_APPLICABLE
    assert usability.reason.endswith("this node has 8 AMD GPUs, which gdrtop does not read")


def gpus_of_others(root: Path, *functions: tuple[str, str, str]) -> str:
    """Return the reason of a node with these functions: BDF, class code, ID."""
    for bdf, class_code, id_ in functions:
        device = root / f"sys/bus/pci/devices/{bdf}"
        device.mkdir(parents=True)
        (device / "uevent").write_text(f"PCI_CLASS={class_code}\nPCI_ID={id_}\n")
    return examine(LocalHost(str(root))).usability.reason


def test_intel_gpus_that_are_cards_are_named(tmp_path: Path) -> None:
    cards = [(f"0000:{place}:00.0", "38000", "8086:0BD5") for place in (18, 29)]
    assert "this node has 2 Intel GPUs, which gdrtop does not read" in gpus_of_others(tmp_path, *cards)


@pytest.mark.parametrize(
    ("bdf", "class_code"),
    [("0000:00:02.0", "38000"), ("0000:00:02.0", "30000"), ("0000:6b:00.0", "b4000")],
    ids=["of a CPU without display", "of a CPU", "QuickAssist"],
)
def test_other_functions_of_intel_are_no_gpus(tmp_path: Path, bdf: str, class_code: str) -> None:
    assert "Intel" not in gpus_of_others(tmp_path, (bdf, class_code, "8086:4940"))
