"""Each comparison: a machine as an admin names it, where its data is from, and what is compared with what."""

from __future__ import annotations

from collections.abc import Callable

from probes.base.frozen import frozen
from tests.machines import benchmarks, devices, logs, pci, topology
from tests.machines.compared import Compared
from tests.support.machines import DIRECTORY


@frozen
class Comparison:
    """One row of the page."""

    machine: str
    devices: str  # GPUs and NICs
    source: str  # owner/name of the public repositories
    truth: str  # what is compared, with what
    function: Callable[..., Compared]
    files: tuple[str, ...]  # below the folder of machines
    together: bool = False  # the function takes all files, else one after another

    def run(self) -> Compared | None:
        """Compare; None where a file is not here."""
        paths = [DIRECTORY / file for file in self.files]
        if not all(path.exists() for path in paths):
            return None
        return self.function(*paths) if self.together else sum(map(self.function, paths), Compared(0))

    @property
    def is_slow(self) -> bool:
        """Whether it unpacks a whole /sys, which takes many seconds."""
        return self.function is pci.hwloc_tree


def _perftest(*names: str) -> tuple[str, ...]:
    return tuple(f"perftest/{name}.log" for name in names)


_TREE = "NUMA nodes, PCI functions and their NUMA nodes; lstopo's output"
_PATHS = "path word of each pair; what NCCL wrote to its log on such a node"
_SEARCH = "path word of each pair; NCCL's search, as its source code has it"
_REGISTERS = "MaxPayload, MaxReadReq, ACS, ATS, links; lspci's text"
_WORDS = "which GPUs have a near NIC; the words of nvidia-smi topo -m"
_CHANNELS = "channels, those with /GDRDMA, and the answer; the lines"
_GPUS = "name, UUID, memory, BAR1, MIG, persistence; nvidia-smi's text"
_PORTS = "state, link layer and rate of ports; the tool's lines"
_FIGURES = "each figure; the text"
_MOC_LOG = "moc-ocp-gdr-noread-ncclsubsys.log"

# By the title of their section.
SECTIONS: dict[str, tuple[Comparison, ...]] = {
    "Paths between GPUs and NICs": (
        Comparison(
            "Massachusetts Open Cloud (MOC), EPYC Genoa",
            "4 H100 SXM, 4 ConnectX-7 (RoCE 400G)",
            "tssala23/moc-training-scripts",
            _PATHS,
            topology.nccl_paths,
            ("nccl_xml/moc-4xh100-4cx7-gdr-topo.xml", f"nccl_logs/{_MOC_LOG}"),
            together=True,
        ),
        Comparison(
            "Xeon server, NVLink bridge",
            "2 A100 PCIe, ConnectX-6 Dx of 2 ports",
            "Timez-zx/nccl-tests",
            _PATHS,
            topology.nccl_paths,
            ("nccl_xml/a100pcie-2gpu-cx6dx-topo-A.xml", "nccl_logs/a100pcie-cx6dx-roce-gdr-disabled.log"),
            together=True,
        ),
        Comparison(
            "Google Cloud, 8 GPUs with NV18",
            "8 H200 or B200, 8 NICs (RoCE)",
            "google/dranet",
            "nvidia-smi topo -m; the simulated `hgx-h100` has the same word for each pair",
            topology.simulated_and_table,
            ("topo_m/gke-8gpu-nv18-8nic.txt",),
        ),
        Comparison(
            "Puget Threadripper Pro WRX90",
            "2 RTX 6000 Ada, ConnectX-7 of 2 ports",
            "luigifcruz/stelline",
            "path word of each pair in the tree of lspci; nvidia-smi topo -m",
            topology.tree_and_table,
            ("lspci/puget-wrx90-full.md", "topo_m/puget-wrx90-topo.txt"),
            together=True,
        ),
        Comparison(
            "OCI BM.GPU.H100.8",
            "8 H100, 8 ConnectX-7 of 2 ports",
            "oracle-quickstart/oci-hpc",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/oci-bm-h100-8-topo.xml",),
        ),
        Comparison(
            "MOC server",
            "4 H100 SXM, 4 ConnectX-7",
            "tssala23/moc-training-scripts",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/moc-4xh100-4cx7-gdr-topo.xml",),
        ),
        Comparison(
            "AWS p4d.24xlarge",
            "8 A100, 4 EFA",
            "aws/aws-ofi-nccl",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/aws-p4d-a100-topo.xml",),
        ),
        Comparison(
            "Azure ND96asr v4 (two versions of the file)",
            "8 A100, 8 InfiniBand HDR",
            "Azure/azhpc-images, microsoft/superbenchmark",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/azure-ndv4-a100-topo.xml", "nccl_xml/superbench-ndv4-topo.xml"),
        ),
        Comparison(
            "Azure ND40rs v2",
            "8 V100, 1 InfiniBand EDR",
            "Azure/azhpc-images",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/azure-ndv2-v100-topo.xml",),
        ),
        Comparison(
            "EPYC server, Kubernetes",
            "4 RTX 4090, Intel X550, no RDMA",
            "sugarlxn/nccl_test",
            _SEARCH,
            topology.nccl_search,
            ("nccl_xml/4x4090-k8s-61-sockets-topo.xml",),
        ),
        Comparison(
            "Servers and workstations, 4 tables",
            "8 with NV18, 4 without NVLink, IGX Orin, WRX90",
            "google/dranet, nvidia-holoscan/holohub, XueSongTap/XueSongTap.github.io, luigifcruz/stelline",
            _WORDS,
            topology.nearest_nics,
            (
                "topo_m/gke-8gpu-nv18-8nic.txt",
                "topo_m/4gpu-sys-2nic.txt",
                "topo_m/igx-orin-topo.txt",
                "topo_m/puget-wrx90-topo.txt",
            ),
        ),
        Comparison(
            "Tables without NICs, 4 tables",
            "8 A100, 8 H100, 2 GTX 1080 Ti, topo -p2p",
            "stas00/ml-engineering, NVIDIA/nccl, XueSongTap/XueSongTap.github.io",
            "whether NVLink or peer access joins all GPUs; the words of nvidia-smi topo",
            topology.nearest_nics,
            (
                "topo_m/a100-nv12-excerpt.txt",
                "topo_m/perf-readme-topo.txt",
                "topo_m/2x1080ti-nonic.txt",
                "topo_m/nccl-doc-topo.txt",
            ),
        ),
    ),
    "The PCIe tree and its registers": (
        Comparison(
            "Supermicro 8-GPU, Sapphire Rapids",
            "8 H100 SXM, 8 ConnectX-7, PEX890xx switches",
            "leptonai/gpud",
            _REGISTERS,
            pci.lspci_registers,
            ("lspci/h100-8gpu-supermicro-lspci-vvv.txt",),
        ),
        Comparison(
            "Puget Threadripper Pro WRX90",
            "2 RTX 6000 Ada, ConnectX-7 of 2 ports",
            "luigifcruz/stelline",
            _REGISTERS,
            pci.lspci_registers,
            ("lspci/puget-wrx90-full.md",),
        ),
        Comparison(
            "Three boards of pciutils' tests",
            "root port of Haswell-E, PLX switch port, CXL device",
            "pciutils/pciutils",
            "MaxPayload, MaxReadReq, ACS from the bytes of config space; lspci's text",
            pci.hex_dump,
            (
                "pci_hexdump/cap-aer-root.lspci-x",
                "pci_hexdump/cap-dpc.lspci-x",
                "pci_hexdump/cap-dvsec-cxl.lspci-x",
            ),
        ),
        Comparison(
            "IBM AC922 (POWER9)",
            "6 V100",
            "open-mpi/hwloc",
            _TREE,
            pci.hwloc_tree,
            ("hwloc_sysfs/nvidiagpunumanodes.tar.bz2",),
        ),
        Comparison(
            "Sandy Bridge, 2 sockets",
            "ConnectX-3, Xeon Phi, no GPU",
            "open-mpi/hwloc",
            _TREE,
            pci.hwloc_tree,
            ("hwloc_sysfs/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2",),
        ),
        Comparison(
            "Virtual machine with PCI domains of 32 bits",
            "no GPU",
            "open-mpi/hwloc",
            _TREE,
            pci.hwloc_tree,
            ("hwloc_sysfs/2pa-pcidomain32bits.tar.bz2",),
        ),
        Comparison(
            "2 AMD servers, PowerEdge R630: odd NUMA nodes",
            "no GPU",
            "open-mpi/hwloc",
            "NUMA nodes; lstopo's output",
            pci.hwloc_tree,
            (
                "hwloc_sysfs/32amd64-4s2n4c-cgroup2.tar.bz2",
                "hwloc_sysfs/48amd64-4pa2n6c-sparse.tar.bz2",
                "hwloc_sysfs/offline-cpu0-node0.tar.bz2",
            ),
        ),
    ),
    "GPUs and ports": (
        Comparison(
            "GB200 compute tray, driver 580.173",
            "4 GB200",
            "NVIDIA/k8s-test-infra",
            _GPUS,
            devices.smi_xml,
            ("nvidia_smi/qx-gb200.xml",),
        ),
        Comparison(
            "HGX H100, driver 580.105",
            "8 H100",
            "NVIDIA/k8s-test-infra",
            _GPUS,
            devices.smi_xml,
            ("nvidia_smi/qx-h100.xml",),
        ),
        Comparison(
            "Virtual machines, 2 outputs",
            "1 A100 each, one with MIG",
            "NVIDIA/k8s-test-infra, netdata/netdata",
            _GPUS,
            devices.smi_xml,
            ("nvidia_smi/qx-a100.xml", "nvidia_smi/netdata-a100-mig.xml"),
        ),
        Comparison(
            "Virtual machines, driver 590 and 595",
            "H100, H100 with MIG, L40S",
            "utkuozdemir/nvidia_gpu_exporter",
            _GPUS,
            devices.smi_query,
            (
                "nvidia_smi/captures-linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt",
                "nvidia_smi/captures-linux-x86_64__nvidia-h100-mig__590.48.01.txt",
                "nvidia_smi/captures-linux-x86_64__nvidia-l40s__595.80.txt",
            ),
        ),
        Comparison(
            "HGX A100, driver 535",
            "8 A100-SXM4-40GB",
            "XueSongTap/XueSongTap.github.io",
            _GPUS,
            devices.smi_query,
            ("nvidia_smi/smi-q-text-dump.txt",),
        ),
        Comparison(
            "HGX A100",
            "8 A100-SXM4-80GB",
            "leptonai/gpud",
            "active NVLinks of each GPU; nvidia-smi nvlink --status",
            devices.nvlinks,
            ("nvidia_smi/nvlink-status-a100.txt",),
        ),
        Comparison(
            "HGX H100, /sys/class/infiniband",
            "8 NICs of 400 Gb/s, one bond",
            "leptonai/gpud",
            "state, rate and link layer of ports; the files",
            devices.ports_of_tree,
            ("ib_sysfs/gpud-h100-sys-class-infiniband.tar.gz",),
        ),
        Comparison(
            "A800 server, ibstat",
            "ConnectX-6 Lx",
            "ArthurChiao/arthurchiao.github.io",
            _PORTS,
            devices.ports_of_text,
            ("ib_tools/a800-ibstat.txt",),
        ),
        Comparison(
            "ASUS ESC8000A-E12 and IGX Orin, ibv_devinfo",
            "ConnectX-7",
            "luigifcruz/stelline, nvidia-holoscan/holohub",
            _PORTS,
            devices.ports_of_text,
            ("ib_tools/asus-ibv_devinfo.txt", "ib_tools/igx-ibv_devinfo.txt"),
        ),
        Comparison(
            "Google Cloud A3 Ultra, rdma link",
            "8 ConnectX-7 (RoCE)",
            "google/dranet",
            _PORTS,
            devices.ports_of_text,
            ("ib_tools/gke-rdma-link-1.txt",),
        ),
    ),
    "Logs of NCCL": tuple(
        Comparison(machine, hardware, source, _CHANNELS, logs.nccl_log, (f"nccl_logs/{file}",))
        for machine, hardware, source, file in (
            (
                "AWS p4d.24xlarge, 2 nodes",
                "16 A100, EFA; GPUDirect RDMA",
                "aws-samples/aws-efa-eks",
                "aws-p4d-efa-2node-nccl.log",
            ),
            (
                "MOC server, 2 nodes",
                "8 H100, ConnectX-7; GPUDirect RDMA",
                "tssala23/moc-training-scripts",
                "moc-h100-roce-gdr-enabled.log",
            ),
            (
                "MOC server, GPUDirect RDMA off",
                "8 H100, ConnectX-7; host memory",
                "tssala23/moc-training-scripts",
                "moc-h100-roce-gdr-disabled.log",
            ),
            (
                "MOC server, pods, receives only",
                "8 H100, ConnectX-7; in part",
                "tssala23/moc-training-scripts",
                _MOC_LOG,
            ),
            (
                "MOC server, TCP",
                "8 H100; TCP sockets",
                "tssala23/moc-training-scripts",
                "moc-h100-4nic-tcp-2nodes.log",
            ),
            (
                "Jean Zay",
                "A100, Omni-Path; host memory",
                "bigscience-workshop/bigscience",
                "jeanzay-a100-omnipath.log",
            ),
            (
                "2 V100 servers, patched NCCL",
                "V100, RoCE 25G; host memory",
                "ssbandjl/nccl-tests",
                "v100-2node-roce-25g.log",
            ),
            (
                "1 server, no network used",
                "2 A100 PCIe; unknown",
                "Timez-zx/nccl-tests",
                "a100pcie-cx6dx-roce-gdr-disabled.log",
            ),
        )
    ),
    "Results of benchmarks": (
        Comparison(
            "MOC server, GPU memory and host memory",
            "H100, ConnectX-7 (RoCE 400G)",
            "tssala23/moc-training-scripts",
            f"perftest: {_FIGURES}",
            benchmarks.perftest,
            _perftest(
                "moc-bm-cpu-write_bw-client",
                "moc-bm-gpu-ib_read_bw_9000_16_0_0",
                "moc-bm-gpu-ib_read_bw_9000_16_0_2",
                "moc-bm-gpu-ib_read_bw_9000_1_0_0",
                "moc-bm-gpu-ib_write_bw_9000_16_0_0",
                "moc-bm-gpu-ib_write_bw_9000_1_0_0",
                "moc-bm-gpu-write_bw-client",
                "moc-ocp-ib_read_bw_1cuda_0affinity_client_00000",
                "moc-ocp-ib_read_lat_0cuda_client_00000",
                "moc-ocp-ib_read_lat_1cuda_1affinity_client_00000",
                "moc-ocp-ib_write_bw_0cuda_client_00000",
                "moc-ocp-ib_write_bw_0cuda_host_00000",
                "moc-ocp-ib_write_bw_1cuda_1affinity_client_00000",
            ),
        ),
        Comparison(
            "Google Cloud A3 Ultra",
            "H200, ConnectX-7",
            "google/dranet",
            f"perftest: {_FIGURES}",
            benchmarks.perftest,
            ("perftest/gke-h200-rdma-write_bw.txt",),
        ),
        Comparison(
            "DGX Spark, 2 nodes",
            "GB10, ConnectX-7; host memory",
            "NVIDIA/dgx-spark-playbooks",
            f"perftest: {_FIGURES}",
            benchmarks.perftest,
            ("perftest/dgx-spark-ib_write_bw.txt",),
        ),
        Comparison(
            "Azure ND, loopback",
            "InfiniBand HDR",
            "microsoft/superbenchmark",
            f"perftest: {_FIGURES}",
            benchmarks.perftest,
            _perftest("superbench-ib_loopback-8M"),
        ),
        Comparison(
            "OCI and Azure ND, 2 nodes",
            "H100, A100",
            "oracle-quickstart/oci-hpc, Azure/aks-rdma-infiniband",
            f"nccl-tests: {_FIGURES}",
            benchmarks.nccl_tests,
            ("bandwidth/ncclt-oci-troubleshoot.txt", "bandwidth/ncclt-aks-nd-1.txt"),
        ),
        Comparison(
            "Cluster of 17 nodes, pairs",
            "1 H100 a node",
            "xxrjun/nccl-tests-cluster",
            f"nccl-tests: {_FIGURES}",
            benchmarks.nccl_tests,
            ("bandwidth/ncclt-pair-001-002.log", "bandwidth/ncclt-pair-002-008-failed.log"),
        ),
        Comparison(
            "A100 virtual machine",
            "8 A100",
            "microsoft/superbenchmark",
            f"nccl-tests: {_FIGURES}",
            benchmarks.nccl_tests,
            (
                "bandwidth/ncclt-superbench-nccl_allreduce.log",
                "bandwidth/ncclt-superbench-nccl_alltoall.log",
                "bandwidth/ncclt-superbench-nccl_reduce.log",
            ),
        ),
        Comparison(
            "4 servers, old nccl-tests, rows cut by others",
            "32 RTX 3090",
            "Panlichen/nccl-tests",
            f"nccl-tests: {_FIGURES}",
            benchmarks.nccl_tests,
            ("bandwidth/ncclt-4hosts.txt",),
        ),
        Comparison(
            "Server with NVLink; GH200",
            "8 GPUs; 1 GH200",
            "NVIDIA/nvbandwidth, microsoft/superbenchmark",
            f"nvbandwidth: {_FIGURES}",
            benchmarks.nvbandwidth,
            ("bandwidth/nvbandwidth-readme-now.txt", "bandwidth/nvbandwidth-superbench.log"),
        ),
        Comparison(
            "DGX-1 V100, P100 and K40m servers",
            "V100, P100, K40m",
            "NVIDIA/gdrcopy",
            f"gdrcopy: {_FIGURES}",
            benchmarks.gdrcopy,
            (
                "bandwidth/gdrcopy-copybw-suite.txt",
                "bandwidth/gdrcopy-copylat-2.txt",
                "bandwidth/gdrcopy-copybw-copylat-p100-2020.txt",
                "bandwidth/gdrcopy-copybw-k40-remote.txt",
            ),
        ),
    ),
    "Logs of the kernel": (
        Comparison(
            "Fleet of GPU nodes, single lines",
            "GPUs and NVSwitches",
            "leptonai/gpud",
            "what a line is: Xid, SXid, nvidia-peermem, lost GPU; its begin",
            logs.kernel_log,
            ("dmesg/gpud-kernel-lines.txt", "dmesg/peermem-invalid-context-kmsg.log"),
        ),
        Comparison(
            "8-GPU server, Xid 119 (GSP)",
            "one of 8 GPUs",
            "leptonai/gpud",
            "Xids and how many lines have them; the lines",
            logs.xids,
            ("dmesg/h100-xid119-gsp-timeout.log",),
        ),
    ),
}
COMPARISONS = tuple(comparison for rows in SECTIONS.values() for comparison in rows)
