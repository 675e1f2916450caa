"""Faults of jobs' settings for NCCL, UCX and NVSHMEM: each is one more process on the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from probes.simulation.faults.fault import Fault
from probes.simulation.node.description import NodeDescription
from probes.simulation.node.modules import end_rdma_traffic
from probes.simulation.node.processes import FIRST_RANK, NCCL_VERSION, add_rank, default_libraries
from probes.simulation.node.tree import Tree

_pids = count(43000)
_PLUGIN = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0"


def _job(
    name: str,
    variables: dict[str, str],
    on: str = "hgx-h100",
    finds: Sequence[str] = (),
    libraries: tuple[str, ...] = (),
    nccl: tuple[str, ...] = (NCCL_VERSION,),
    gpu: int = 0,
) -> Fault:
    """A job of one process with these variables; its pid is the fault's own, so that faults combine."""
    pid = next(_pids)

    def spoil(tree: Tree) -> None:
        mapped = [path for version in nccl for path in default_libraries(tree, version)]
        add_rank(tree, pid, gpu, variables, (*dict.fromkeys(mapped), *libraries))

    return Fault(name, frozenset(finds or (name,)), spoil=spoil, on=on)


def _over_tcp(name: str, variable: str) -> Fault:
    """The training job with a variable that keeps NCCL from RDMA: no region is registered, no NIC is busy."""

    def spoil(tree: Tree) -> None:
        for number in range(len(tree.gpus)):
            path = f"/proc/{FIRST_RANK + number}/environ"
            given = tree.files.get(path)
            if isinstance(given, bytes):
                tree.add(path, given + f"{variable}\0".encode())
        end_rdma_traffic(tree)

    return Fault(name, frozenset({name}), spoil=spoil)


def _port_down() -> Fault:
    """A job that names a NIC whose port is DOWN."""
    name = "nccl-ib-hca-port-down"
    pid = next(_pids)

    def spoil(tree: Tree) -> None:
        nic = next(one for one in tree.nics if one.name == "mlx5_8")
        port = f"{nic.path}/infiniband/{nic.name}/ports/1"
        tree.add(f"{port}/state", "1: DOWN\n")
        tree.add(f"{port}/phys_state", "2: Polling\n")
        add_rank(tree, pid, 0, {"NCCL_IB_HCA": "=mlx5_0,mlx5_8"})

    return Fault(name, frozenset({name}), spoil=spoil)


def _ten_nics(description: NodeDescription) -> NodeDescription:
    """The node with a storage NIC called mlx5_10."""

    def renamed(holding: object) -> object:
        if isinstance(holding, list):
            return [renamed(one) for one in holding]
        return "storage mlx5_10" if holding == "storage mlx5_5" else holding

    roots = tuple(
        replace(
            root,
            switch=[renamed(one) for one in root.switch],
            ports=[str(renamed(one)) for one in root.ports],
        )
        for root in description.root
    )
    return replace(description, root=roots)


def _prefix() -> Fault:
    """A job that means mlx5_1 and takes mlx5_10 with it."""
    return replace(_job("nccl-ib-hca-prefix", {"NCCL_IB_HCA": "mlx5_1"}, on="dgx-a100"), describe=_ten_nics)


def _stale_topology() -> Fault:
    """A job with the topology file of another machine."""
    name = "nccl-topo-file-stale"
    pid = next(_pids)

    def spoil(tree: Tree) -> None:
        inside = "/opt/topo/ndv4-topo.xml"
        add_rank(tree, pid, 0, {"NCCL_TOPO_FILE": inside})
        tree.add(
            f"/proc/{pid}/root{inside}",
            '<system version="1"><cpu numaid="0"><pci busid="0e0e:00:00.0" class="0x030200"/>'
            '<pci busid="0e0f:00:00.0" class="0x020700"/></cpu></system>\n',
        )

    return Fault(name, frozenset({name}), spoil=spoil)


def _blanks_in_conf(tree: Tree) -> None:
    tree.add("/etc/nccl.conf", "NCCL_DEBUG = WARN\n")


FAULTS: tuple[Fault, ...] = (
    _job("nccl-gdr-level-ignored", {"NCCL_NET_GDR_LEVEL": "NODE"}),
    _job("nccl-gdr-level-off", {"NCCL_NET_GDR_LEVEL": "LOC"}),
    _job("nccl-gdr-level-too-low", {"NCCL_NET_GDR_LEVEL": "PXB"}, on="pcie-l40s", gpu=2),
    _job("nccl-gdr-level-number", {"NCCL_NET_GDR_LEVEL": "3"}),
    _job("nccl-gdr-read-off", {"NCCL_NET_GDR_READ": "0"}),
    _job("nccl-gdr-c2c-off", {"NCCL_NET_GDR_C2C": "0"}, on="gb200"),
    _over_tcp("nccl-ib-disabled", "NCCL_IB_DISABLE=1"),
    _over_tcp("nccl-net-socket", "NCCL_NET=Socket"),
    _job("nccl-ib-hca-mismatch", {"NCCL_IB_HCA": "mthca"}),
    _job("nccl-ib-hca-entry-without-device", {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_77"}),
    _prefix(),
    _port_down(),
    _job("nccl-ib-hca-mixed-layers", {"NCCL_IB_HCA": "mlx5"}),
    _job("nccl-ib-hca-mixed-rates", {"NCCL_IB_HCA": "mlx5"}),
    _job("nccl-ib-hca-leaves-out-nearest", {"NCCL_IB_HCA": "=mlx5_4,mlx5_9"}),
    _job("nccl-gid-index-missing", {"NCCL_IB_HCA": "=mlx5_4,mlx5_9", "NCCL_IB_GID_INDEX": "7"}),
    _job("nccl-gid-index-not-v2", {"NCCL_IB_HCA": "=mlx5_4,mlx5_9", "NCCL_IB_GID_INDEX": "2"}),
    _job("nccl-dmabuf-disabled", {"NCCL_DMABUF_ENABLE": "0"}),
    _job("nccl-too-old-for-dmabuf", {}, on="pcie-l40s", nccl=("2.11.4",)),
    _job("nccl-twice-in-process", {}, nccl=("2.26.2", "2.27.3")),
    _job("nccl-versions-differ", {}, nccl=("2.25.1",)),
    _job("nccl-net-plugin-trouble", {}, libraries=(_PLUGIN,)),
    _job("nccl-net-plugin-mixed", {}, libraries=(_PLUGIN,)),
    _job("nccl-net-plugin-not-found", {"NCCL_NET_PLUGIN": "ofi"}),
    _job("nccl-topo-file-missing", {"NCCL_TOPO_FILE": "/opt/topo/gone.xml"}),
    _stale_topology(),
    _job("nccl-graph-file-left", {"NCCL_GRAPH_FILE": "/tmp/graph.xml"}),
    Fault("nccl-conf-ignored-lines", frozenset({"nccl-conf-ignored-lines"}), spoil=_blanks_in_conf),
    _job("nccl-p2p-off", {"NCCL_P2P_DISABLE": "1"}),
    _job("nccl-shm-off", {"NCCL_SHM_DISABLE": "1"}),
    _job("nccl-relaxed-ordering-off", {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}),
    _job("ucx-tls-without-cuda", {"UCX_TLS": "rc,sm,self"}),
    _job("ucx-net-devices-mismatch", {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_77:1"}),
    _job("nvshmem-needs-peermem", {}, on="pcie-l40s", libraries=("/usr/lib64/libnvshmem_host.so.3.1.7",)),
)
