"""Checks of ports: state, link layer, rate."""

from dataclasses import replace
from functools import partial

import pytest

from probes.base.evidence import Severity
from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import judge
from probes.checks.registry import CHECKS
from probes.facts.pci.functions import PciKind
from probes.facts.rdma.devices import Gid, RdmaPort
from probes.queries.finding import Status
from probes.queries.ports import PORT_DOWN
from probes.simulation.host import SimulatedHost
from probes.simulation.node.devices.ports import port_of
from probes.snapshot.examination import Examination, examine
from probes.snapshot.verdict import State
from tests.support.changed_facts import found_in, said, status, with_devices, with_health, with_ports
from tests.support.doctor import examination_of, findings_on

HGX = examination_of("hgx-h100")
PORT_CHECKS = (
    "ib-port-not-active",
    "ib-port-not-active-disabled",
    "ib-port-not-active-netdev-down",
    "ib-port-not-active-no-subnet-manager",
    "ib-port-not-active-subnet-manager-stalled",
    "ib-port-not-active-link-up",
)
# Linux, include/rdma/ib_verbs.h, enum ib_port_state.
STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
# Linux, drivers/infiniband/core/sysfs.c, phys_state_to_str.
PHYSICAL_STATES = (
    *("Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp"),
    *("LinkErrorRecovery", "Phy Test", "<unknown>"),
)
# They read the PCI bus or the kernel log, and so need no RDMA device.
WITHOUT_RDMA = {
    "spark-function-unaddressed",
    "spark-functions-one-subnet",
    "nic-without-driver",
    "nic-without-driver-passed-through",
    "nic-health-errors",
    "nic-power-or-heat",
    "nic-firmware-command-failed",
    "fw-resources-exhausted",
    "link-flaps-log",
    "monitor-causes-log-flood",
}
OF_RDMA = [
    check.id
    for check in CHECKS
    if check.area == "nic" and not check.is_moving and check.id not in WITHOUT_RDMA
]


@pytest.mark.parametrize("name", OF_RDMA)
def test_without_the_rdma_devices_the_checks_are_unknown(name: str) -> None:
    hidden = replace(HGX, node=replace(HGX.node, rdma=Unknown(Reason.TIMED_OUT, "RDMA")))
    finding = said(name, hidden)
    assert finding.status is Status.UNKNOWN
    assert finding.cause.startswith("needs")


@pytest.mark.parametrize("name", OF_RDMA)
def test_a_node_without_rdma_has_no_findings_about_ports(name: str) -> None:
    without = replace(HGX, node=replace(HGX.node, rdma=Unknown(Reason.NOT_THERE, "/sys/class/infiniband")))
    assert (status(name, without) is Status.FOUND) == (name == "nic-without-rdma-device")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["hgx-h100", "bare-roce"])
def test_ports_that_carry_nothing_are_found_and_break_the_node(name: str, state: str) -> None:
    """The checks, the verdict and NCCL agree on which ports are active: those that are ACTIVE."""
    host = SimulatedHost(name)
    for nic in host.tree.nics:
        host.tree.add(f"{port_of(nic)}/state", f"{STATES.index(state)}: {state}\n")
    judgment = judge(examine(host))
    found = {finding.id for finding in judgment.found} & set(PORT_DOWN)
    assert bool(found) == (judgment.verdict.state is State.BROKEN) == (state != "ACTIVE")


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
@pytest.mark.parametrize("state", STATES)
def test_a_port_that_nccl_would_not_use_is_found_whatever_its_physical_state(state: str, layer: str) -> None:
    for physical in PHYSICAL_STATES:
        changed = with_ports(
            HGX, partial(replace, state=state, physical_state=physical, link_layer=layer), "mlx5_4"
        )
        found = [name for name in PORT_CHECKS if status(name, changed) is Status.FOUND]
        assert len(found) == (state != "ACTIVE"), physical


# What is said of an InfiniBand port in each state and physical state: the check and a few of its words.
LINK = "ib-port-not-active"
TABLE = {
    ("DOWN", "Polling"): (LINK, "no signal"),
    ("DOWN", "Sleep"): (LINK, "asleep"),
    ("DOWN", "PortConfigurationTraining"): (LINK, "link training does not finish"),
    ("DOWN", "LinkErrorRecovery"): (LINK, "recovers from errors"),
    ("DOWN", "Phy Test"): (LINK, "test mode"),
    ("DOWN", "<unknown>"): (LINK, "does not say why"),
    ("DOWN", "Disabled"): ("ib-port-not-active-disabled", "disabled"),
    ("DOWN", "LinkUp"): ("ib-port-not-active-link-up", "keeps the port down"),
    ("INIT", "LinkUp"): ("ib-port-not-active-subnet-manager-stalled", "stopped halfway"),
    ("INIT", "LinkErrorRecovery"): (LINK, "recovers from errors"),
    ("ARMED", "LinkUp"): ("ib-port-not-active-subnet-manager-stalled", "stopped halfway"),
    ("ARMED", "LinkErrorRecovery"): (LINK, "recovers from errors"),
    ("ACTIVE", "LinkErrorRecovery"): ("ib-port-active-without-link", "recovers from errors"),
    ("ACTIVE", "Polling"): ("ib-port-active-without-link", "may be changing"),
    ("ACTIVE", "Disabled"): ("ib-port-active-without-link", "may be changing"),
    ("ACTIVE_DEFER", "LinkErrorRecovery"): (LINK, "waits for the link"),
}


@pytest.mark.parametrize(("state", "physical"), TABLE)
def test_each_state_of_a_port_has_its_own_words(state: str, physical: str) -> None:
    check, words = TABLE[state, physical]
    finding = said(check, with_ports(HGX, partial(replace, state=state, physical_state=physical), "mlx5_0"))
    assert finding.status is Status.FOUND
    assert words in finding.cause
    assert {state, physical} & {evidence.value for evidence in finding.evidence}
    assert ("no signal" in finding.cause) == ((state, physical) == ("DOWN", "Polling"))


@pytest.mark.parametrize(("layer", "physical"), [("InfiniBand", "<unknown>"), ("Ethernet", "Polling")])
def test_an_active_port_without_a_physical_state_is_fine(layer: str, physical: str) -> None:
    """Some drivers report none, and that of a RoCE port says nothing."""
    change = partial(replace, physical_state=physical, link_layer=layer)
    assert status("ib-port-active-without-link", with_ports(HGX, change, "mlx5_0")) is Status.PASSED


def test_ports_with_different_problems_are_told_apart_in_one_finding() -> None:
    down = with_ports(HGX, partial(replace, state="DOWN", physical_state="Polling"), "mlx5_0")
    down = with_ports(down, partial(replace, state="DOWN", physical_state="Phy Test"), "mlx5_2", "mlx5_3")
    finding = said(LINK, down)
    assert finding.cause.startswith("mlx5_0: no signal")
    assert " mlx5_2, mlx5_3: its link is in a test mode" in finding.cause
    assert finding.fix is not None
    steps = " ".join(step.command or step.why for step in finding.fix.steps)
    assert "Reseat" in steps
    assert "--test_mode DS" in steps


def test_a_roce_port_below_a_netdev_with_a_link_is_no_cable_fault() -> None:
    down = with_ports(HGX, partial(replace, state="DOWN", physical_state="Disabled"), "mlx5_4")
    finding = said("ib-port-not-active-link-up", down)
    assert "its netdev has a link" in finding.cause
    assert finding.evidence[0].source.endswith("/operstate")


VF = examination_of("azure-nd-h100")
WAITING = (("DOWN", "ib-port-not-active-link-up"), ("ARMED", "ib-port-not-active-subnet-manager-stalled"))


@pytest.mark.parametrize(("state", "check"), WAITING)
def test_a_virtual_function_waits_for_its_host_and_the_subnet_manager(state: str, check: str) -> None:
    waiting = with_ports(VF, partial(replace, state=state), "mlx5_0")
    finding = said(check, waiting)
    assert "a virtual function" in finding.cause
    assert "GUID was never set" not in finding.cause
    assert finding.fix is not None
    steps = " ".join(step.why for step in finding.fix.steps)
    assert "state auto" in steps
    assert "virt_enabled 2" in steps
    assert "node_guid" not in steps
    assert "cable" not in steps


@pytest.mark.parametrize(("state", "check"), WAITING)
def test_a_guid_that_was_never_set_is_named(state: str, check: str) -> None:
    zero = "0000:0000:0000:0000"
    waiting = with_ports(VF, partial(replace, state=state), "mlx5_0")
    waiting = with_devices(waiting, partial(replace, node_guid=zero), "mlx5_0")
    finding = said(check, waiting)
    assert "Its GUID was never set" in finding.cause
    assert zero in {evidence.value for evidence in finding.evidence}
    assert finding.fix is not None
    assert "node_guid GUID" in finding.fix.steps[0].why


def test_a_port_guid_of_zero_shows_a_virtual_function_of_any_model() -> None:
    gid = Gid(0, "fe80:0000:0000:0000:0000:0000:0000:0000", "IB/RoCE v1", Unknown(Reason.NOT_THERE))
    waiting = with_ports(HGX, partial(replace, state="DOWN", gids=(gid,)), "mlx5_0")
    cause = said("ib-port-not-active-link-up", waiting).cause
    assert "a virtual function" in cause
    assert "Its GUID was never set" in cause


def test_a_device_guid_of_a_roce_nic_may_be_zero() -> None:
    zero = with_devices(HGX, partial(replace, node_guid="0000:0000:0000:0000"), "mlx5_4")
    down = with_ports(zero, partial(replace, state="DOWN", physical_state="Disabled"), "mlx5_4")
    assert "GUID" not in said("ib-port-not-active-link-up", down).cause


@pytest.mark.parametrize("name", PORT_CHECKS)
def test_a_state_that_cannot_be_read_is_unknown(name: str) -> None:
    denied = with_ports(HGX, lambda port: replace(port, state=Unknown(Reason.IO_ERROR)), "mlx5_0")
    assert status(name, denied) is Status.UNKNOWN


def test_losing_one_near_nic_is_a_warning_and_losing_both_is_critical() -> None:
    def polling(port):  # type: ignore[no-untyped-def]
        return replace(port, state="DOWN", physical_state="Polling")

    assert said("ib-port-not-active", with_ports(HGX, polling, "mlx5_0")).severity is Severity.WARNING
    both = said("ib-port-not-active", with_ports(HGX, polling, "mlx5_0", "mlx5_1"))
    assert both.severity is Severity.CRITICAL
    assert both.devices == ("mlx5_0", "mlx5_1")


def test_a_spare_port_is_a_note() -> None:
    spare = with_ports(
        HGX, lambda port: replace(port, state="DOWN", physical_state="Disabled"), "mlx5_4", "mlx5_9"
    )
    spare = with_health(spare, lambda port: replace(port, netdev_state="down"), "mlx5_4", "mlx5_9")
    assert said("ib-port-not-active", spare).severity is Severity.NOTE


def with_card(examination: Examination, *bdfs: str) -> Examination:
    """Add functions of a card to the PCI bus, like any NIC."""
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    nic = next(function for function in pci.functions.values() if function.kind is PciKind.NIC)
    functions = {**pci.functions, **{bdf: replace(nic, bdf=bdf) for bdf in bdfs}}
    return replace(examination, node=replace(examination.node, pci=replace(pci, functions=functions)))


def test_the_second_port_of_a_card_is_a_spare() -> None:
    moved = with_card(HGX, "0000:59:00.0", "0000:59:00.1")
    moved = with_devices(moved, lambda device: replace(device, bdf="0000:59:00.1"), "mlx5_9")
    moved = with_ports(moved, lambda port: replace(port, state="DOWN"), "mlx5_9")
    moved = with_devices(moved, lambda device: replace(device, bdf="0000:59:00.0"), "mlx5_4")
    moved = with_health(moved, lambda port: replace(port, netdev_state="down"), "mlx5_9")
    assert said("ib-port-not-active", moved).severity is Severity.NOTE


def test_roce_without_a_cable_is_not_disabled() -> None:
    """RoCE shows Disabled for a missing cable too. The netdev shows which of the two it is."""
    unplugged = with_ports(HGX, lambda port: replace(port, state="DOWN", physical_state="Disabled"), "mlx5_4")
    unplugged = with_health(unplugged, lambda port: replace(port, netdev_state="down"), "mlx5_4")
    finding = said("ib-port-not-active", unplugged)
    assert finding.status is Status.FOUND
    assert "no carrier" in finding.cause
    assert status("ib-port-not-active-disabled", unplugged) is Status.PASSED
    assert status("ib-port-not-active-netdev-down", unplugged) is Status.PASSED
    denied = with_health(unplugged, lambda port: replace(port, netdev_is_up=Unknown(Reason.IO_ERROR)))
    assert status("ib-port-not-active", denied) is Status.UNKNOWN


def test_init_is_unknown_if_the_subnet_manager_is_unknown() -> None:
    waiting = with_ports(HGX, lambda port: replace(port, state="INIT"), "mlx5_0")
    blind = with_health(waiting, lambda port: replace(port, sm_lid=Unknown(Reason.IO_ERROR)))
    assert status("ib-port-not-active-no-subnet-manager", blind) is Status.UNKNOWN
    assert status("ib-port-not-active-subnet-manager-stalled", waiting) is Status.FOUND


def test_sm_lid_0_on_an_active_roce_port_is_normal() -> None:
    assert status("ib-port-not-active-no-subnet-manager", examination_of("pcie-l40s")) is Status.PASSED


def test_a_roce_port_on_a_card_that_supports_infiniband_is_not_a_fault() -> None:
    storage = with_ports(HGX, lambda port: replace(port, link_layer="Ethernet"), "mlx5_0")
    assert status("link-layer-wrong", storage) is Status.PASSED
    assert status("link-layer-wrong", examination_of("dgx-a100")) is Status.PASSED


def test_each_port_has_its_own_link_type_parameter() -> None:
    """mlx5 calls the port of each function 1: for function 1 of a card the parameter is LINK_TYPE_P2."""
    plan = said("link-layer-wrong", examination_of("hgx-h100+link-layer-wrong")).fix
    assert plan is not None
    assert plan.steps[0].argv[-1] == "LINK_TYPE_P1=1"
    assert not any("-y" in step.argv for step in plan.steps)
    dual = said("link-layer-wrong", dual_port_card()).fix
    assert dual is not None
    assert [step.argv[-1] for step in dual.steps] == ["LINK_TYPE_P2=1", "reset"]
    # The undo runs in reverse order: the old type, then another reset.
    assert [step.undo[-1] for step in reversed(dual.steps)] == ["LINK_TYPE_P2=2", "reset"]
    assert "mlx5_8" in dual.disturbs
    assert "mlx5_7" in dual.disturbs
    assert "SSH" in dual.note


def dual_port_card() -> Examination:
    """Return mlx5_7 and mlx5_8 as ports of one card, the second with the wrong link layer."""
    examination = examination_of("hgx-h100+link-layer-wrong")
    pci = examination.node.pci
    assert not isinstance(pci, Unknown)
    bdf = next(str(nic.bdf) for nic in examination.topology.nics if nic.id == "mlx5_7")
    second = f"{bdf[:-1]}1"
    functions = {**pci.functions, second: replace(pci.functions[bdf], bdf=second)}
    node = replace(examination.node, pci=replace(pci, functions=functions))
    return with_devices(replace(examination, node=node), lambda device: replace(device, bdf=second), "mlx5_8")


def test_a_port_of_the_wrong_link_layer_is_one_finding() -> None:
    found = findings_on("hgx-h100+link-layer-wrong")
    assert found["link-layer-wrong"].status is Status.FOUND
    assert found["ib-port-not-active"].part_of == "link-layer-wrong"
    assert findings_on("hgx-h100+link-layer-wrong,port-down")["ib-port-not-active"].part_of == ""


def test_a_job_that_names_a_port_that_is_down_has_the_same_cause() -> None:
    down = "hgx-h100+port-down,nccl-ib-hca-port-down"
    found = found_in(examination_of(down))
    assert found["nccl-ib-hca-port-down"].part_of == "ib-port-not-active"


def test_one_lane_is_why_a_port_is_slower() -> None:
    found = findings_on("hgx-h100+one-lane")
    assert found["single-rail-or-half-rate"].part_of == "single-rail-or-half-rate-one-lane"
    assert findings_on("hgx-h100+half-rate")["single-rail-or-half-rate"].part_of == ""


def test_a_gpu_is_far_from_its_nics_because_the_near_ones_are_down() -> None:
    def polling(port: RdmaPort) -> RdmaPort:
        return replace(port, state="DOWN", physical_state="Polling")

    near = with_ports(HGX, polling, "mlx5_0", "mlx5_1")
    only = ["gpu-nic-cross-socket", "gpu-nic-through-cpu", "ib-port-not-active"]
    found = found_in(near, only=only)
    far = set(found) - {"ib-port-not-active"}
    assert far
    assert {found[name].part_of for name in far} == {"ib-port-not-active"}
    alone = findings_on("dgx-a100+gpu-nic-through-cpu")["gpu-nic-through-cpu"]
    assert alone.part_of == ""


def test_half_of_the_ports_on_another_fabric_is_intended() -> None:
    split = with_ports(
        HGX,
        lambda port: replace(port, link_layer="Ethernet", state="DOWN"),
        "mlx5_0",
        "mlx5_1",
        "mlx5_2",
        "mlx5_3",
    )
    assert status("link-layer-wrong", split) is Status.PASSED


def test_sdr_of_an_old_kernel_is_a_note_and_not_a_slow_port() -> None:
    old = with_ports(HGX, lambda port: replace(port, rate_gbps=10.0, rate_text="4X SDR"), "mlx5_0")
    finding = said("rate-shown-as-sdr", old)
    assert (finding.status, finding.severity) == (Status.FOUND, Severity.NOTE)
    assert status("single-rail-or-half-rate", old) is Status.PASSED


def test_sdr_of_an_old_card_is_its_speed() -> None:
    old = with_ports(HGX, lambda port: replace(port, rate_gbps=10.0, rate_text="4X SDR"), "mlx5_0")
    old = with_devices(old, lambda device: replace(device, hca_type="MT26428"), "mlx5_0")
    assert status("rate-shown-as-sdr", old) is Status.PASSED


def test_split_cables_run_on_two_lanes() -> None:
    split = with_ports(HGX, lambda port: replace(port, rate_gbps=200.0, rate_text="2X NDR"))
    assert status("single-rail-or-half-rate-one-lane", split) is Status.PASSED
    assert status("single-rail-or-half-rate", split) is Status.PASSED


def test_a_rate_that_cannot_be_read_is_unknown() -> None:
    unread = Unknown(Reason.IO_ERROR, "rate")
    denied = with_ports(HGX, lambda port: replace(port, rate_gbps=unread, rate_text=unread), "mlx5_0")
    for name in ("rate-shown-as-sdr", "single-rail-or-half-rate", "single-rail-or-half-rate-one-lane"):
        assert status(name, denied) is Status.UNKNOWN


def test_evidence_is_bounded() -> None:
    polling = {"state": "DOWN", "physical_state": "Polling", "link_layer": "InfiniBand"}
    down = with_ports(HGX, lambda port: replace(port, **polling))
    evidence = said("ib-port-not-active", down).evidence
    assert len(evidence) == 9
    assert evidence[-1].value == "and 2 more"
