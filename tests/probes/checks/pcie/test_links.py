"""PCIe links and registers of NICs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes.base.unknown import Unknown
from probes.facts.pci.functions import PciFacts, PciKind
from probes.queries.finding import Status
from probes.snapshot.examination import Examination
from tests.probes.checks.pcie.nodes import (
    ABSENT,
    SLOW,
    finding,
    first,
    healthy,
    said,
    spaces,
    with_function,
    with_spaces,
)
from tests.support.doctor import findings_on


def slow_gpu(load: Any, generation: Any = 1) -> Examination:
    """The first GPU at 2.5 GT/s, under that load."""
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    gpus = examination.reading.gpus
    assert not isinstance(gpus, Unknown)
    live = replace(gpus[gpu.bdf], utilization_percent=load, link_generation=generation)
    examination = replace(examination, reading=replace(examination.reading, gpus={**gpus, gpu.bdf: live}))
    return with_function(examination, gpu.bdf, link=replace(gpu.link, speed_gtps=2.5))


def test_an_idle_gpus_slow_link_is_no_fault() -> None:
    idle = slow_gpu(0)
    for name in ("pcie-link-degraded-gpu-speed", "pcie-link-degraded-speed", "pcie-link-degraded-width"):
        assert finding(idle, name).status is Status.PASSED
    assert "1 idle" in said(finding(idle, "pcie-link-degraded-gpu-speed"))


def test_a_slow_gpu_link_is_a_fault_under_load_and_unknown_without_a_reading() -> None:
    assert finding(slow_gpu(95), "pcie-link-degraded-gpu-speed").status is Status.FOUND
    for examination in (
        slow_gpu(ABSENT),
        replace(slow_gpu(95), reading=replace(healthy().reading, gpus=SLOW)),
    ):
        result = finding(examination, "pcie-link-degraded-gpu-speed")
        assert result.status is Status.UNKNOWN
        assert "idle" in result.cause


def test_the_pcie_link_of_a_gpu_on_grace_does_not_matter() -> None:
    """Its data goes over C2C."""
    examination = healthy("gb200")
    gpu = first(examination, PciKind.GPU)
    slow = with_function(examination, gpu.bdf, link=replace(gpu.link, speed_gtps=2.5, width=1))
    for name in ("pcie-link-degraded-gpu-speed", "pcie-link-degraded-width"):
        assert finding(slow, name).status is Status.PASSED


def test_the_nvml_link_generation_wins_over_sysfs() -> None:
    """sysfs was read a moment earlier, when the GPU may have been idle."""
    assert finding(slow_gpu(95, generation=5), "pcie-link-degraded-gpu-speed").status is Status.PASSED


def test_a_link_is_judged_by_what_both_ends_can_do() -> None:
    nic = first(healthy(), PciKind.NIC)
    narrow = replace(nic.link, width=8, max_width=8)
    card = with_function(healthy(), nic.bdf, link=narrow)
    assert finding(card, "pcie-link-degraded-width").status is Status.PASSED
    lost = with_function(healthy(), nic.bdf, link=replace(nic.link, width=8))
    assert nic.bdf in finding(lost, "pcie-link-degraded-width").devices


def test_an_unreadable_link_is_unknown() -> None:
    nic = first(healthy(), PciKind.NIC)
    pci = healthy().node.pci
    assert isinstance(pci, PciFacts)
    above = pci.functions[nic.chain[-2]]
    silent = replace(nic.link, speed_gtps=ABSENT, width=ABSENT)
    examination = with_function(healthy(), nic.bdf, link=silent)
    examination = with_function(examination, above.bdf, link=silent)
    for name in ("pcie-link-degraded-width", "pcie-link-degraded-speed"):
        assert finding(examination, name).status is Status.UNKNOWN


def test_a_fix_changes_only_its_own_bits_and_can_be_undone() -> None:
    found = findings_on("hgx-h100+pcie-devctl-relaxed-ordering,pcie-devctl-read-request")
    ordering, reads = found["pcie-devctl-relaxed-ordering"].fix, found["pcie-devctl-read-request"].fix
    assert ordering is not None
    assert reads is not None
    assert ordering.steps[0].argv[3] == "CAP_EXP+8.w=0010:0010"
    assert ordering.steps[0].undo[3] == "CAP_EXP+8.w=0000:0010"
    assert reads.steps[0].argv[3] == "CAP_EXP+8.w=5000:7000"
    assert reads.steps[0].undo[3] == "CAP_EXP+8.w=2000:7000"


def test_only_nics_of_one_board_are_compared() -> None:
    """Storage NICs may be set otherwise than those for the job."""
    examination = healthy()
    rdma = examination.node.rdma
    assert not isinstance(rdma, Unknown)
    storage = next(device for device in rdma.devices if device.name == "mlx5_4")
    twin = next(device for device in rdma.devices if device.name == "mlx5_9")
    changed: dict[str, Any] = {}
    for device in (storage, twin):
        assert isinstance(device.bdf, str)
        space = spaces(examination)[device.bdf]
        changed[device.bdf] = replace(space, express=replace(space.express, max_read_request_bytes=1024))
    other = with_spaces(examination, changed)
    assert finding(other, "pcie-devctl-read-request-differs").status is Status.PASSED


def test_a_larger_max_payload_than_needed_is_no_fault() -> None:
    examination = healthy()
    gpu = first(examination, PciKind.GPU)
    port = gpu.chain[-2]
    space = spaces(examination)[port]
    wide = replace(space, express=replace(space.express, max_payload_bytes=512))
    assert (
        finding(with_spaces(examination, {port: wide}), "pcie-devctl-payload-differs").status is Status.PASSED
    )
    narrow = replace(space, express=replace(space.express, max_payload_bytes=128))
    result = finding(with_spaces(examination, {port: narrow}), "pcie-devctl-payload-differs")
    assert result.devices == (port,)
