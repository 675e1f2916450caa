"""What blocks the paths between NIC and GPU memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.checks.registry import findings
from probes.facts.gpu.gpus import Flavor, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, hardware_of
from probes.facts.jobs.process_files import MappedLibrary
from probes.facts.jobs.processes import Process, ProcessFacts
from probes.facts.kernel.log import parse_log
from probes.facts.pci.functions import PciKind
from probes.queries.finding import Finding, Status
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State
from tests.support.changed_facts import with_devices, with_module
from tests.support.doctor import examination_of, findings_on, found_on

NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "somewhere")
NOT_THERE = Unknown(Reason.NOT_THERE, "somewhere")
HGX = "hgx-h100"


def says(examination: Examination, name: str) -> Finding:
    """Return the finding of one check."""
    return findings(examination, only=(name,))[0]


def with_driver(examination: Examination, **facts: Any) -> Examination:
    gpus = examination.node.gpus
    assert isinstance(gpus, GpuFacts)
    changed = replace(gpus, driver=replace(gpus.driver, **facts))
    return replace(examination, node=replace(examination.node, gpus=changed))


def with_direct(examination: Examination, **facts: Any) -> Examination:
    direct = examination.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    return replace(examination, node=replace(examination.node, gpudirect=replace(direct, **facts)))


def with_kernel(examination: Examination, **facts: Any) -> Examination:
    kernel = examination.node.kernel
    assert not isinstance(kernel, Unknown)
    return replace(examination, node=replace(examination.node, kernel=replace(kernel, **facts)))


def answers(answer: Any) -> dict[str, Any]:
    return {f"mlx5_{number}": answer for number in range(10)}


def with_peermem(examination: Examination, usable: Any) -> Examination:
    direct = examination.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    return with_direct(examination, peermem=replace(direct.peermem, usable=usable))


@pytest.mark.parametrize(
    ("usable", "severity"),
    [(True, Severity.NOTE), (False, Severity.CRITICAL), (NEEDS_ROOT, Severity.WARNING)],
)
def test_the_severity_of_the_proprietary_driver_depends_on_peermem(usable: Any, severity: Severity) -> None:
    closed = with_peermem(with_driver(examination_of(HGX), flavor=Flavor.PROPRIETARY), usable)
    finding = says(closed, "dmabuf-needs-open-module")
    assert (finding.status, finding.severity) == (Status.FOUND, severity)


def test_the_proprietary_driver_never_supports_dmabuf() -> None:
    """Only the open modules export CUDA memory, so the answers of the NICs do not matter."""
    closed = with_driver(examination_of(HGX), flavor=Flavor.PROPRIETARY)
    assert says(closed, "dmabuf-needs-open-module").status is Status.FOUND


def test_a_driver_that_is_not_loaded_has_no_flavor() -> None:
    node = with_driver(examination_of(HGX), flavor=NOT_THERE, version=NOT_THERE)
    assert says(node, "dmabuf-needs-open-module").status is Status.PASSED
    assert says(node, "dmabuf-driver-too-old").status is Status.PASSED


def test_old_gpus_do_not_get_the_open_modules_as_fix() -> None:
    found = found_on("dgx-a100+dmabuf-gpu-too-old")
    assert "dmabuf-gpu-too-old" in found
    assert "dmabuf-needs-open-module" not in found


@pytest.mark.parametrize(
    ("version", "status"),
    [("515.43.04", Status.PASSED), ("515.43.03", Status.FOUND), ("strange", Status.UNKNOWN)],
)
def test_the_first_driver_with_dmabuf(version: str, status: Status) -> None:
    assert says(with_driver(examination_of(HGX), version=version), "dmabuf-driver-too-old").status is status


@pytest.mark.parametrize(
    ("version", "status"), [((5, 11), Status.FOUND), ((5, 12), Status.PASSED), ((5, 15), Status.PASSED)]
)
def test_dmabuf_needs_kernel_5_12_and_not_6(version: tuple[int, int], status: Status) -> None:
    refused = with_direct(examination_of(HGX), nic_dmabuf=answers(False))
    assert says(with_kernel(refused, version=version), "dmabuf-kernel-too-old").status is status


def test_ofed_adds_dmabuf_to_older_kernels() -> None:
    """The answer of the NICs decides, not the kernel release."""
    node = with_kernel(examination_of(HGX), version=(4, 18), dma_shared_buffer=False)
    assert says(node, "dmabuf-kernel-too-old").status is Status.PASSED
    assert says(node, "dmabuf-kernel-config").status is Status.PASSED
    unasked = with_direct(node, nic_dmabuf=answers(NEEDS_ROOT))
    assert says(unasked, "dmabuf-kernel-too-old").status is Status.UNKNOWN


def test_an_unreadable_kernel_config_is_unknown() -> None:
    node = with_direct(examination_of(HGX), nic_dmabuf=answers(NEEDS_ROOT))
    assert (
        says(with_kernel(node, dma_shared_buffer=NEEDS_ROOT), "dmabuf-kernel-config").status is Status.UNKNOWN
    )


def test_a_nic_that_refuses_is_named_and_marked() -> None:
    finding = findings_on("hgx-h100+dmabuf-nic-driver-lacks-support")["dmabuf-nic-driver-lacks-support"]
    assert finding.devices == ("mlx5_6",)
    assert "mlx5_6" in finding.cause


def test_one_nic_that_refuses_is_not_critical_while_others_work() -> None:
    some = with_direct(
        with_peermem(examination_of(HGX), False), nic_dmabuf={**answers(True), "mlx5_6": False}
    )
    assert says(some, "dmabuf-nic-driver-lacks-support").severity is Severity.WARNING
    none = with_direct(with_peermem(examination_of(HGX), False), nic_dmabuf=answers(False))
    assert says(none, "dmabuf-nic-driver-lacks-support").severity is Severity.CRITICAL


def test_nics_without_an_answer_are_unknown() -> None:
    node = with_direct(examination_of(HGX), nic_dmabuf=answers(NEEDS_ROOT))
    finding = says(node, "dmabuf-nic-driver-lacks-support")
    assert finding.status is Status.UNKNOWN
    assert "uverbs" in finding.cause


def test_a_kernel_without_odp_is_the_reason_why_mlx5_refuses() -> None:
    """mlx5_ib_reg_user_mr_dmabuf needs CONFIG_INFINIBAND_USER_MEM and _ON_DEMAND_PAGING."""
    node = examination_of("pcie-l40s+dmabuf-kernel-without-odp")
    finding = says(node, "dmabuf-nic-driver-lacks-support")
    assert "CONFIG_INFINIBAND_ON_DEMAND_PAGING" in finding.cause
    assert finding.fix is not None
    assert finding.fix.needs_reboot
    set_again = says(with_kernel(node, mlx5_dmabuf=True), "dmabuf-nic-driver-lacks-support")
    assert "CONFIG" not in set_again.cause
    assert set_again.fix is not None
    assert "Update this NIC's driver" in set_again.fix.steps[0].why


def test_the_kernel_config_does_not_explain_ofeds_mlx5() -> None:
    node = examination_of("pcie-l40s+dmabuf-kernel-without-odp")
    ofed = with_module(node, "mlx5_ib", origin="DKMS")
    assert "CONFIG" not in says(ofed, "dmabuf-nic-driver-lacks-support").cause


def test_connectx_3_has_no_dmabuf_and_needs_peermem() -> None:
    finding = findings_on("dgx-a100+nic-connectx-3")["dmabuf-nic-driver-lacks-support"]
    assert "mlx4_ib" in finding.cause
    assert finding.severity is Severity.NOTE  # nvidia_peermem works
    assert finding.fix is not None
    assert "nvidia_peermem" in finding.fix.steps[0].why


@pytest.mark.parametrize(
    ("name", "device", "cause", "fix"),
    [
        # Linux, hw/erdma/erdma_main.c: `.reg_user_mr = erdma_reg_user_mr,` and no reg_user_mr_dmabuf.
        # Alibaba's own erdma_verbs.c: `mem->umem = ib_umem_get_peer(&dev->ibdev, start, len, access, …);`.
        ("nic-erdma", "erdma_0", "Alibaba Cloud's eRDMA (erdma) registers no DMA-BUF", "OFED mode"),
        # hw/ionic/ionic_ibdev.c: `.reg_user_mr_dmabuf = ionic_reg_user_mr_dmabuf,`
        ("nic-ionic", "ionic_0", "AMD Pensando NICs (ionic_rdma)", "ionic_rdma of a newer kernel"),
        # linux-rdma/rdma-core#1373, "bnxt_re/lib: Add dmabuf support in bnxt_re"
        ("nic-bnxt", "bnxt_re0", "Broadcom's bnxt_re registers DMA-BUF memory only", "and libbnxt_re with"),
        # hw/irdma/verbs.c: `.reg_user_mr_dmabuf = irdma_reg_user_mr_dmabuf,`
        ("nic-irdma", "irdma0", "Intel's irdma registers DMA-BUF memory only", "Update irdma"),
        # hw/mana/device.c: `.reg_user_mr_dmabuf = mana_ib_reg_user_mr_dmabuf,`
        ("nic-mana", "mana_0", "Azure's MANA (mana_ib)", "Use a newer kernel"),
    ],
)
def test_a_driver_without_dmabuf_is_named_with_what_to_do(
    name: str, device: str, cause: str, fix: str
) -> None:
    finding = findings_on(f"pcie-l40s+{name}")["dmabuf-nic-driver-lacks-support"]
    assert finding.severity is Severity.CRITICAL
    assert cause in finding.cause
    assert device in finding.devices
    assert finding.fix is not None
    assert fix in finding.fix.steps[0].why


# NICs that nvidia_peermem does not serve


def with_nics_of(examination: Examination, driver: str, vendor: int) -> Examination:
    """Return the node with all NICs from another vendor."""
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    functions = {
        bdf: replace(function, vendor_id=vendor, driver=driver) if function.kind is PciKind.NIC else function
        for bdf, function in pci.functions.items()
    }
    node = replace(examination.node, pci=replace(pci, functions=functions))
    return with_devices(replace(examination, node=node), lambda device: replace(device, driver=driver))


FIXES_OF_MELLANOX = ("ofed", "peermem")


@pytest.mark.parametrize(
    "fault", ["no-gdr-path", "peermem-built-without-symbols", "dmabuf-needs-open-module"]
)
def test_efa_has_a_peer_module_of_its_own(fault: str) -> None:
    """OFED's ib_core below EFA oopses, and nvidia_peermem is not used."""
    node = with_nics_of(examination_of(f"dgx-a100+{fault}"), "efa", 0x1D0F)
    ours = [
        finding
        for finding in findings(node)
        if finding.id.startswith(("peermem", "dmabuf", "inbox", "nv-peer"))
    ]
    assert [finding.id for finding in ours if finding.status is Status.FOUND] == []


@pytest.mark.parametrize(("driver", "vendor"), [("irdma", 0x8086), ("bnxt_en", 0x14E4)])
def test_other_nics_get_only_dmabuf_as_fix(driver: str, vendor: int) -> None:
    node = with_nics_of(examination_of("dgx-a100+no-gdr-path"), driver, vendor)
    found = [finding for finding in findings(node) if finding.status is Status.FOUND]
    assert not [finding.id for finding in found if finding.id.startswith(("peermem", "inbox", "nv-peer"))]
    closed = next(finding for finding in found if finding.id == "dmabuf-needs-open-module")
    assert closed.severity is Severity.CRITICAL
    assert closed.fix is not None
    words = " ".join(step.why for step in closed.fix.steps).lower()
    assert not any(word in words for word in FIXES_OF_MELLANOX)


def test_broadcom_with_its_own_ib_peer_mem_can_use_peermem() -> None:
    node = with_nics_of(examination_of("dgx-a100+no-gdr-path"), "bnxt_en", 0x14E4)
    modules = node.node.modules
    assert not isinstance(modules, Unknown)
    symbols = tuple(
        replace(symbol, provider="ib_peer_mem") if symbol.symbol.startswith("ib_register_peer") else symbol
        for symbol in modules.symbols
    )
    broadcom = replace(node, node=replace(node.node, modules=replace(modules, symbols=symbols)))
    assert says(broadcom, "peermem-not-loaded").status is Status.FOUND


def test_a_kernel_without_dmabuf_is_not_a_nic_fault() -> None:
    assert "dmabuf-nic-driver-lacks-support" not in found_on("pcie-l40s+dmabuf-kernel-too-old")
    assert "dmabuf-nic-driver-lacks-support" not in found_on("pcie-l40s+dmabuf-kernel-config")


def test_a_node_without_gpu_and_nic_has_no_path() -> None:
    node = examination_of(HGX)
    alone = replace(node, topology=replace(node.topology, nics=()))
    for name in ("no-gdr-path", "dmabuf-needs-open-module", "dmabuf-kernel-too-old", "dmabuf-gpu-too-old"):
        assert says(alone, name).status is Status.PASSED


def test_one_path_is_enough() -> None:
    assert findings_on("gb200")["no-gdr-path"].status is Status.PASSED  # DMA-BUF alone
    assert findings_on("dgx-a100")["no-gdr-path"].status is Status.PASSED  # nvidia-peermem alone


# Refused by the driver


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_override_denies_by_2_only(value: str) -> None:
    denied = examination_of("pcie-l40s+p2p-topology-refused-override")
    assert says(denied, "p2p-topology-refused-override").status is Status.FOUND
    node = with_driver(denied, parameters={"GrdmaPciTopoCheckOverride": value})
    assert says(node, "p2p-topology-refused-override").status is Status.PASSED


def test_the_override_has_no_effect_on_gpus_coherent_with_their_cpu() -> None:
    """The driver allows Grace platforms before it reads the option (nv-pci.c)."""
    node = with_driver(examination_of("gb200"), parameters={"GrdmaPciTopoCheckOverride": "2"})
    finding = says(node, "p2p-topology-refused-override")
    assert finding.status is Status.PASSED
    assert "no effect" in finding.evidence[-1].value


def test_what_the_driver_lists_decides_and_not_its_branch() -> None:
    """595.91.07 has 44 options and not this one (NVIDIA/aicr#2459); 595.45.04 has it (nv-reg.h)."""
    without = with_driver(examination_of(HGX), parameters={"CoherentGPUMemoryMode": '"driver"'})
    assert says(without, "p2p-topology-refused-override").status is Status.PASSED
    option = {"GrdmaPciTopoCheckOverride": "2"}
    listed = with_driver(examination_of(HGX), version="595.45.04", parameters=option)
    assert says(listed, "p2p-topology-refused-override").status is Status.FOUND


def test_a_refusal_is_in_the_log_that_only_root_may_read() -> None:
    node = replace(examination_of("gb200"), kernel_log=NEEDS_ROOT)
    for name in (
        "p2p-topology-refused",
        "p2p-topology-refused-force-pcie",
        "p2p-topology-refused-old-importer",
    ):
        assert says(node, name).status is Status.UNKNOWN
        assert "needs root" in says(node, name).cause


def test_each_refusal_is_one_finding() -> None:
    for name in (
        "p2p-topology-refused",
        "p2p-topology-refused-force-pcie",
        "p2p-topology-refused-old-importer",
    ):
        assert {check_id for check_id in found_on(f"gb200+{name}") if check_id.startswith("p2p")} == {name}


def fix_of(node: Examination, name: str) -> str:
    fix = says(node, name).fix
    assert fix is not None
    return "\n".join(step.why for step in fix.steps)


@pytest.mark.parametrize("name", ["p2p-topology-refused", "p2p-topology-refused-force-pcie"])
def test_the_override_is_offered_only_where_the_driver_has_it(name: str) -> None:
    node = examination_of(f"gb200+{name}")
    with_option = fix_of(with_driver(node, parameters={"GrdmaPciTopoCheckOverride": "0"}), name)
    assert "NVreg_GrdmaPciTopoCheckOverride=1" in with_option
    without = fix_of(with_driver(node, parameters={"EnableMSI": "1"}), name)
    assert "NVreg_GrdmaPciTopoCheckOverride=1" not in without
    assert "R595 removed it" in without


def test_a_virtual_machine_is_not_asked_to_set_acs() -> None:
    name = "p2p-topology-refused-force-pcie"
    node = examination_of(f"gb200+{name}")
    assert "ACS" in fix_of(node, name)
    guest = replace(node, node=replace(node.node, platform=examination_of("cloud-vm").node.platform))
    assert "ACS" not in fix_of(guest, name)
    assert "ACS" not in says(guest, name).cause


# DMA-BUF alone; both, with jobs that use nvidia_peermem; no path that the message refutes.
@pytest.mark.parametrize(
    ("name", "state", "path"),
    [
        ("bare-roce+p2p-topology-refused-old-importer", State.BROKEN, None),
        ("hgx-h100+p2p-topology-refused-old-importer", State.DEGRADED, GdrPath.PEERMEM),
        ("gb200+p2p-topology-refused-force-pcie", State.DEGRADED, GdrPath.DMABUF),
        ("pcie-l40s+p2p-topology-refused", State.DEGRADED, GdrPath.DMABUF),
    ],
)
def test_a_path_that_the_driver_refuses_is_not_usable(name: str, state: State, path: GdrPath | None) -> None:
    node = examination_of(name)
    verdict = judge(node).verdict
    assert (verdict.state, verdict.path) == (state, path)
    finding = says(node, name.partition("+")[2])
    assert path not in finding.refutes
    assert "612 s after boot" in finding.cause
    assert "still so" in finding.cause


def test_a_refusal_takes_the_gpus_without_a_nic_below_their_switch() -> None:
    node = examination_of("pcie-l40s+p2p-topology-refused")
    assert set(says(node, "p2p-topology-refused").takes) == set(node.usability.unserved)
    assert not says(examination_of("hgx-h100+p2p-topology-refused"), "p2p-topology-refused").takes


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: failed to map dynamic attachment with no P2P support",  # 515.43.04 to 575.64.05
        "NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page",  # since 580.65.06
    ],
)
def test_the_words_of_each_driver_say_that_the_nic_driver_is_too_old(text: str) -> None:
    node = replace(examination_of("bare-roce"), kernel_log=parse_log(f"<3>[  612.4] {text}", "dmesg"))
    assert says(node, "p2p-topology-refused-old-importer").status is Status.FOUND
    other = text.replace("no P2P support", "no support").replace("handle MMIO", "handle it")
    near = replace(examination_of("bare-roce"), kernel_log=parse_log(f"<3>[  612.4] {other}", "dmesg"))
    assert says(near, "p2p-topology-refused-old-importer").status is Status.PASSED


@pytest.mark.parametrize("started", ["nvidia", "all NICs", "one NIC"])
def test_a_refusal_before_the_driver_was_loaded_again_is_over(started: str) -> None:
    """A virtual function that starts is no new NIC driver."""
    name = "p2p-topology-refused-old-importer"
    node = examination_of(f"bare-roce+{name}")
    lines = ["<3>[  612.4] NVRM: dma-buf attach failed: importer unable to handle MMIO without struct page"]
    if started == "nvidia":
        lines.append("<5>[ 1200.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05")
    else:
        bdfs = [str(device.bdf) for device in hardware_of(node.node.rdma)]
        for bdf in bdfs if started == "all NICs" else bdfs[:1]:
            lines.append(f"<6>[ 1200.0] mlx5_core {bdf}: firmware version: 28.43.2026")
    node = replace(node, kernel_log=parse_log("\n".join(lines), "dmesg"))
    finding = says(node, name)
    if started == "one NIC":
        assert finding.refutes == (GdrPath.DMABUF,)
        return
    assert (finding.severity, finding.refutes) == (Severity.NOTE, ())
    assert "loaded again 1200 s after boot" in finding.cause
    assert judge(node).verdict.state is not State.BROKEN


def test_a_path_in_use_is_not_refuted_by_an_older_refusal() -> None:
    name = "p2p-topology-refused-old-importer"
    node = examination_of(f"bare-roce+{name}")
    used = replace(node, usability=replace(node.usability, seen=frozenset({GdrPath.DMABUF})))
    assert not says(used, name).refutes
    assert judge(used).verdict.state is State.DEGRADED


def test_the_override_denies_only_since_580() -> None:
    """570.86.16 to 575.64.05 have the option, and 2 allows there, as 1 does (nv-pci.c)."""
    name = "p2p-topology-refused-override"
    denied = examination_of(f"pcie-l40s+{name}")
    assert says(with_driver(denied, version="580.65.06"), name).status is Status.FOUND
    finding = says(with_driver(denied, version="575.64.05"), name)
    assert finding.status is Status.PASSED
    assert "580.65.06" in finding.evidence[-1].value


def test_a_log_of_other_things_is_no_refusal() -> None:
    said = parse_log("<6>[    1.0] NVRM: loading NVIDIA UNIX Open Kernel Module\n", "dmesg --raw --kernel")
    assert (
        says(replace(examination_of("gb200"), kernel_log=said), "p2p-topology-refused").status
        is Status.PASSED
    )


# Old NCCL on new kernels


def with_nccl(version: str, hidden: int = 0) -> Examination:
    """Return the faulty node with one job that maps this NCCL, and no NCCL installed."""
    node = examination_of("hgx-h100+memory-peers-missing-old-nccl")
    assert isinstance(node.processes, ProcessFacts)
    assert not isinstance(node.libraries, Unknown)
    template = examination_of("hgx-h100+memory-peers-missing-old-nccl").processes
    assert isinstance(template, ProcessFacts)
    library = MappedLibrary("libnccl", "/opt/libnccl.so.2", version)
    unknown = dict.fromkeys(
        (
            "comm",
            "uid",
            "state",
            "gpu_files",
            "uverbs_files",
            "memlock",
            "ipc_lock",
            "environment",
            "rdma_nodes",
            "nccl_conf",
        ),
        NOT_THERE,
    )
    job = Process(pid=4242, libraries=(library,), **unknown)  # type: ignore[arg-type]
    return replace(
        node,
        libraries=replace(node.libraries, found={}),
        processes=replace(template, processes=(job,), hidden=hidden, left_out=0),
    )


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.22.3", Status.FOUND),
        ("2.21.5", Status.FOUND),
        ("2.23.4", Status.PASSED),
        ("2.30.7", Status.PASSED),
    ],
)
def test_nccl_sees_peermem_without_memory_peers_since_2_23_4(version: str, status: Status) -> None:
    assert says(with_nccl(version), "memory-peers-missing-old-nccl").status is status


def test_the_nccl_of_hidden_processes_is_unknown() -> None:
    finding = says(with_nccl("2.30.7", hidden=5), "memory-peers-missing-old-nccl")
    assert finding.status is Status.UNKNOWN
    assert "needs root" in finding.cause


def test_old_nccl_is_no_fault_where_dmabuf_works_or_memory_peers_are_there() -> None:
    node = examination_of("hgx-h100+memory-peers-missing-old-nccl")
    direct = node.node.gpudirect
    assert isinstance(direct, GpuDirectFacts)
    works = with_direct(node, dmabuf=replace(direct.dmabuf, usable=True))
    assert says(works, "memory-peers-missing-old-nccl").status is Status.PASSED
    peermem = replace(node.reading.peermem, peers=())
    shown = replace(node, reading=replace(node.reading, peermem=peermem))
    assert says(shown, "memory-peers-missing-old-nccl").status is Status.PASSED


def test_without_the_list_of_pci_devices_no_path_is_called_missing() -> None:
    examination = examination_of("pcie-l40s+no-gdr-path")
    assert says(examination, "no-gdr-path").status is Status.FOUND
    unread = replace(examination, node=replace(examination.node, pci=NOT_THERE))
    assert says(unread, "no-gdr-path").status is Status.UNKNOWN
