"""One NIC in detail."""

from __future__ import annotations

from probes.base.unknown import Reason, Unknown
from probes.facts.node import probe_node
from probes.facts.rdma.devices import RdmaFacts
from probes.queries.ports import key_texts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from probes.snapshot.rates import PortRate
from widgets.base.lines import plain
from widgets.node.nic_detail import draw_nic, past_lines


def test_tcp_traffic_is_shown_apart_from_rdma() -> None:
    rdma = probe_node(SimulatedHost("hgx-h100")).rdma
    assert isinstance(rdma, RdmaFacts)
    device = next(device for device in rdma.devices if device.ports[0].netdev == "ens4np0")
    unread = Unknown(Reason.NOT_RECORDED, "ens4np0")
    rows = [plain(row) for row in draw_nic(device, None, 120, {"ens4np0": PortRate(12.0, unread)})]
    assert "TCP/IP    ↑ 12 Gb/s  ↓ ? Gb/s  without RDMA" in rows
    assert not any("TCP/IP" in plain(row) for row in draw_nic(device, None, 120))


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
        rows = [plain(row) for row in draw_nic(device, None, 120, keys=key_texts(examination))]
        assert [row for row in rows if "P_Key" in row] == ([shown] if shown else [])
