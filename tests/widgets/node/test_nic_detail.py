"""One NIC in detail."""

from __future__ import annotations

from dataclasses import replace

from probes.base.unknown import Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.rdma.cable_ends import read_cables
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.rdma.port_health import PortHealthFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import PortRate
from tests.support.doctor import examination_of
from widgets.base.lines import plain
from widgets.node.cables import cable_lines, draw_cables
from widgets.node.nic_detail import draw_nic, fec_lines, past_lines


def test_tcp_traffic_is_shown_apart_from_rdma() -> None:
    rdma = probe_node(SimulatedHost("hgx-h100")).rdma
    assert isinstance(rdma, RdmaFacts)
    device = next(device for device in rdma.devices if device.ports[0].netdev == "ens4np0")
    unread = Unknown(Reason.NOT_RECORDED, "ens4np0")
    rows = [plain(row) for row in draw_nic(device, None, 120, {"ens4np0": PortRate(12.0, unread)})]
    assert "TCP/IP    ↑ 12 Gb/s  ↓ ? Gb/s  without RDMA" in rows
    assert not any("TCP/IP" in plain(row) for row in draw_nic(device, None, 120))


def test_fec_and_what_it_repairs_are_shown_where_they_are_known() -> None:
    health = examination_of("hgx-h100").port_health
    assert isinstance(health, PortHealthFacts)
    ethernet, infiniband = health.ports["mlx5_9", 1], health.ports["mlx5_3", 1]
    assert plain(fec_lines([ethernet])[0]).startswith("FEC       RS, repairs ")
    assert plain(fec_lines([infiniband])[0]).endswith("E-10 of the bits")
    assert [plain(row)[:5] for row in fec_lines([ethernet, ethernet])] == ["FEC 1", "FEC 1"]
    unread = Unknown(Reason.NOT_THERE)
    assert fec_lines([replace(ethernet, ethtool=unread, fec=unread)]) == []


def test_a_nic_that_was_slow_in_earlier_jobs_says_so() -> None:
    host = SimulatedHost("hgx-h100+nic-slow")
    history, node = host.component_history(), probe_node(host)
    (row,) = past_lines(history, node, "mlx5_6", 120)
    assert plain(row).startswith("mlx5_6 was the slow NIC in 7 of its last 9 jobs (gdrtop watch, since 20")
    assert past_lines(history, node, "mlx5_5", 120) == []
    assert past_lines(Unknown(Reason.NOT_THERE), node, "mlx5_6", 120) == []


def test_partition_keys_are_shown_where_they_are_not_the_default() -> None:
    for name, shown in (("azure-nd-h100", "P_Keys    0: 0x8013 full, 1: 0x7fff limited"), ("hgx-h100", "")):
        examination = examine(SimulatedHost(name))
        device = next(device for device in examination.node.rdma_devices if device.name == "mlx5_1")
        rows = [plain(row) for row in draw_nic(device, None, 120, examination=examination)]
        assert [row for row in rows if "P_Key" in row] == ([shown] if shown else [])


def test_where_the_cables_of_a_nic_end() -> None:
    examination = examine(SimulatedHost("bare-roce"))
    rdma = examination.node.rdma
    assert isinstance(rdma, RdmaFacts)
    rows = [plain(row) for row in cable_lines(rdma.devices[0], examination.cable_ends, 120)]
    assert rows == [
        "cable to  leaf0a Ethernet1 (To-bare-roce-ens0f0np0) from ens0f0np0",
        "cable to  leaf0b Ethernet1 (To-bare-roce-ens0f1np1) from ens0f1np1",
    ]
    assert cable_lines(rdma.devices[0], Unknown(Reason.TIMED_OUT), 120) == []


def test_unknown_ends_are_one_line_a_reason() -> None:
    host = SimulatedHost("hgx-h100")
    examination = examine(host)
    assert isinstance(examination.node.rdma, RdmaFacts)
    cables = read_cables(host, examination.node.rdma, examination.cable_ends)
    rows = [plain(row) for row in draw_cables(cables, 200)]
    assert rows[-1] == "  unknown for mlx5_4, mlx5_9: lldpd is not installed"
    assert "smpquery (infiniband-diags) is not installed" in rows[-2]
    assert len(rows) == 3
    assert "no port here has a cable" in plain(draw_cables((), 80)[1])
