"""NICs of AWS (EFA) and HPE (Slingshot) on a simulated node.

EFA: drivers/infiniband/hw/efa and AWS's driver package. An EFA has no netdev, no board and no standard
counters; its port is always ACTIVE. Slingshot: HewlettPackard/shs-cxi-driver, drivers/net/ethernet/hpe/ss1;
without verbs, programs open /dev/cxiN through libfabric.
"""

from __future__ import annotations

from collections.abc import Callable

from probes.facts.kernel.modules import EFA_PEERMEM
from probes.facts.rdma.cxi import RECEIVED_OCTETS, SENT_OCTETS
from probes.facts.rdma.port_health import Place, sampled
from probes.simulation.node.devices.ports import job_traffic
from probes.simulation.node.model.tree import PlacedNic, Tree

_BOOTED = 1_750_000_000  # seconds since 1970
# hw/efa/efa_verbs.c, in its order; bytes besides are zero.
_PORT_COUNTERS = (
    *("tx_pkts", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs"),
    *("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"),
    *("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"),
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"),
)


def add_efa(tree: Tree, nic: PlacedNic, guid: str) -> None:
    """Add what is an EFA's own: its counters and its peer-memory provider."""
    base = f"{nic.path}/infiniband/{nic.name}"
    values = {
        "node_type": "7: unspecified",
        "fw_ver": "",
        "sys_image_guid": "0000:0000:0000:0000",
        "ports/1/lid": "0x0",
        "ports/1/sm_lid": "0x0",
        "ports/1/gids/0": f"fe80:0000:0000:0000:{guid}",
        "ports/1/gid_attrs/types/0": "IB/RoCE v1",
    }
    tree.add_values(base, values)
    for name, share in (("tx_bytes", 1.0), ("rx_bytes", 0.99)):
        tree.add(f"{base}/ports/1/hw_counters/{name}", _octets(tree, nic, name, share))
    tree.add_values(f"{base}/ports/1/hw_counters", dict.fromkeys(_PORT_COUNTERS, 0))
    tree.add(f"{nic.path}/p2p", lambda seconds: f"{peer_provider(tree)}\n")


def _octets(tree: Tree, nic: PlacedNic, name: str, share: float) -> Callable[[float], str]:
    total = job_traffic(tree, nic, name, share)
    return lambda seconds: f"{round(total(seconds) * 1e9 / 8)}\n"


def _stamped(count: Callable[[float], str]) -> Callable[[float], str]:
    """Return a counter of telemetry/, with the time of the reading."""
    return lambda seconds: f"{count(seconds).strip()}@{_BOOTED + seconds:.9f}\n"


def peer_provider(tree: Tree) -> str:
    """Return what efa_p2p.c names as its provider; it loads efa_nv_peermem by itself if it can."""
    loadable = EFA_PEERMEM in tree.live_modules or (
        EFA_PEERMEM in tree.description.modules.on_disk and EFA_PEERMEM not in tree.refusals
    )
    return "NVIDIA" if "nvidia" in tree.live_modules and loadable else ""


def add_cxi(tree: Tree, nic: PlacedNic, number: int) -> None:
    """Add one NIC with its netdev hsnN."""
    base = f"{nic.path}/cxi/{nic.name}"
    tree.link(f"/sys/class/cxi/{nic.name}", f"../../{base.removeprefix('/sys/')}")
    tree.link(f"{base}/device", "../..")
    tree.add(f"{base}/dev", f"510:{number}\n")
    for name, direction, share in ((SENT_OCTETS, "tx", 1.0), (RECEIVED_OCTETS, "rx", 0.99)):
        tree.add(f"{nic.path}/telemetry/{name}", _stamped(_octets(tree, nic, direction, share)))
    for name in sampled(Place.TELEMETRY):
        tree.add(f"{nic.path}/telemetry/{name}", _stamped(lambda seconds: "0\n"))
    mbps = round(nic.kind.line_gbps * 1000)
    tree.add_values(f"{nic.path}/net/hsn{number}", {"dev_port": 0, "speed": mbps})
