"""The variables of UCX, NVSHMEM and libfabric that decide which NICs and paths they use.

Sources: openucx/ucx, src/uct/ib/base/ib_md.c, src/uct/cuda/cuda_copy/cuda_copy_md.c, docs/source/faq.md;
NVIDIA/nvshmem, src/modules/transport/common/env_defs.h; aws/aws-ofi-nccl, doc/efa-env-var.md.
"""

from __future__ import annotations

from probes.nccl.variables.variable import Kind, Variable

_UCX = "https://openucx.readthedocs.io/en/master/faq.html"
_NVSHMEM = "https://docs.nvidia.com/nvshmem/api/gen/env.html"
_EFA = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_PLUGIN_SETS = "The aws-ofi-nccl plugin does what is needed. AWS advises against setting this."
_PER_NIC = "It has an effect only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1."

VARIABLES: tuple[Variable, ...] = (
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
                    "1.16, Turin since 1.19, Intel Emerald Rapids since 1.21.",
                    "Up to 1.22, “yes” asks for it where possible; later that is “try”, and “yes” requires "
                    "it for every registration.")),
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
