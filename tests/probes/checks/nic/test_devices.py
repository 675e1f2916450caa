"""Checks of NICs as devices, and of kernel messages about them."""

from dataclasses import replace

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.log import parse_log
from probes.facts.pci.functions import PciFacts, PciFunction
from probes.queries.finding import Status
from tests.support.changed_facts import found_in, said, status, with_devices, with_log, without
from tests.support.doctor import examination_of, findings_on
from tests.support.module_errors import HEAT_AND_POWER, OF_MODULES, PREFIX

HGX = examination_of("hgx-h100")
OF_PCI = ("nic-without-driver", "nic-without-driver-passed-through", "nic-without-rdma-device")
OF_THE_LOG = (
    "nic-health-errors",
    "nic-power-or-heat",
    "link-flaps-log",
    "monitor-causes-log-flood",
    "fw-resources-exhausted",
    "nic-firmware-command-failed",
)


def with_driver(driver: Maybe[str], bdf: str):  # type: ignore[no-untyped-def]
    pci = HGX.node.pci
    assert isinstance(pci, PciFacts)
    functions: dict[str, PciFunction] = dict(pci.functions)
    functions[bdf] = replace(functions[bdf], driver=driver)
    return replace(HGX, node=replace(HGX.node, pci=replace(pci, functions=functions)))


@pytest.mark.parametrize("name", OF_PCI)
def test_without_the_pci_functions_the_checks_are_unknown(name: str) -> None:
    hidden = replace(HGX, node=replace(HGX.node, pci=Unknown(Reason.TIMED_OUT)))
    assert status(name, hidden) is Status.UNKNOWN


def test_a_driver_that_cannot_be_read_is_unknown() -> None:
    bdf = HGX.topology.nics[0].bdf
    assert isinstance(bdf, str)
    assert status("nic-without-driver", with_driver(Unknown(Reason.IO_ERROR), bdf)) is Status.UNKNOWN
    assert status("nic-without-driver", with_driver(Unknown(Reason.NOT_THERE), bdf)) is Status.FOUND


def test_a_connectx_3_without_a_driver_needs_mlx4() -> None:
    found = findings_on("dgx-a100+mlx4-core-not-loaded")["nic-without-driver"]
    assert found.status is Status.FOUND
    assert found.fix is not None
    assert [step.argv for step in found.fix.steps if step.argv] == [("modprobe", "mlx4_core")]
    assert "mlx4_core is not loaded" in found.cause
    assert found.part_of == "mlx4-core-not-loaded"


def test_virtual_functions_may_be_reserved_for_guests() -> None:
    """The NICs of a cloud VM are virtual functions. Others may be reserved for guests."""
    for name in OF_PCI:
        assert status(name, examination_of("cloud-vm")) is Status.PASSED


def test_the_second_port_of_a_bond_has_no_rdma_device_of_its_own() -> None:
    rdma = HGX.node.rdma
    assert not isinstance(rdma, Unknown)
    bonded = with_devices(HGX, lambda device: replace(device, name="mlx5_bond_0"), "mlx5_9")
    assert status("single-rail-or-half-rate-bond", bonded) is Status.FOUND
    assert status("nic-without-rdma-device", bonded) is Status.PASSED


def test_an_rdma_device_in_a_pod_is_not_missing() -> None:
    """In exclusive mode rdma-cni moves devices into pods; the node is healthy."""
    finding = said("nic-without-rdma-device", examination_of("pcie-l40s+rdma-devices-in-pods"))
    assert finding.status is Status.UNKNOWN
    assert "network namespace" in finding.cause
    assert finding.evidence[-1].value == "netns exclusive"


def test_a_missing_driver_module_is_one_finding() -> None:
    found = found_in(without(HGX, "mlx5_ib"))
    assert "mlx5-ib-not-loaded" in found
    bare = replace(HGX, node=replace(HGX.node, rdma=Unknown(Reason.NOT_THERE)))
    found = found_in(without(bare, "mlx5_ib"))
    assert found["nic-without-rdma-device"].part_of == "mlx5-ib-not-loaded"


def test_nics_of_different_boards_may_have_different_firmware() -> None:
    assert status("nic-firmware-mismatch", HGX) is Status.PASSED
    denied = with_devices(HGX, lambda device: replace(device, firmware=Unknown(Reason.IO_ERROR)), "mlx5_0")
    assert status("nic-firmware-mismatch", denied) is Status.UNKNOWN


@pytest.mark.parametrize("name", OF_THE_LOG)
def test_a_log_that_needs_root_is_unknown(name: str) -> None:
    restricted = replace(HGX, kernel_log=Unknown(Reason.NEEDS_ROOT, "dmesg"))
    finding = said(name, restricted)
    assert finding.status is Status.UNKNOWN
    assert finding.cause == "needs root: the kernel log"


def test_one_check_reports_each_message() -> None:
    flood = "mlx5_core 0000:18:00.0: mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed"
    logged = with_log(HGX, flood)
    found = {name for name in OF_THE_LOG if status(name, logged) is Status.FOUND}
    assert found == {"monitor-causes-log-flood"}
    assert said("monitor-causes-log-flood", logged).devices == ("0000:18:00.0",)


def test_a_flood_may_have_hidden_other_messages() -> None:
    flood = "mlx5_core 0000:18:00.0: mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed"
    assert status("nic-firmware-command-failed", with_log(HGX, *[flood] * 30)) is Status.UNKNOWN


def test_a_flap_in_the_log_is_found() -> None:
    flapped = said("link-flaps-log", examination_of("hgx-h100+link-flaps-log"))
    assert flapped.severity is Severity.NOTE


def test_a_flap_in_the_log_that_counters_show_is_not_counted_twice() -> None:
    flapped = examination_of("hgx-h100+link-flaps-log,link-flaps-carrier")
    assert said("link-flaps-log", flapped).part_of == ""  # checked alone
    found = found_in(flapped, only=["link-flaps-log", "link-flaps-carrier"])
    assert found["link-flaps-log"].part_of == "link-flaps-carrier"


def test_an_empty_cage_is_no_flap() -> None:
    empty = with_log(HGX, "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged")
    assert status("link-flaps-log", empty) is Status.PASSED


@pytest.mark.parametrize(
    ("error", "name"),
    [(error, "nic-power-or-heat") for error in HEAT_AND_POWER]
    + [(error, "link-flaps-log") for error in OF_MODULES],
)
@pytest.mark.parametrize("prefix", [PREFIX, "mlx5_core 0000:18:00.0: "])
def test_each_error_of_a_port_module_is_found(prefix: str, error: str, name: str) -> None:
    line = f"{prefix}Port module event[error]: module 0, Cable error, {error}"
    logged = with_log(HGX, line)
    assert {each for each in OF_THE_LOG if status(each, logged) is Status.FOUND} == {name}
    assert said(name, logged).devices == ("0000:18:00.0",)
    assert line in [part.value for part in said(name, logged).evidence]


@pytest.mark.parametrize(
    ("error", "cause"),
    [("High Temperature", "too little airflow"), ("Power budget exceeded", "higher power class")],
)
def test_heat_and_power_of_a_module_are_explained(error: str, cause: str) -> None:
    logged = with_log(HGX, f"{PREFIX}Port module event[error]: module 0, Cable error, {error}")
    assert cause in said("nic-power-or-heat", logged).cause


def test_a_module_that_was_disabled_long_after_boot_is_found() -> None:
    line = "mlx5_core 0000:41:00.1: Port module event: module 1, Cable disabled"
    assert status("link-flaps-log", with_log(HGX, line)) is Status.PASSED
    later = replace(HGX, kernel_log=parse_log(f"<6>[ 4000.000000] {line}\n", "dmesg"))
    assert status("link-flaps-log", later) is Status.FOUND


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("mlx5_query_mcia:382:(pid 91): query_mcia_reg failed: status: 0x4", "does not answer"),
        ("enp24s0f0np0: mlx5e_get_module_info: cable type not recognized:0x19", "The module works"),
    ],
)
def test_reading_modules_by_ethtool_floods_the_log_and_is_no_failed_command(line: str, cause: str) -> None:
    line = f"mlx5_core 0000:18:00.0 {line}" if "enp" in line else f"mlx5_core 0000:18:00.0: {line}"
    logged = with_log(HGX, line)
    assert {each for each in OF_THE_LOG if status(each, logged) is Status.FOUND} == {
        "monitor-causes-log-flood"
    }
    assert cause in said("monitor-causes-log-flood", logged).cause


def test_rdma_devices_in_pods_are_not_a_fault() -> None:
    """The jobs in the pods are not visible from here, so nothing is found."""
    found = findings_on("pcie-l40s+rdma-devices-in-pods").values()
    assert all(
        finding.status is not Status.FOUND or finding.severity is not Severity.CRITICAL for finding in found
    )


def test_a_connectx_3_without_its_rdma_device_is_found() -> None:
    found = findings_on("dgx-a100+mlx4-ib-not-loaded")
    assert found["nic-without-rdma-device"].status is Status.FOUND
    assert found["nic-without-rdma-device"].part_of == "mlx4-ib-not-loaded"
    assert "mlx4_ib" in found["nic-without-rdma-device"].cause


@pytest.mark.parametrize(
    "line",
    [
        "infiniband efa_0: Failed to process command REG_MR (opcode 7) comp_status 1 err -12",
        "infiniband efa_0: Failed to register mr [-12]",
    ],
)
def test_memory_that_efa_refuses_is_a_lack_of_resources_and_no_firmware_fault(line: str) -> None:
    node = with_log(examination_of("aws-p5"), line)
    assert said("fw-resources-exhausted", node).status is Status.FOUND
    assert said("nic-firmware-command-failed", node).status is Status.PASSED


def test_an_infiniband_port_that_went_down_is_found_in_the_log() -> None:
    line = "mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN"
    finding = said("link-flaps-log", with_log(examination_of("hgx-h100"), line))
    assert finding.status is Status.FOUND
    assert line in [part.value for part in finding.evidence]


@pytest.mark.parametrize(
    ("node", "line", "name", "cause"),
    [
        (
            "pcie-l40s+nic-bnxt",
            "bnxt_en 0000:12:00.0 ens1f0np0: Fatal firmware reset event, data1: 0x2, data2: 0x8003, min wait "
            "1000 ms, max wait 4200 ms",
            "nic-health-errors",
            "All queue pairs on the NIC are lost",
        ),
        (
            "pcie-l40s+nic-bnxt",
            "bnxt_en 0000:12:00.0: QPLIB: cmdq[0x3f1]=0x3 timedout (20000)msec",
            "nic-firmware-command-failed",
            "The firmware hangs",
        ),
        (
            "pcie-l40s+nic-irdma",
            "ice 0000:51:00.0 rocep81s0: critical PE Error, GLPE_CRITERR=0x00000010",
            "nic-health-errors",
            "protocol engine",
        ),
        (
            "aws-p5",
            "efa 0000:4f:00.0 rdmap79s0: Failed to process command CREATE_QP (opcode 1) err -12",
            "nic-firmware-command-failed",
            "quota",
        ),
    ],
)
def test_the_log_of_a_nic_of_another_maker_is_read(node: str, line: str, name: str, cause: str) -> None:
    finding = said(name, with_log(examination_of(node), line))
    assert finding.status is Status.FOUND
    assert cause in finding.cause


@pytest.mark.parametrize(("seconds", "expected"), [(42, Status.PASSED), (900, Status.FOUND)])
def test_a_port_without_a_cable_that_its_driver_logs_at_its_start_is_no_flap(
    seconds: int, expected: Status
) -> None:
    line = f"<3>[{seconds}.000000] ice 0000:51:00.0 ens2f0: NIC Link is Down\n"
    node = replace(examination_of("pcie-l40s+nic-irdma"), kernel_log=parse_log(line, "dmesg"))
    assert status("link-flaps-log", node) is expected
