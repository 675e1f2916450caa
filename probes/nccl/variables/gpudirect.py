"""The variables of NCCL for GPUDirect RDMA, topology, and the paths inside a node.

Source: NVIDIA/nccl, docs/userguide/source/env.rst (documents 2.0 to 2.32), and
src/graph/paths.cc, src/graph/topo.cc.
"""

from __future__ import annotations

from probes.nccl.variables.variable import Kind, Variable, nccl_variable

_OFF = (("", "0"),)
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
VARIABLES: tuple[Variable, ...] = (
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
    nccl_variable("NCCL_DMABUF_ENABLE", "0: NCCL does not use DMA-BUF, only nvidia-peermem", Kind.NUMBER,
                  defaults=(("2.13", "1"),), limits=(0, 1), since="2.13", for_debugging=True,
                  notes=("NCCL uses DMA-BUF if both paths exist, from 2.13.4 on.",)),
    nccl_variable("NCCL_NET_FORCE_FLUSH", "1: flush after every receive", Kind.NUMBER, limits=(0, 1),
                  defaults=(("2.15.1", "1"), ("2.19.1", "0")), since="2.15.1", anchor="debugging"),
    nccl_variable("NCCL_GDRCOPY_ENABLE", "1: GDRCopy for control data", Kind.NUMBER, defaults=_OFF,
                  limits=(0, 1)),
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
    nccl_variable("NCCL_GRAPH_FILE", "a file that defines rings and trees", Kind.PATH, anchor="debugging"),
    nccl_variable("NCCL_CROSS_NIC", "whether rings and trees may use different NICs on different nodes",
                  Kind.NUMBER, defaults=(("", "2"),), limits=(0, 2),
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
                  notes=("Disabled by default in 2.18, automatic (-2) from 2.19 on.",)),
    nccl_variable("NCCL_COLLNET_ENABLE", "1: collectives in the network (SHARP)", Kind.NUMBER,
                  defaults=(("2.6", "0"),), limits=(0, 1), since="2.6"),
    nccl_variable("NCCL_IGNORE_CPU_AFFINITY", "1: NCCL ignores the job's CPU affinity", Kind.NUMBER,
                  defaults=_OFF, limits=(0, 1), since="2.4.6"),
)  # fmt: skip
