"""Ports that somebody has switched off, and their error counters."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from probes.facts.rdma.port_health import ErrorCounter
from probes.snapshot.examination import Examination
from tests.support.changed_facts import said, with_health, with_ports
from tests.support.doctor import examination_of, findings_on
from tests.support.plans import commands, plan, undone, why_not

HGX = "hgx-h100"
NEEDS_ROOT = Unknown(Reason.NEEDS_ROOT, "somewhere")


def test_infiniband_is_enabled_and_roce_follows_its_netdev() -> None:
    node = examination_of(f"{HGX}+port-disabled,netdev-down")
    fix = plan("raise-ports", node)
    first, second = commands(fix)
    assert first.startswith("ibportstate -C mlx5_")
    assert first.endswith("-P 1 -D 0 1 enable")
    assert undone(fix)[0] == first.replace("enable", "disable")
    assert second.startswith("ip link set dev ")
    assert second.endswith(" up")
    assert undone(fix)[1] == second.removesuffix("up") + "down"
    assert "netplan" in fix.note


def test_the_doctor_proposes_the_same_steps() -> None:
    for fault, finding in (
        ("port-disabled", "ib-port-not-active-disabled"),
        ("netdev-down", "ib-port-not-active-netdev-down"),
    ):
        node = f"{HGX}+{fault}"
        fix = findings_on(node)[finding].fix
        assert fix is not None
        assert fix.steps == plan("raise-ports", examination_of(node)).steps


def test_a_port_without_a_cable_is_left_alone() -> None:
    assert why_not("raise-ports", examination_of(f"{HGX}+port-down")) == ("none of the 10 ports is disabled")


def test_virtual_functions_are_left_to_their_guests() -> None:
    node = with_ports(
        examination_of(HGX), lambda port: replace(port, state="DOWN", physical_state="Disabled"), "mlx5_0"
    )
    assert len(commands(plan("raise-ports", node))) == 1
    pci = node.node.pci
    assert not isinstance(pci, Unknown)
    own, other = "0000:1a:00.0", "0000:1b:00.0"
    shared = {**pci.functions, own: replace(pci.functions[own], physical_function=other)}
    node = replace(node, node=replace(node.node, pci=replace(pci, functions=shared)))
    assert why_not("raise-ports", node) == "none of the 9 ports is disabled"


def test_an_unknown_state_is_reported() -> None:
    down = with_ports(examination_of(HGX), lambda port: replace(port, state="DOWN"), "mlx5_4")
    node = with_health(down, lambda health: replace(health, netdev_is_up=NEEDS_ROOT), "mlx5_4")
    assert why_not("raise-ports", node) == "the state of mlx5_4 is unknown: needs root"


def test_error_counters_are_reset_only_on_infiniband() -> None:
    node = with_health(
        examination_of(HGX),
        lambda health: replace(health, errors={"symbol_error": ErrorCounter(65535, True)}),
        "mlx5_3",
        "mlx5_4",
    )
    fix = said("error-counter-full", node).fix
    assert fix is not None
    assert commands(fix) == ["perfquery -C mlx5_3 -P 1 -R 4 1 0xfff", "…"]
    assert "RoCE ports (mlx5_4) cannot be reset" in fix.steps[1].why
    without_lid = with_ports(node, lambda port: replace(port, lid=0), "mlx5_3")
    other = said("error-counter-full", without_lid).fix
    assert other is not None
    assert commands(other)[0] == "perfquery -C mlx5_3 -P 1 -R"
    assert "including the traffic counters" in other.steps[0].why


def dual_port(name: str, second: str) -> Examination:
    """A node on which an odd port is function .1 of a card; `second` is the RDMA device of function .0."""
    node = examination_of(f"{HGX}+{name}")
    odd = said("link-layer-wrong", node).devices[0]
    rdma = node.node.rdma
    assert not isinstance(rdma, Unknown)
    card = next(str(device.bdf) for device in rdma.devices if device.name == odd).rpartition(".")[0]
    bdfs = {odd: f"{card}.1", second: f"{card}.0"}
    devices = tuple(replace(device, bdf=bdfs.get(device.name, device.bdf)) for device in rdma.devices)
    return replace(node, node=replace(node.node, rdma=replace(rdma, devices=devices)))


def test_the_link_type_is_set_on_the_port_of_that_function_and_the_reset_names_its_siblings() -> None:
    node = dual_port("link-layer-wrong", "mlx5_1")
    fix = said("link-layer-wrong", node).fix
    assert fix is not None
    setting, reset = commands(fix)
    assert " LINK_TYPE_P2=" in setting
    # Undone from the last to the first: the old type, then a reset again.
    assert undone(fix)[1].startswith(setting.partition("=")[0])
    assert undone(fix)[0] == reset
    assert "-y" not in f"{setting} {reset}".split()
    assert "mlx5_1 (" in fix.disturbs
    assert "SSH" in fix.note
