"""Faults in the settings of jobs for NCCL, UCX and NVSHMEM, and in what their NCCL logs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.simulation.faults.fault import Fault, Faults, add_file, fault
from probes.simulation.node.jobs.processes import FIRST_RANK, JOB, Job, add_rank, default_libraries
from probes.simulation.node.model.description import NodeDescription
from probes.simulation.node.model.tree import Program, Tree, Via
from probes.simulation.node.modules.modules import end_rdma_traffic

_pids = count(43000)
_PLUGIN = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0"

_UCX = "/opt/hpcx/ucx/lib"
_SITE = "/opt/venv/lib/python3.12/site-packages"

FAULTS = Faults()


def _job(
    name: str,
    summary: str,
    variables: dict[str, str],
    on: str = "hgx-h100",
    libraries: tuple[str, ...] = (),
    nccl: tuple[str, ...] = ("",),
    job: Job | None = None,
) -> Fault:
    """Return a fault that adds a process, of a job of its own or of `job`.

    Each fault has its own pid, so that faults combine.
    """
    pid = next(_pids)

    def change(tree: Tree) -> None:
        mapped = [path for version in nccl for path in default_libraries(tree, version)]
        add_rank(tree, pid, 0, variables, (*dict.fromkeys(mapped), *libraries), job=job)

    return fault(name, summary, change, on=on)


def _over_tcp(name: str, summary: str, variable: str) -> Fault:
    """Return a fault that sets a variable of the training job, which then uses TCP instead of RDMA."""

    def change(tree: Tree) -> None:
        for number in range(len(tree.gpus)):
            path = f"/proc/{FIRST_RANK + number}/environ"
            environment = tree.files.get(path)
            if isinstance(environment, bytes):
                tree.add(path, environment + f"{variable}\0".encode())
        end_rdma_traffic(tree)

    return fault(name, summary, change)


def _port_down() -> Fault:
    pid = next(_pids)

    def change(tree: Tree) -> None:
        nic = next(nic for nic in tree.nics if nic.name == "mlx5_8")
        port = f"{nic.path}/infiniband/{nic.name}/ports/1"
        tree.add(f"{port}/state", "1: DOWN\n")
        tree.add(f"{port}/phys_state", "2: Polling\n")
        add_rank(tree, pid, 0, {"NCCL_IB_HCA": "=mlx5_0,mlx5_8"})

    summary = "A job's NCCL_IB_HCA lists a NIC whose port is down"
    return fault("nccl-ib-hca-port-down", summary, change)


def _ten_nics(description: NodeDescription) -> NodeDescription:
    """Rename a storage NIC to mlx5_10."""

    def renamed(devices: object) -> object:
        if isinstance(devices, list):
            return [renamed(device) for device in devices]
        return "storage mlx5_10" if devices == "storage mlx5_5" else devices

    roots = tuple(
        replace(
            root,
            switch=[renamed(device) for device in root.switch],
            ports=[str(renamed(device)) for device in root.ports],
        )
        for root in description.root
    )
    return replace(description, root=roots)


def _unordered_ucx() -> Fault:
    pid = next(_pids)

    def change(tree: Tree) -> None:
        add_rank(tree, pid, 0, {}, (f"{_UCX}/libucp.so.0.0.0",))
        tree.add(f"/proc/{pid}/root{_UCX}/pkgconfig/ucx.pc", "Name: ucx\nVersion: 1.18.0\n")
        tree.add(
            "/proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\nflags\t\t: lm\n\n"
        )

    summary = "A job with UCX 1.18 on Emerald Rapids, on which it leaves relaxed ordering off"
    return fault("ucx-without-relaxed-ordering", summary, change)


def _far_from_ucx() -> Fault:
    pid = next(_pids)

    def change(tree: Tree) -> None:
        add_rank(tree, pid, len(tree.gpus) - 1, {}, (f"{_UCX}/libucp.so.0.0.0",))
        tree.add("/proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\n")

    summary = "A job with UCX on a GPU whose NUMA node has no NIC"
    return fault("ucx-far-nic", summary, change, on="pcie-l40s")


def _sparse_gids() -> Fault:
    pid = next(_pids)

    def change(tree: Tree) -> None:
        """Empty the entries of another network namespace, as a pod sees the table."""
        for nic in tree.nics:
            port = f"{nic.path}/infiniband/{nic.name}/ports/1"
            for index in range(2):
                tree.add(f"{port}/gids/{index}", ("0000:" * 8)[:-1] + "\n")
                tree.remove(f"{port}/gid_attrs/types/{index}")
                tree.remove(f"{port}/gid_attrs/ndevs/{index}")
        add_rank(tree, pid, 0, {}, default_libraries(tree, "2.25.1"))

    summary = "A job with NCCL 2.25, and a GID table whose first entries are empty, as in a pod"
    return fault("nccl-sparse-gid-table", summary, change, on="gcp-a4")


def _stale_topology() -> Fault:
    pid = next(_pids)

    def change(tree: Tree) -> None:
        inside = "/opt/topo/ndv4-topo.xml"
        add_rank(tree, pid, 0, {"NCCL_TOPO_FILE": inside})
        tree.add(
            f"/proc/{pid}/root{inside}",
            '<system version="1"><cpu numaid="0"><pci busid="0e0e:00:00.0" class="0x030200"/>'
            '<pci busid="0e0f:00:00.0" class="0x020700"/></cpu></system>\n',
        )

    summary = "A job's NCCL_TOPO_FILE describes another machine"
    return fault("nccl-topo-file-stale", summary, change)


def _ranks(tree: Tree) -> list[Program]:
    """Return the ranks of the training job that are connected."""
    return [program for program in tree.programs if program.is_nccl and program.nics]


@FAULTS.fault("job-log-differs", "A rank's log shows GPUDirect RDMA, but the rank copies through host memory")
def _differs(tree: Tree) -> None:
    """Let the first rank copy through host memory, although its log shows GPUDirect RDMA."""
    for rank in _ranks(tree):
        rank.via = Via.DMABUF
    for rank in _ranks(tree)[:1]:
        rank.via, rank.logged_via = Via.HOST, Via.DMABUF


@FAULTS.fault(
    "job-log-gdr-disabled",
    "The job's log says its NICs cannot use GPUDirect RDMA, although the node's NICs can",
)
def _gdr_disabled(tree: Tree) -> None:
    for rank in _ranks(tree):
        rank.via = Via.HOST


@FAULTS.fault("job-log-other-nics", "The job's log lists only NICs that are far from its GPUs")
def _other_nics(tree: Tree) -> None:
    compute = {name for rank in _ranks(tree) for name in rank.nics}
    others = tuple(nic.name for nic in tree.nics if nic.name not in compute)
    for rank in _ranks(tree):
        rank.logged_nics = others


@FAULTS.fault("job-log-plugin-missing", "The job's log says its network plugin was not found")
def _plugin_missing(tree: Tree) -> None:
    for rank in _ranks(tree):
        path = f"/proc/{rank.pid}/environ"
        environment = tree.files.get(path)
        if isinstance(environment, bytes):
            tree.add(path, environment + b"NCCL_NET_PLUGIN=ofi\0")
        rank.logged_lines += (
            "NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin.",
        )


@FAULTS.fault("job-log-other-setting", "The job's log shows a setting that is not in its environment")
def _other_setting(tree: Tree) -> None:
    for rank in _ranks(tree):
        rank.logged_lines += ("NCCL_NET_GDR_LEVEL set by environment to SYS",)


@FAULTS.fault("job-log-errors", "The job's log has a completion error")
def _errors(tree: Tree) -> None:
    for rank in _ranks(tree)[:1]:
        rank.logged_warnings += (
            "transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40001> with "
            f"status=12 opcode=0 len=0 vendor err 129 (Recv) hca {rank.nics[0]}",
        )


def _warns(tree: Tree, *lines: str) -> None:
    for rank in _ranks(tree)[:1]:
        rank.logged_warnings += lines


@FAULTS.fault(
    "cumem-host-differs",
    "The job's log shows that its ranks allocate host memory in different ways",
    finds=("job-log-errors",),
)
def _host_memory_differs(tree: Tree) -> None:
    """NVIDIA/nccl issue 2190."""
    _warns(
        tree,
        "misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-Q (size "
        "0), error: No such file or directory (2)",
    )


@FAULTS.fault(
    "efa-security-group",
    "The job's log shows an EFA peer that never answered",
    finds=("job-log-errors",),
    on="aws-p5",
)
def _security_group(tree: Tree) -> None:
    """aws-ofi-nccl, src/platform-aws.cpp."""
    text = "* This error indicates that the security group on either this instance or the peer instance"
    _warns(tree, f"platform-aws.cpp:1049 NCCL WARN NET/OFI {text}")


@FAULTS.fault(
    "fabric-manager-restarted",
    "The job's log shows that NVLink SHARP fails after a restart of Fabric Manager",
    finds=("job-log-errors",),
)
def _manager_restarted(tree: Tree) -> None:
    """NVIDIA/nccl issue 1488."""
    _warns(tree, "transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'")


# fmt: off
FAULTS += (
    _job("nccl-gdr-level-ignored", "A job sets NCCL_NET_GDR_LEVEL=NODE, which NCCL ignores",
         {"NCCL_NET_GDR_LEVEL": "NODE"}),
    _job("data-direct-off-in-job",
         "A job sets NCCL_IB_DATA_DIRECT=0, so its GPU traffic goes through the CPU",
         {"NCCL_IB_DATA_DIRECT": "0"}, on="gb300"),
    _job("nccl-gdr-level-off", "A job sets NCCL_NET_GDR_LEVEL=LOC, which disables GPUDirect RDMA",
         {"NCCL_NET_GDR_LEVEL": "LOC"}),
    _job("nccl-gdr-level-too-low", "A job sets NCCL_NET_GDR_LEVEL=PIX although its NICs are farther away",
         {"NCCL_NET_GDR_LEVEL": "PIX"}, on="hgx-b200"),
    _job("nccl-gdr-level-number", "A job sets NCCL_NET_GDR_LEVEL=3", {"NCCL_NET_GDR_LEVEL": "3"}),
    _job("nccl-gdr-read-off", "A job sets NCCL_NET_GDR_READ=0", {"NCCL_NET_GDR_READ": "0"}),
    _job("nccl-gdr-c2c-off", "A job sets NCCL_NET_GDR_C2C=0", {"NCCL_NET_GDR_C2C": "0"}, on="gb200"),
    _over_tcp("nccl-ib-disabled", "The training job sets NCCL_IB_DISABLE=1 and uses TCP",
              "NCCL_IB_DISABLE=1"),
    _over_tcp("nccl-net-socket", "The training job sets NCCL_NET=Socket and uses TCP", "NCCL_NET=Socket"),
    _job("nccl-ib-hca-mismatch", "A job's NCCL_IB_HCA matches no NIC", {"NCCL_IB_HCA": "mthca"}),
    _job("nccl-ib-hca-entry-without-device", "A job's NCCL_IB_HCA lists a NIC that does not exist",
         {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_77"}),
    replace(_job("nccl-ib-hca-prefix", "A job's NCCL_IB_HCA=mlx5_1 also selects mlx5_10",
                 {"NCCL_IB_HCA": "mlx5_1"}, on="dgx-a100"), change_description=_ten_nics),
    _port_down(),
    _job("nccl-ib-hca-mixed-layers", "A job's NCCL_IB_HCA selects InfiniBand and Ethernet",
         {"NCCL_IB_HCA": "mlx5"}),
    _job("nccl-ib-hca-mixed-rates", "A job's NCCL_IB_HCA selects ports of different rates",
         {"NCCL_IB_HCA": "mlx5"}),
    _job("nccl-ib-hca-leaves-out-nearest", "A job's NCCL_IB_HCA selects only the storage NICs",
         {"NCCL_IB_HCA": "=mlx5_4,mlx5_9"}),
    _job("nccl-gid-index-missing", "A job's NCCL_IB_GID_INDEX selects an empty GID",
         {"NCCL_IB_HCA": "=mlx5_4,mlx5_9", "NCCL_IB_GID_INDEX": "7"}),
    _job("nccl-gid-index-not-v2", "A job's NCCL_IB_GID_INDEX selects a RoCE v1 GID",
         {"NCCL_IB_GID_INDEX": "2"}, on="oci-h100"),
    _job("nccl-dmabuf-disabled", "A job sets NCCL_DMABUF_ENABLE=0", {"NCCL_DMABUF_ENABLE": "0"}),
    _job("nccl-too-old-for-dmabuf", "A job has NCCL 2.11, too old for DMA-BUF",
         {}, on="pcie-l40s", nccl=("2.11.4",)),
    _job("nccl-twice-in-process", "A process loads two versions of NCCL", {}, nccl=("2.26.2", "2.27.3")),
    _job("nccl-versions-differ", "A process has a different NCCL version than the user's other processes",
         {}, nccl=("2.25.1",), job=JOB),
    _job("nccl-net-plugin-trouble", "A job uses a network plugin", {}, libraries=(_PLUGIN,)),
    _job("nccl-net-plugin-mixed", "Only one rank of a job has the network plugin", {}, libraries=(_PLUGIN,),
         job=JOB),
    _job("nccl-net-plugin-not-found", "A job's NCCL_NET_PLUGIN requests a plugin that does not exist",
         {"NCCL_NET_PLUGIN": "ofi"}),
    _job("nccl-topo-file-missing", "A job's NCCL_TOPO_FILE points to a missing file",
         {"NCCL_TOPO_FILE": "/opt/topo/gone.xml"}),
    _stale_topology(),
    _job("nccl-graph-file-left", "A job sets NCCL_GRAPH_FILE", {"NCCL_GRAPH_FILE": "/tmp/graph.xml"}),
    fault("nccl-conf-ignored-lines", "/etc/nccl.conf has a line with spaces around the “=”",
          add_file(NCCL_CONF, "NCCL_DEBUG = WARN\n")),
    _job("nccl-p2p-off", "A job sets NCCL_P2P_DISABLE=1", {"NCCL_P2P_DISABLE": "1"}),
    _job("nccl-shm-off", "A job sets NCCL_SHM_DISABLE=1", {"NCCL_SHM_DISABLE": "1"}),
    _job("nccl-relaxed-ordering-off", "A job sets NCCL_IB_PCI_RELAXED_ORDERING=0",
         {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}),
    _job("ucx-tls-without-cuda", "A job sets UCX_TLS without cuda", {"UCX_TLS": "rc,sm,self"}),
    _job("ucx-net-devices-mismatch", "A job's UCX_NET_DEVICES lists a NIC that does not exist",
         {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_77:1"}),
    _job("nccl-nvls-forced", "A job on A100 GPUs sets NCCL_NVLS_ENABLE=1",
         {"NCCL_NVLS_ENABLE": "1"}, on="dgx-a100"),
    _job("nccl-collnet-without-plugin", "A job sets NCCL_COLLNET_ENABLE=1 without the SHARP plugin",
         {"NCCL_COLLNET_ENABLE": "1"}),
    _job("vmm-memory-with-peermem",
         "A job that uses UCX sets expandable_segments:True, and nvidia-peermem is the only path",
         {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, on="dgx-a100",
         libraries=("/opt/hpcx/ucx/lib/libucp.so.0.0.0",)),
    _job("nvshmem-needs-peermem", "A job uses NVSHMEM without nvidia_peermem",
         {}, on="pcie-l40s",
         libraries=("/usr/lib64/libnvshmem_host.so.3.1.7", "/usr/lib64/nvshmem_bootstrap_uid.so.3.0.0")),
    _job("nvshmem-ibgda-driver-options", "A job uses NVSHMEM's IBGDA without the driver options for it",
         {"NVSHMEM_IB_ENABLE_IBGDA": "1"},
         libraries=("/usr/lib64/libnvshmem_host.so.3.3.9", "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0")),
    _job("known-bad-combination", "A job on several nodes has NCCL 2.30.4, with which some jobs hang",
         {"WORLD_SIZE": "32"}, nccl=("2.30.4",)),
    _job("mooncake-needs-peermem", "A job's Mooncake needs nvidia_peermem; the node has only DMA-BUF",
         {}, on="pcie-l40s", libraries=(f"{_SITE}/mooncake/engine.so",)),
    _job("nixl-ucx-without-cuda", "A job's NIXL uses UCX without its CUDA module",
         {}, libraries=(f"{_SITE}/.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so",
                        f"{_SITE}/nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0",
                        f"{_SITE}/nixl_cu12.libs/ucx/libuct_ib.so.0.0.0")),
    _job("nvshmem-ibgda-without-mlx5", "A job uses NVSHMEM's IBGDA on EFA NICs",
         {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, on="aws-p5",
         libraries=("/usr/lib64/libnvshmem_host.so.3.3.9", "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0")),
    _sparse_gids(),
    _unordered_ucx(),
    _far_from_ucx(),
)
