"""Faults in the settings of jobs for NCCL, UCX and NVSHMEM, and in what their NCCL logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from probes.facts.jobs.nccl_conf import NCCL_CONF
from probes.simulation.faults.fault import (
    ChangeTree,
    Fault,
    Faults,
    add_file,
    as_change,
    change_devices,
    empty_gid,
    fault,
)
from probes.simulation.node.devices.ports import port_of
from probes.simulation.node.jobs.processes import FIRST_RANK, JOB, Job, add_rank, default_libraries
from probes.simulation.node.jobs.programs import ranks
from probes.simulation.node.model.tree import Tree, Via
from probes.simulation.node.modules.modules import end_rdma_traffic

_pids = count(43000)
_PLUGIN = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0"
_UCX = "/opt/hpcx/ucx/lib"
_TOPOLOGY = "/opt/topo/ndv4-topo.xml"
_SITE = "/opt/venv/lib/python3.12/site-packages"

FAULTS = Faults()


def _job(
    name: str,
    summary: str,
    variables: dict[str, str],
    *changes: ChangeTree,
    on: str = "hgx-h100",
    libraries: tuple[str, ...] = (),
    nccl: tuple[str, ...] = ("",),
    job: Job | None = None,
    files: Mapping[str, str] | None = None,
    gpu: int = 0,
    finds: tuple[str, ...] | None = None,
) -> Fault:
    """Return a fault that adds a process, of a job of its own or of `job`, after other changes.

    Each fault has its own pid, so that faults combine. `files`: as the process sees them; `gpu`: its number,
    or from the last one, -1.
    """
    pid = next(_pids)

    def change(tree: Tree) -> None:
        mapped = [path for version in nccl for path in default_libraries(tree, version)]
        add_rank(tree, pid, gpu % len(tree.gpus), variables, (*dict.fromkeys(mapped), *libraries), job=job)
        for path, text in (files or {}).items():
            tree.add(f"/proc/{pid}/root{path}", text)

    return fault(name, summary, *changes, change, on=on, finds=finds)


def _class_of_ports(tree: Tree) -> None:
    """Set the traffic class on the ports instead of in the jobs' settings."""
    tree.add(NCCL_CONF, tree.text(NCCL_CONF).replace("NCCL_IB_TC=106\n", ""))
    for nic in tree.nics:
        tree.add(f"{nic.path}/infiniband/{nic.name}/tc/1/traffic_class", "Global tclass=106\n")


def _first_data_direct_down(tree: Tree) -> None:
    nic = next(nic for nic in tree.nics if nic.name in tree.dma_functions)
    tree.add_values(port_of(nic), {"state": "1: DOWN", "phys_state": "2: Polling"})


def _port_down(tree: Tree) -> None:
    port = port_of(tree.nic("mlx5_8"))
    tree.add_values(port, {"state": "1: DOWN", "phys_state": "2: Polling"})


def _sparse_gids(tree: Tree) -> None:
    """Empty the entries of another network namespace, as a pod sees the table."""
    for nic in tree.nics:
        for index in range(2):
            empty_gid(tree, port_of(nic), index)


def _processor(model: int, flags: str = "") -> ChangeTree:
    intel = "vendor_id\t: GenuineIntel\ncpu family\t: 6"
    return add_file("/proc/cpuinfo", f"{intel}\nmodel\t\t: {model}\n{flags}\n")


@as_change
def _warns(tree: Tree, line: str) -> None:
    """Let the first rank of the training job log a warning."""
    for rank in ranks(tree)[:1]:
        rank.logged_warnings += (line.format(nic=rank.nics[0]),)


@as_change
def _informs(tree: Tree, line: str) -> None:
    for rank in ranks(tree):
        rank.logged_lines += (line,)


def _set_variable(tree: Tree, pid: int, variable: str) -> None:
    path = f"/proc/{pid}/environ"
    environment = tree.files.get(path)
    if isinstance(environment, bytes):
        tree.add(path, environment + f"{variable}\0".encode())


def _sets(name: str, setting: str, consequence: str = "", on: str = "hgx-h100") -> Fault:
    """Return a fault that adds a job with a variable, as "NCCL_P2P_DISABLE=1"."""
    variable, _, value = setting.partition("=")
    return _job(name, f"A job sets {setting}{consequence}", {variable: value}, on=on)


def _over_tcp(name: str, summary: str, variable: str) -> Fault:
    """Return a fault that sets a variable of the training job, which then uses TCP instead of RDMA."""

    def change(tree: Tree) -> None:
        for number in range(len(tree.gpus)):
            _set_variable(tree, FIRST_RANK + number, variable)
        end_rdma_traffic(tree)

    return fault(name, summary, change)


@FAULTS.fault("job-log-differs", "A rank's log shows GPUDirect RDMA, but the rank copies through host memory")
def _differs(tree: Tree) -> None:
    """Let the first rank copy through host memory, although its log shows GPUDirect RDMA."""
    for rank in ranks(tree):
        rank.via = Via.DMABUF
    for rank in ranks(tree)[:1]:
        rank.via, rank.logged_via = Via.HOST, Via.DMABUF


def _gdr_disabled(tree: Tree) -> None:
    for rank in ranks(tree):
        rank.via = Via.HOST


@FAULTS.fault("job-log-other-nics", "The job's log lists only NICs that are far from its GPUs")
def _other_nics(tree: Tree) -> None:
    compute = {name for rank in ranks(tree) for name in rank.nics}
    others = tuple(nic.name for nic in tree.nics if nic.name not in compute)
    for rank in ranks(tree):
        rank.logged_nics = others


@FAULTS.fault("job-log-plugin-missing", "The job's log says its network plugin was not found")
def _plugin_missing(tree: Tree) -> None:
    for rank in ranks(tree):
        _set_variable(tree, rank.pid, "NCCL_NET_PLUGIN=ofi")
    _informs("NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal net plugin.")(tree)


# fmt: off
FAULTS += (
    _sets("nccl-gdr-level-ignored", "NCCL_NET_GDR_LEVEL=NODE", ", which NCCL ignores"),
    _sets("data-direct-off-in-job", "NCCL_IB_DATA_DIRECT=0",
          ", so its GPU traffic goes through the CPU", on="gb300"),
    _sets("nccl-gdr-level-off", "NCCL_NET_GDR_LEVEL=LOC", ", which disables GPUDirect RDMA"),
    _sets("nccl-gdr-level-too-low", "NCCL_NET_GDR_LEVEL=PIX",
          " although its NICs are farther away", on="hgx-b200"),
    _sets("nccl-gdr-level-number", "NCCL_NET_GDR_LEVEL=3"),
    _sets("nccl-gdr-read-off", "NCCL_NET_GDR_READ=0"),
    _sets("nccl-gdr-c2c-off", "NCCL_NET_GDR_C2C=0", on="gb200"),
    _over_tcp("nccl-ib-disabled", "The training job sets NCCL_IB_DISABLE=1 and uses TCP",
              "NCCL_IB_DISABLE=1"),
    _over_tcp("nccl-net-socket", "The training job sets NCCL_NET=Socket and uses TCP", "NCCL_NET=Socket"),
    _job("nccl-ib-hca-mismatch", "A job's NCCL_IB_HCA matches no NIC", {"NCCL_IB_HCA": "mthca"}),
    _job("nccl-ib-hca-entry-without-device", "A job's NCCL_IB_HCA lists a NIC that does not exist",
         {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_77"}),
    replace(_job("nccl-ib-hca-prefix", "A job's NCCL_IB_HCA=mlx5_1 also selects mlx5_10",
                 {"NCCL_IB_HCA": "mlx5_1"}, on="dgx-a100"), change_description=change_devices(
                     lambda device: "storage mlx5_10" if device == "storage mlx5_5" else device)),
    _job("nccl-ib-hca-port-down", "A job's NCCL_IB_HCA lists a NIC whose port is down",
         {"NCCL_IB_HCA": "=mlx5_0,mlx5_8"}, _port_down),
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
    _sets("nccl-dmabuf-disabled", "NCCL_DMABUF_ENABLE=0"),
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
    _job("nccl-topo-file-stale", "A job's NCCL_TOPO_FILE describes another machine",
         {"NCCL_TOPO_FILE": _TOPOLOGY}, files={_TOPOLOGY: (
             '<system version="1"><cpu numaid="0"><pci busid="0e0e:00:00.0" class="0x030200"/>'
             '<pci busid="0e0f:00:00.0" class="0x020700"/></cpu></system>\n')}),
    _job("nccl-graph-file-left", "A job sets NCCL_GRAPH_FILE", {"NCCL_GRAPH_FILE": "/tmp/graph.xml"}),
    fault("nccl-conf-ignored-lines", "/etc/nccl.conf has a line with spaces around the “=”",
          add_file(NCCL_CONF, "NCCL_DEBUG = WARN\n")),
    _sets("nccl-p2p-off", "NCCL_P2P_DISABLE=1"),
    _sets("nccl-shm-off", "NCCL_SHM_DISABLE=1"),
    _sets("nccl-relaxed-ordering-off", "NCCL_IB_PCI_RELAXED_ORDERING=0"),
    _job("ucx-tls-without-cuda", "A job sets UCX_TLS without cuda", {"UCX_TLS": "rc,sm,self"}),
    _job("ucx-net-devices-mismatch", "A job's UCX_NET_DEVICES lists a NIC that does not exist",
         {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_77:1"}),
    _job("nccl-nvls-forced", "A job on A100 GPUs sets NCCL_NVLS_ENABLE=1",
         {"NCCL_NVLS_ENABLE": "1"}, on="dgx-a100"),
    _sets("nccl-collnet-without-plugin", "NCCL_COLLNET_ENABLE=1", " without the SHARP plugin"),
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
    _job("hybrid-ep-needs-peermem", "A job's HybridEP needs nvidia_peermem; the node has only DMA-BUF",
         {}, on="pcie-l40s",
         libraries=(f"{_SITE}/hybrid_ep_cpp.cpython-312-x86_64-linux-gnu.so",)),
    _job("gin-efa-requirements", "A job lets GPUs post to EFA, without the driver option for it",
         {"NCCL_GIN_TYPE": "5"}, on="aws-p5", nccl=("2.31.2",)),
    _job("roce-class-of-gpu", "The port's traffic class does not reach a job's GIN queue pairs",
         {"NCCL_GIN_TYPE": "3"}, _class_of_ports, on="bare-roce", nccl=("2.30.7",)),
    # NVIDIA/nccl issue 2167.
    _job("spark-nccl-hang", "A job on several DGX Sparks has NCCL 2.30.4, which was seen to hang",
         {"WORLD_SIZE": "8"}, on="dgx-spark", nccl=("2.30.4",), finds=("known-bad-combination",)),
    # openucx/ucx pull request 11611.
    _job("idle-data-direct", "A NIC with Data Direct is down, and a job has UCX 1.21",
         {}, _first_data_direct_down, on="gb300", nccl=(), libraries=(f"{_UCX}/libucp.so.0.0.0",),
         files={f"{_UCX}/pkgconfig/ucx.pc": "Name: ucx\nVersion: 1.21.0\n"},
         finds=("known-bad-combination",)),
    _job("nixl-ucx-without-cuda", "A job's NIXL uses UCX without its CUDA module",
         {}, libraries=(f"{_SITE}/.nixl_cu12.mesonpy.libs/plugins/libplugin_UCX.so",
                        f"{_SITE}/nixl_cu12.libs/libucp-b39b3ed9.so.0.0.0",
                        f"{_SITE}/nixl_cu12.libs/ucx/libuct_ib.so.0.0.0")),
    _job("nvshmem-ibgda-without-mlx5", "A job uses NVSHMEM's IBGDA on EFA NICs",
         {"NVSHMEM_IB_ENABLE_IBGDA": "1"}, on="aws-p5",
         libraries=("/usr/lib64/libnvshmem_host.so.3.3.9", "/usr/lib64/nvshmem_transport_ibgda.so.3.0.0")),
    _job("nccl-sparse-gid-table",
         "A job with NCCL 2.25, and a GID table whose first entries are empty, as in a pod",
         {}, _sparse_gids, on="gcp-a4", nccl=("2.25.1",)),
    _job("ucx-without-relaxed-ordering",
         "A job with UCX 1.18 on Emerald Rapids, on which it leaves relaxed ordering off",
         {}, _processor(207, "flags\t\t: lm\n"), nccl=(), libraries=(f"{_UCX}/libucp.so.0.0.0",),
         files={f"{_UCX}/pkgconfig/ucx.pc": "Name: ucx\nVersion: 1.18.0\n"}),
    _job("ucx-far-nic", "A job with UCX on a GPU whose NUMA node has no NIC",
         {}, _processor(143), on="pcie-l40s", nccl=(), libraries=(f"{_UCX}/libucp.so.0.0.0",), gpu=-1),
    _job("nvshmem-memory-peers-missing", "A job's NVSHMEM 3.2 does not see nvidia_peermem on this kernel",
         {}, libraries=("/usr/lib64/libnvshmem_host.so.3.2.5", "/usr/lib64/nvshmem_bootstrap_uid.so.3.0.0")),
    fault("job-log-other-setting", "The job's log shows a setting that is not in its environment",
          _informs("NCCL_NET_GDR_LEVEL set by environment to SYS")),
    fault("job-log-errors", "The job's log has a completion error",
          _warns("transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<40001> with "
                 "status=12 opcode=0 len=0 vendor err 129 (Recv) hca {nic}")),
    # NVIDIA/nccl issue 2190.
    fault("cumem-host-differs", "The job's log shows that its ranks allocate host memory in different ways",
          _warns("misc/shmutils.cc:87 NCCL WARN Error while attaching to shared memory segment "
                 "/dev/shm/nccl-Q (size 0), error: No such file or directory (2)"),
          finds=("job-log-errors",)),
    # aws-ofi-nccl, src/platform-aws.cpp.
    fault("efa-security-group", "The job's log shows an EFA peer that never answered",
          _warns("platform-aws.cpp:1049 NCCL WARN NET/OFI * This error indicates that the security group on "
                 "either this instance or the peer instance"), finds=("job-log-errors",), on="aws-p5"),
    # NVIDIA/nccl issue 1488.
    fault("fabric-manager-restarted",
          "The job's log shows that NVLink SHARP fails after a restart of Fabric Manager",
          _warns("transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'"),
          finds=("job-log-errors",)),
    fault("job-log-gdr-disabled",
          "The job's log says its NICs cannot use GPUDirect RDMA, although the node's NICs can",
          _gdr_disabled),
    _job("nccl-older-than-gpu", "A job on Rubin GPUs has NCCL 2.30.7, which does not support them",
         {}, on="vera-rubin", nccl=("2.30.7",)),
    _job("cuda-older-than-gpu", "A job on B200 GPUs has CUDA 12.4, which does not know them",
         {}, on="hgx-b200", libraries=("/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127",)),
)
