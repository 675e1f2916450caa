"""The variables of NCCL and of other libraries that decide on NICs and paths, and all that NCCL reads.

Source: NVIDIA/nccl, docs/userguide/source/env.rst (documents 2.0 to 2.32), and the files named in VARIABLES.
"""

from __future__ import annotations

import re
from functools import cache

from probes.base.frozen import frozen
from probes.nccl.variables.variable import Kind, Variable, Version, nccl_variable, parse_version

# Names that parameters.txt does not have: of 2.32 (release notes of 2.32.3, debug.cc), and of a plugin beside
# NCCL (plugins/profiler/inspector).
_OTHERS = """
DEBUG_LEVELS HIER_CE_COLL_AG_RAIL_RING_ENABLE IB_SORT_MERGE_NICS INSPECTOR_COLL_POOL_SIZE
INSPECTOR_COMM_POOL_SIZE INSPECTOR_DUMP_COLL_RING_SIZE INSPECTOR_DUMP_DIR INSPECTOR_DUMP_MIN_SIZE_BYTES
INSPECTOR_DUMP_P2P_RING_SIZE INSPECTOR_DUMP_THREAD_ENABLE INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS
INSPECTOR_DUMP_VERBOSE INSPECTOR_ENABLE INSPECTOR_ENABLE_P2P INSPECTOR_OTEL_EXPORT INSPECTOR_OTEL_VERBOSE
INSPECTOR_P2P_POOL_SIZE INSPECTOR_POOL_GROW INSPECTOR_PROM_DUMP INSPECTOR_REQUIRE_KERNEL_TIMING
"""
_UNDOCUMENTED = frozenset(f"NCCL_{name}" for name in _OTHERS.split())
_OFF, _ON = (("", "0"),), (("", "1"),)
_LEVEL_VALUES = (
    ("LOC", "never"),
    ("NVL", "GPUs with NVLink between them; no NIC is that close"),
    ("PIX", "below the same PCIe switch"),
    ("PXB", "across several PCIe switches of one host bridge"),
    ("P2C", "a NIC attached to the CPU that the GPU reaches over C2C"),
    ("PXN", "through NVLink to a GPU that is near the NIC"),
    ("PHB", "in the same NUMA node, through the CPU; nvidia-smi says PHB or NODE"),
    ("SYS", "always, even across NUMA nodes"),
)
_GPU_LEVEL_VALUES = (
    ("LOC", "never"),
    ("NVL", "GPUs with NVLink between them"),
    ("PIX", "GPUs below the same PCIe switch"),
    ("PXB", "GPUs across several PCIe switches of one host bridge"),
    ("PHB", "GPUs of the same NUMA node, through the CPU; nvidia-smi says PHB or NODE"),
    ("SYS", "always, even across NUMA nodes"),
)
_NUMBERS = (
    "As a number: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and above SYS, in every version since 2.8. The distances in"
    " NCCL's log are other numbers, which change between versions."
)
_EXACT_WORDS = "Words are uppercase without spaces. NCCL silently ignores others, such as NODE or phb."
_DIAGNOSTICS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html"
_TUNING = "NCCL chooses it by topology and message size. A fixed value is often wrong after an update."
_UNKNOWN_WORDS = "From 2.24 on, NCCL fails on an unknown word; earlier versions ignore it."
_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT", "CollNet")
_SUBSYSTEMS = (
    *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY"),
    *("NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
)
# The user guide has it (troubleshooting/diagnostics, in RCCL's copy), and debug.cc of 2.31.2 does not.
_DIAG = ("DIAG", "details of NCCL's diagnostics; not in 2.31.2")
_UCX = "https://openucx.readthedocs.io/en/master/faq.html"
_NVSHMEM = "https://docs.nvidia.com/nvshmem/api/gen/env.html"
_EFA = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_PLUGIN_SETS = "The aws-ofi-nccl plugin does what is needed. AWS advises against setting this."
_PER_NIC = "It has an effect only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1."
VARIABLES: tuple[Variable, ...] = (
    # NICs, GIDs, queue pairs and the network: src/transport/net_ib, src/misc/utils.cc.
    nccl_variable("NCCL_IB_HCA", "which NICs NCCL uses: prefixes, names after =, or all but those after ^",
                  Kind.HCA_LIST,
                  notes=("Without “=”, each name is a prefix: mlx5_1 also selects mlx5_10 to mlx5_19.",
                         "If unset, NCCL opens every NIC with an ACTIVE port, and each GPU uses the fastest "
                         "and nearest.",
                         "Rail and plane (NAME:PORT:RAIL:PLANE) since 2.30.7. NCCL reads at most 32 "
                         "entries.")),
    nccl_variable("NCCL_IB_DISABLE",
                  "1: NCCL uses TCP sockets instead of its InfiniBand and RoCE transport", Kind.NUMBER,
                  defaults=_OFF, for_debugging=True, notes=("A network plugin may ignore it.",)),
    nccl_variable("NCCL_NET", "the name of the network that NCCL must use", since="2.10",
                  values=(("IB", "InfiniBand or RoCE; NCCL fails instead of using TCP"),
                          ("Socket", "TCP, so no GPUDirect RDMA")),
                  notes=("Case does not matter. Plugins have their own names: “AWS Libfabric”, gIB.",)),
    nccl_variable("NCCL_NET_PLUGIN", "the network plugin that NCCL loads", since="2.11",
                  values=(("none", "no plugin, not even libnccl-net.so"),)),
    nccl_variable("NCCL_TUNER_PLUGIN", "the plugin that chooses algorithms", since="2.19.1"),
    nccl_variable("NCCL_PROFILER_PLUGIN", "the plugin that records events", since="2.23.4"),
    nccl_variable("NCCL_IB_GID_INDEX", "the RoCE GID; if unset, NCCL finds it itself", Kind.NUMBER,
                  defaults=(("2.1.4", "0"), ("2.21", "-1")), limits=(-1, 255), since="2.1.4",
                  notes=("From 2.21 on, unset or -1 lets NCCL look for a RoCE v2 GID of NCCL_IB_ADDR_FAMILY. "
                         "Before, the default was index 0, which is usually a RoCE v1 GID, so the index had "
                         "to be set.",
                         "The same index must be right on every NIC of every node: a removed address shifts "
                         "the table.")),
    nccl_variable("NCCL_IB_ADDR_FAMILY", "the address family of the RoCE GID", since="2.21",
                  defaults=(("2.21", "AF_INET"),), is_closed=True,
                  values=(("AF_INET", "IPv4"), ("AF_INET6", "IPv6")),
                  notes=("NCCL uses it only if NCCL_IB_GID_INDEX is unset.",)),
    nccl_variable("NCCL_IB_ADDR_RANGE", "the address range of the RoCE GID", since="2.21",
                  notes=("CIDR, such as 10.0.0.0/16. NCCL uses it only if NCCL_IB_GID_INDEX is unset.",)),
    nccl_variable("NCCL_IB_ROCE_VERSION_NUM", "the RoCE version of the GID", Kind.NUMBER, since="2.21",
                  defaults=(("2.21", "2"),), limits=(1, 2),
                  notes=("NCCL uses it only if NCCL_IB_GID_INDEX is unset. "
                         "Routers do not forward RoCE v1.",)),
    nccl_variable("NCCL_IB_TC", "the traffic class of RoCE packets, for priorities and PFC", Kind.NUMBER,
                  defaults=(("2.1.15", "0"),), limits=(0, 255), since="2.1.15",
                  notes=("The fabric's QoS decides the value: DSCP is its upper six bits (106 is DSCP 26). "
                         "Ask whoever configured the switches.",)),
    nccl_variable("NCCL_IB_FIFO_TC", "the traffic class of NCCL's control messages", Kind.NUMBER,
                  limits=(0, 255), since="2.22.3",
                  notes=("If unset, NCCL uses 0 before 2.24.3, and NCCL_IB_TC since then.",)),
    nccl_variable("NCCL_IB_SL", "the InfiniBand service level", Kind.NUMBER, defaults=_OFF, limits=(0, 15),
                  since="2.1.4"),
    nccl_variable("NCCL_IB_PKEY", "the index of the partition key", Kind.NUMBER, defaults=_OFF,
                  since="2.8.3"),
    nccl_variable("NCCL_IB_PKEY_VALUE", "the partition key, instead of its index", Kind.NUMBER,
                  defaults=(("2.31", "-1"),), limits=(-1, 0xFFFF), since="2.31",
                  notes=("It takes precedence over NCCL_IB_PKEY.",)),
    nccl_variable("NCCL_IB_TIMEOUT", "the ACK timeout of queue pairs, 4.096 µs × 2^value", Kind.NUMBER,
                  defaults=(("", "14"), ("2.14", "18"), ("2.23", "20")), limits=(0, 31),
                  notes=("0, and 32 and above, mean no timeout: a lost peer hangs the job.",)),
    nccl_variable("NCCL_IB_RETRY_CNT", "how many times a queue pair retries before status 12", Kind.NUMBER,
                  defaults=(("2.1.15", "7"),), limits=(0, 7), since="2.1.15"),
    nccl_variable("NCCL_IB_QPS_PER_CONNECTION", "queue pairs per connection", Kind.NUMBER,
                  defaults=(("2.10", "1"),), limits=(1, 128), since="2.10", for_debugging=True,
                  notes=("More queue pairs can spread traffic over a fabric with ECMP. Measure it.",)),
    nccl_variable("NCCL_IB_SPLIT_DATA_ON_QPS",
                  "1: each message is split over the queue pairs of a connection; 0: they take turns",
                  Kind.NUMBER, defaults=(("2.18", "1"), ("2.20", "0")), limits=(0, 1), since="2.18",
                  for_debugging=True, notes=("The default changed from 1 to 0 in 2.20.",)),
    nccl_variable("NCCL_IB_ADAPTIVE_ROUTING", "1: data transfers that allow adaptive routing", Kind.NUMBER,
                  limits=(0, 1), since="2.16", for_debugging=True,
                  notes=("The default is 1 on InfiniBand and 0 on RoCE. The service level must allow it.",)),
    nccl_variable("NCCL_IB_AR_THRESHOLD",
                  "the message size above which data may use adaptive routing, in bytes", Kind.NUMBER,
                  defaults=(("2.6", "8192"),), since="2.6", for_debugging=True,
                  notes=("From 2.30.3 on, NCCL ignores it if NCCL_IB_OOO_RQ=1.",)),
    nccl_variable("NCCL_IB_PCI_RELAXED_ORDERING",
                  "whether NICs may reorder writes; 0 (no) is slow in virtual machines", Kind.NUMBER,
                  defaults=(("2.12", "2"),), limits=(0, 2),
                  values=(("0", "disabled"),
                          ("1", "as 2: NCCL's source treats both alike, up to 2.30.7. NVIDIA's guide says "
                                "that NCCL fails if relaxed ordering is not supported"),
                          ("2", "used if available")), since="2.12", for_debugging=True),
    nccl_variable("NCCL_IB_ECE_ENABLE", "0: no enhanced connection establishment", Kind.NUMBER,
                  defaults=(("2.23.4", "1"),), limits=(0, 1), since="2.23.4", for_debugging=True),
    nccl_variable("NCCL_IB_MERGE_NICS", "0: the ports of a NIC are used separately", Kind.NUMBER,
                  defaults=(("2.20", "1"),), limits=(0, 1), since="2.20", for_debugging=True),
    nccl_variable("NCCL_IB_MERGE_VFS", "0: virtual functions of a NIC are separate NICs", Kind.NUMBER,
                  defaults=_ON, limits=(0, 1), since="2.18", anchor="debugging"),
    nccl_variable("NCCL_IB_DATA_DIRECT", "0: the Data Direct interface of ConnectX-8 is not used",
                  Kind.NUMBER, defaults=_ON, since="2.27", anchor="debugging"),
    nccl_variable("NCCL_IB_RAIL_POLICY", "how NCCL assigns rails to ConnectX-9", since="2.32",
                  is_closed=True, ignores_case=True, defaults=(("2.32", "CX9:FLIP"),),
                  values=(("CX9:FLIP", "mirrored on each socket"), ("CX9", "the same as CX9:FLIP"),
                          ("CX9:ALT", "alternating on each socket"),
                          ("CX9:BLOCK", "in blocks on each socket"), ("NONE", "NCCL assigns no rails")),
                  notes=("It applies to arm64 nodes with a multiple of 8 ConnectX-9. NCCL knows them by "
                         "their firmware, 82.x.",)),
    nccl_variable("NCCL_IB_RETURN_ASYNC_EVENTS", "0: a fatal event of a NIC does not stop the job",
                  Kind.NUMBER, defaults=(("2.23", "1"),), limits=(0, 1), since="2.23"),
    # GPUDirect RDMA, topology, and the paths inside a node: src/graph/paths.cc, src/graph/topo.cc.
    nccl_variable("NCCL_NET_GDR_LEVEL",
                  "the largest distance between GPU and NIC at which NCCL uses GPUDirect RDMA", Kind.LEVEL,
                  defaults=(("2.4", "PXB"), ("2.29", "P2C")), values=_LEVEL_VALUES, since="2.4",
                  for_debugging=True, anchor="nccl-net-gdr-level-formerly-nccl-ib-gdr-level",
                  notes=(_NUMBERS,
                         _EXACT_WORDS,
                         "P2C differs from PXB only on nodes with C2C links. From 2.27.3 to 2.28.9, "
                         "NCCL_NET_GDR_C2C=1, the default, allows C2C paths at any level from C2C on. From "
                         "2.29.2 on, an explicit level takes precedence, so PXB turns off the C2C paths that "
                         "the default allows.",
                         "Named NCCL_IB_GDR_LEVEL before 2.4.")),
    nccl_variable("NCCL_NET_GDR_READ", "0: no GPUDirect RDMA for sending", Kind.NUMBER,
                  defaults=(("", "0"), ("2.4.2", "-2")), limits=(-2, 1), for_debugging=True,
                  notes=("If unset (-2), it is on for Ampere and newer GPUs from 2.19.1 on, and for older "
                         "GPUs with NVLink.",
                         "Sending from GPU memory over PCIe is slightly slower on some platforms. Measure "
                         "it.")),
    nccl_variable("NCCL_NET_GDR_C2C", "0: no GPUDirect RDMA through a CPU with C2C links", Kind.NUMBER,
                  defaults=(("2.26", "0"), ("2.27", "1")), limits=(0, 1), since="2.26", for_debugging=True,
                  notes=("Before 2.26, NCCL_NET_GDR_LEVEL=PHB allows these paths.",
                         "From 2.32 on, the parts of a GPU that is split (MLOPart) use these paths only "
                         "with cuMem and a driver for CUDA 13.4 or newer.")),
    nccl_variable("NCCL_NET_GDR_MLOPART", "1: GPUDirect RDMA also for partitions of a GPU (MPS with MLOPart)",
                  Kind.NUMBER, defaults=(("2.30.7", "0"),), limits=(0, 1), since="2.30.7",
                  anchor="debugging", for_debugging=True,
                  notes=("Without it, NCCL copies through host memory for GPUs that MPS has split, whatever "
                         "NCCL_NET_GDR_LEVEL is. NCCL 2.32 does not read it.",
                         "NVIDIA's guide recommends ncclMemAlloc, or cuMemCreate with gpuDirectRDMACapable, "
                         "for buffers of such jobs.")),
    nccl_variable("NCCL_MLOPART_RDMA_ENABLE",
                  "1: NCCL registers users' buffers with NICs although a GPU of the job is split (MLOPart)",
                  Kind.NUMBER, defaults=(("2.30.7", "0"),), limits=(0, 1), since="2.30.7",
                  anchor="debugging", for_debugging=True),
    nccl_variable("NCCL_GIN_IB_TC", "the traffic class of queue pairs to which GPUs post (GIN)", Kind.NUMBER,
                  defaults=(("2.30.7", "-1"),), limits=(-1, 255), since="2.30.7", anchor="nccl-ib-tc",
                  notes=("If unset, they have NCCL_IB_TC, then the class that the program sets, then 0. The "
                         "class that OFED sets for a port does not reach them.",)),
    nccl_variable("NCCL_DMABUF_ENABLE", "0: NCCL does not use DMA-BUF, only nvidia-peermem", Kind.NUMBER,
                  defaults=(("2.13", "1"),), limits=(0, 1), since="2.13", for_debugging=True,
                  notes=("NCCL uses DMA-BUF if both paths exist, from 2.13.4 on.",)),
    nccl_variable("NCCL_NET_FORCE_FLUSH", "1: flush after every receive", Kind.NUMBER, limits=(0, 1),
                  defaults=(("2.15.1", "1"), ("2.19.1", "0")), since="2.15.1", anchor="debugging"),
    nccl_variable("NCCL_GDRCOPY_ENABLE", "1: GDRCopy for control data", Kind.NUMBER, defaults=_OFF,
                  limits=(0, 1), since="2.9.6"),
    nccl_variable("NCCL_IB_GDR_LEVEL", "the old name of NCCL_NET_GDR_LEVEL", Kind.LEVEL, removed="2.4",
                  instead="NCCL_NET_GDR_LEVEL", anchor="nccl-net-gdr-level-formerly-nccl-ib-gdr-level"),
    nccl_variable("NCCL_IB_CUDA_SUPPORT", "obsolete: the old switch for GPUDirect RDMA", Kind.NUMBER,
                  removed="2.4", instead="NCCL_NET_GDR_LEVEL"),
    nccl_variable("NCCL_TOPO_FILE", "a topology file that replaces what NCCL finds", Kind.PATH, since="2.6",
                  notes=("If unset, NCCL reads /var/run/nvidia-topologyd/virtualTopology.xml if that exists. "
                         "Virtual machines need the cloud's file; bare metal needs none.",
                         "In a container, the path must exist inside the container. NCCL does not report a "
                         "missing file.")),
    nccl_variable("NCCL_TOPO_DUMP_FILE", "where NCCL writes its topology", Kind.PATH, since="2.6"),
    nccl_variable("NCCL_GRAPH_FILE", "a file that defines rings and trees", Kind.PATH, since="2.6",
                  anchor="debugging"),
    nccl_variable("NCCL_CROSS_NIC", "whether rings and trees may use different NICs on different nodes",
                  Kind.NUMBER, defaults=(("", "2"),), limits=(0, 2), since="2.5",
                  values=(("0", "never: for fabrics whose rails are not connected"),
                          ("1", "allowed: for NICs on one switch"),
                          ("2", "the same NICs if possible"))),
    nccl_variable("NCCL_NETDEVS_POLICY", "how many NICs a GPU uses", since="2.28"),
    nccl_variable("NCCL_NET_MERGE_POLICY", "which NICs NCCL merges into one", since="2.30.5"),
    nccl_variable("NCCL_PXN_DISABLE", "1: a GPU does not use the NIC of another GPU over NVLink", Kind.NUMBER,
                  defaults=(("2.12", "0"),), limits=(0, 1), since="2.12", for_debugging=True),
    nccl_variable("NCCL_P2P_PXN_LEVEL", "0: no PXN for point-to-point traffic", Kind.NUMBER,
                  defaults=(("2.12", "2"),), limits=(0, 2), since="2.12", for_debugging=True),
    nccl_variable("NCCL_PXN_C2C", "1: PXN also to a GPU that reaches the NIC over C2C", Kind.NUMBER,
                  defaults=(("2.27", "0"), ("2.28", "1")), limits=(0, 1), since="2.27", for_debugging=True),
    nccl_variable("NCCL_P2P_DISABLE", "1: no P2P between GPUs of a node", Kind.NUMBER, defaults=_OFF,
                  limits=(0, 1), for_debugging=True),
    nccl_variable("NCCL_P2P_LEVEL", "the largest distance between GPUs at which NCCL uses P2P", Kind.LEVEL,
                  values=_GPU_LEVEL_VALUES, since="2.3.4", for_debugging=True,
                  notes=(_NUMBERS, _EXACT_WORDS)),
    nccl_variable("NCCL_SHM_DISABLE", "1: no shared memory between GPUs of a node", Kind.NUMBER,
                  defaults=_OFF, limits=(0, 1), for_debugging=True),
    nccl_variable("NCCL_NVLS_ENABLE", "0: no NVLink SHARP", Kind.NUMBER,
                  defaults=(("2.17", "1"), ("2.18", "2")), limits=(0, 2), since="2.17", for_debugging=True),
    nccl_variable("NCCL_MNNVL_ENABLE", "1: NVLink between nodes is required; 0: it is not used", Kind.NUMBER,
                  defaults=(("2.21", "2"),), limits=(0, 2), since="2.21", for_debugging=True,
                  notes=("It needs IMEX on every node, and NCCL_CUMEM_ENABLE must not be 0.",)),
    nccl_variable("NCCL_CUMEM_ENABLE", "0: buffers are not allocated with cuMem", Kind.NUMBER,
                  defaults=(("2.18", "0"), ("2.19", "-2")), limits=(-2, 1), since="2.18", for_debugging=True,
                  notes=("Disabled by default in 2.18, automatic (-2) from 2.19 on.",
                         "NVLink between nodes (MNNVL) needs cuMem.")),
    nccl_variable("NCCL_COLLNET_ENABLE", "1: collectives in the network (SHARP)", Kind.NUMBER,
                  defaults=(("2.6", "0"),), limits=(0, 1), since="2.6"),
    nccl_variable("NCCL_IGNORE_CPU_AFFINITY", "1: NCCL ignores the job's CPU affinity", Kind.NUMBER,
                  defaults=_OFF, limits=(0, 1), since="2.4.6"),
    # Bootstrap, algorithms, buffers, logs and files: src/misc/socket.cc, src/misc/param.cc.
    nccl_variable("NCCL_SOCKET_IFNAME", "the interfaces for bootstrap and TCP sockets", Kind.INTERFACES,
                  notes=("If unset, NCCL prefers interfaces whose names begin with ib, then others except "
                         "docker, lo and, since 2.28.3, virbr.",
                         "Without “=”, each name is a prefix: eth also selects eth0 and eth1.",
                         "It does not choose the NICs for RDMA; NCCL_IB_HCA does.")),
    nccl_variable("NCCL_SOCKET_FAMILY", "the address family for bootstrap and TCP sockets", is_closed=True,
                  values=(("AF_INET", "IPv4"), ("AF_INET6", "IPv6"))),
    nccl_variable("NCCL_SOCKET_NTHREADS", "threads per TCP connection", Kind.NUMBER, limits=(1, 16),
                  since="2.4.8"),
    nccl_variable("NCCL_NSOCKS_PERTHREAD", "TCP sockets per thread", Kind.NUMBER, since="2.4.8"),
    nccl_variable("NCCL_OOB_NET_ENABLE", "1: bootstrap over RDMA", Kind.NUMBER, limits=(0, 1), since="2.23"),
    nccl_variable("NCCL_OOB_NET_IFNAME", "the NIC for bootstrap over RDMA", Kind.HCA_LIST, since="2.23"),
    nccl_variable("NCCL_COMM_ID", "the address of the first rank", anchor="debugging"),
    nccl_variable("NCCL_HOSTID", "used instead of the host name to tell nodes apart", since="2.5",
                  anchor="debugging"),
    nccl_variable("NCCL_ALGO", "the algorithms that NCCL may use", Kind.WORDS, since="2.5",
                  for_debugging=True, is_closed=True, ignores_case=True,
                  values=tuple((word, "") for word in _ALGORITHMS),
                  notes=(_TUNING, _UNKNOWN_WORDS)),
    nccl_variable("NCCL_PROTO", "the protocols that NCCL may use", Kind.WORDS, since="2.5",
                  for_debugging=True, is_closed=True, ignores_case=True,
                  values=(("LL", ""), ("LL128", ""), ("Simple", "")),
                  notes=(_TUNING,
                         _UNKNOWN_WORDS,
                         "LL128 on a platform that does not support it can corrupt data.")),
    nccl_variable("NCCL_MIN_NCHANNELS", "the smallest number of channels", Kind.NUMBER, since="2.5",
                  for_debugging=True, instead="NCCL_MIN_CTAS",
                  notes=("Replaced by NCCL_MIN_CTAS in 2.17; it still works.",)),
    nccl_variable("NCCL_MAX_NCHANNELS", "the largest number of channels", Kind.NUMBER, since="2.5",
                  for_debugging=True, instead="NCCL_MAX_CTAS",
                  notes=("Replaced by NCCL_MAX_CTAS in 2.17; it still works.",)),
    nccl_variable("NCCL_MIN_CTAS", "the smallest number of CUDA blocks", Kind.NUMBER, since="2.17",
                  for_debugging=True),
    nccl_variable("NCCL_MAX_CTAS", "the largest number of CUDA blocks", Kind.NUMBER, since="2.17",
                  for_debugging=True),
    nccl_variable("NCCL_BUFFSIZE", "the size of the buffers between GPUs, in bytes", Kind.NUMBER,
                  defaults=(("", "4194304"),), for_debugging=True),
    nccl_variable("NCCL_NTHREADS", "CUDA threads per block", Kind.NUMBER, limits=(64, 512),
                  for_debugging=True),
    nccl_variable("NCCL_P2P_NET_CHUNKSIZE",
                  "the message size of send and receive over the network, in bytes", Kind.NUMBER,
                  defaults=(("2.14", "131072"),), since="2.14", for_debugging=True),
    nccl_variable("NCCL_NET_SHARED_BUFFERS", "0: every connection has its own buffers", Kind.NUMBER,
                  defaults=(("2.8", "1"),), limits=(0, 1), since="2.8", for_debugging=True),
    nccl_variable("NCCL_RUNTIME_CONNECT",
                  "0: connect when a communicator is created, not at the first collective", Kind.NUMBER,
                  defaults=(("2.22", "1"),), limits=(0, 1), since="2.22", for_debugging=True),
    nccl_variable("NCCL_LAUNCH_MODE", "how kernels are launched", since="2.1", for_debugging=True),
    nccl_variable("NCCL_LL_THRESHOLD", "the size below which LL is used", Kind.NUMBER, removed="2.5"),
    nccl_variable("NCCL_TREE_THRESHOLD", "the size below which trees are used", Kind.NUMBER, since="2.4",
                  removed="2.5"),
    nccl_variable("NCCL_SINGLE_RING_THRESHOLD", "the size below which one ring is used", Kind.NUMBER,
                  removed="2.3"),
    nccl_variable("NCCL_DEBUG", "what NCCL writes to its log", is_closed=True, ignores_case=True,
                  values=(("VERSION", "the version only"),
                          ("WARN", "errors"),
                          ("ATTN", "errors and notices; from 2.32 on"),
                          ("INFO", "what gdrtop nccl-log needs"),
                          ("ABORT", ""),
                          ("TRACE", "every call, and only in a special build"))),
    nccl_variable("NCCL_DEBUG_SUBSYS", "which parts of NCCL write to the log", Kind.WORDS, since="2.3.4",
                  is_closed=True, ignores_case=True, values=(*((word, "") for word in _SUBSYSTEMS), _DIAG)),
    nccl_variable("NCCL_DEBUG_FILE", "the log file; %h is the host, %p the pid", Kind.PATH, since="2.2.12"),
    nccl_variable("NCCL_CONF_FILE", "the configuration file to use instead of ~/.nccl.conf", Kind.PATH,
                  since="2.23", notes=("Before 2.23, NCCL reads only ~/.nccl.conf and /etc/nccl.conf.",)),
    nccl_variable("NCCL_RAS_ENABLE", "0: no RAS service", Kind.NUMBER, defaults=(("2.24", "1"),),
                  since="2.24"),
    nccl_variable("NCCL_RAS_ADDR", "the address of the RAS service", since="2.24"),
    Variable("NCCL_RUN_DIAGNOSTICS", "1: NCCL tests its paths whenever a communicator is created",
             Kind.NUMBER, defaults=(("2.31", "0"),), limits=(0, 1), since="2.31", reference=_DIAGNOSTICS,
             notes=("2.31 tests P2P between GPUs. From 2.32.3 on, it also runs ib_write_bw between "
                    "neighboring nodes, from GPU memory if their perftest can.",
                    "Results are on the job's standard output; gdrtop nccl-log explains them. They never end "
                    "the job. Unset it afterwards, because every communicator waits for it.")),
    Variable("NCCL_RUN_RAS_DIAGNOSTICS", "1: NCCL compares its processes whenever a communicator is created",
             Kind.NUMBER, defaults=(("2.31", "0"),), limits=(0, 1), since="2.31", reference=_DIAGNOSTICS,
             notes=("It compares GPUs, drivers and settings, and tests no path. From 2.32 on, every process "
                    "runs lspci and rdma_topo.",)),
    # UCX, NVSHMEM and libfabric: openucx/ucx, src/uct/ib/base/ib_md.c, src/uct/cuda/cuda_copy/cuda_copy_md.c,
    # docs/source/faq.md; NVIDIA/nvshmem, src/modules/transport/common/env_defs.h; aws/aws-ofi-nccl,
    # doc/efa-env-var.md.
    Variable("UCX_NET_DEVICES", "the ports and interfaces that UCX uses: mlx5_0:1,eth0", reference=_UCX,
             defaults=(("", "all"),)),
    Variable("UCX_TLS", "the transports that UCX uses", reference=_UCX, defaults=(("", "all"),),
             notes=("A list without cuda (cuda_copy, cuda_ipc, gdr_copy) cannot handle GPU memory.",)),
    Variable("UCX_IB_GPU_DIRECT_RDMA", "whether UCX registers GPU memory with the NIC", reference=_UCX,
             defaults=(("", "try"),), is_closed=True,
             values=(("try", "if possible"), ("yes", "required"), ("no", "never"))),
    Variable("UCX_CUDA_COPY_DMABUF", "whether UCX uses DMA-BUF", reference=_UCX, defaults=(("", "try"),),
             is_closed=True, values=(("try", "if possible"), ("yes", "required"), ("no", "never")),
             since="1.14"),
    Variable("UCX_IB_PCI_RELAXED_ORDERING", "whether NICs may reorder writes to memory", reference=_UCX,
             defaults=(("", "auto"),),
             notes=("auto is on for the CPUs that UCX knows: AMD Naples to Milan since 1.13, Genoa since "
                    "1.16, Turin since 1.18, Intel Emerald Rapids since 1.21, there from 1.22 on for GPU "
                    "memory only.",
                    "From 1.15 on, “try” asks for it where possible; before, it means auto. Up to 1.22, "
                    "“yes” asks for it, too; later it requires it for every registration.")),
    Variable("UCX_MODULE_DIR", "the directory of UCX's modules, such as libuct_cuda.so", Kind.PATH,
             reference=_UCX,
             notes=("If unset, UCX looks in the directory ucx beside its library. Without libuct_cuda.so it "
                    "takes GPU memory for host memory.",)),
    Variable("UCX_IB_GID_INDEX", "the RoCE GID", reference=_UCX, defaults=(("", "auto"),)),
    Variable("UCX_IB_TRAFFIC_CLASS", "the traffic class of RoCE packets", reference=_UCX,
             defaults=(("", "auto"),)),
    Variable("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1: NICs are assigned by list; 0: each PE gets its nearest NIC",
             Kind.NUMBER, reference=_NVSHMEM, defaults=(("", "0"),), limits=(0, 1)),
    Variable("NVSHMEM_HCA_LIST", "the NICs, assigned round-robin", reference=_NVSHMEM, notes=(_PER_NIC,)),
    Variable("NVSHMEM_HCA_PE_MAPPING",
             "the NIC of each PE, such as mlx5_0:1:2,mlx5_1:1:2 (name:port:number of PEs)",
             reference=_NVSHMEM, notes=(_PER_NIC,)),
    Variable("NVSHMEM_REMOTE_TRANSPORT", "the transport between nodes", reference=_NVSHMEM, is_closed=True,
             values=tuple((name, "") for name in ("ibrc", "ucx", "libfabric", "ibdevx", "none"))),
    Variable("NVSHMEM_IB_GID_INDEX", "the RoCE GID", Kind.NUMBER, reference=_NVSHMEM, defaults=(("", "-1"),)),
    Variable("NVSHMEM_IB_TRAFFIC_CLASS", "the traffic class of RoCE packets", Kind.NUMBER,
             reference=_NVSHMEM),
    Variable("NVSHMEM_IB_ENABLE_IBGDA", "1: the GPU posts RDMA operations itself", Kind.NUMBER,
             reference=_NVSHMEM, limits=(0, 1)),
    Variable("NVSHMEM_IB_DISABLE_DMABUF", "1: NVSHMEM does not use DMA-BUF", Kind.NUMBER, reference=_NVSHMEM,
             limits=(0, 1)),
    Variable("FI_PROVIDER", "the libfabric provider", reference=_EFA, notes=(_PLUGIN_SETS,)),
    Variable("FI_EFA_USE_DEVICE_RDMA", "1: RDMA on EFA", Kind.NUMBER, reference=_EFA, limits=(0, 1),
             notes=("Not needed with aws-ofi-nccl 1.7 and libfabric 1.18 or newer.",)),
    Variable("FI_EFA_USE_HUGE_PAGE", "0: no huge pages, if fork fails", Kind.NUMBER, reference=_EFA,
             limits=(0, 1), notes=("Only for programs whose fork() fails with “Cannot allocate memory”.",)),
    Variable("RDMAV_FORK_SAFE", "1: fork is safe with registered memory", Kind.NUMBER, reference=_EFA,
             limits=(0, 1), notes=(_PLUGIN_SETS,)),
)  # fmt: skip

CATALOGUE: dict[str, Variable] = {variable.name: variable for variable in VARIABLES}


@frozen
class Parameter:
    """A line of parameters.txt."""

    name: str
    first: str  # the first version that reads it
    last: str  # the last version that names it
    defaults: tuple[tuple[str, str], ...]  # (since version, as the source has it), oldest first

    def default(self, version: Version) -> str:
        """Return the default of a version as the source has it; "" if it has none."""
        return next(
            (value for since, value in reversed(self.defaults) if parse_version(since) <= version), ""
        )


@cache
def parameters() -> dict[str, Parameter]:
    """Return the table by the names of the variables."""
    from importlib.resources import files  # costs a command that does not need it some milliseconds

    lines = files(__package__).joinpath("parameters.txt").read_text(encoding="utf-8").splitlines()
    found = (_parameter(*line.split()) for line in lines if line[:1] != "#")
    return {parameter.name: parameter for parameter in found}


def newest() -> str:
    """Return the newest version of the table."""
    return max((parameter.last for parameter in parameters().values()), key=parse_version)


def _parameter(name: str, span: str, *defaults: str) -> Parameter:
    first, _, last = span.partition("-")
    pairs = (default.partition("=") for default in defaults)
    return Parameter(f"NCCL_{name}", first, last, tuple((since, value) for since, _, value in pairs))


_OF_VALUE = re.compile(r"(?:^|; )(\w{1,20}): ")


def meaning_of(name: str, value: str | None = None) -> str:
    """Return what a variable means; "" if it is not in the catalogue, or says nothing of this value.

    A meaning may be that of values, "1: NCCL …; 0: …".
    """
    meaning = CATALOGUE[name].meaning if name in CATALOGUE else ""
    if value is None or not _OF_VALUE.match(meaning):
        return meaning
    _, *parts = _OF_VALUE.split(meaning)
    return dict(zip(parts[::2], parts[1::2], strict=True)).get(value, "")


def is_known(name: str) -> bool:
    """Return whether a library reads the variable, documented or not; NCCL_HOME is no variable of NCCL."""
    return name in CATALOGUE or name in _UNDOCUMENTED or name in parameters()


def similar_name(name: str) -> str:
    """Return the variable that an unknown name is almost; "": none, so only a plugin might read it. Slow."""
    from difflib import get_close_matches  # gdrtop check does not need it

    return next(iter(get_close_matches(name.upper(), CATALOGUE, n=1, cutoff=0.92)), "")
