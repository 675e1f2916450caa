"""Which path from a NIC to GPU memory is usable: DMA-BUF, nvidia-peermem, both or neither."""

from __future__ import annotations

from probes.bandwidth.model.gains import gains_of_gdr
from probes.base.evidence import Evidence, first_n
from probes.base.plan import Plan, make_plan, plan_or_none
from probes.base.text import join_limited, plural
from probes.base.unknown import UNREAD, Reason, Unknown, known
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState
from probes.facts.kernel.modules import PEERMEM
from probes.facts.pci.nic_families import EFA, SLINGSHOT
from probes.plans.load_modules import load_peermem, refused_before
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, end_with, found, need, passed, unknown
from probes.queries.module_need import DMABUF_MISSING, PEERMEM_MISSING
from probes.queries.modules import nics_of, no_gpu_or_nic, no_gpu_or_rdma_device, peer_nics
from probes.queries.ports import PORT_DOWN, ports_of
from probes.snapshot.examination import Examination
from probes.snapshot.verdict import State

AREA = Area("path")
GPUS = Area("path", is_moving=True)  # a port that goes down takes its GPUs away at once


def _unmet(state: PathState) -> list[Evidence]:
    """Return the requirements that are not met, as evidence."""
    return [
        Evidence(requirement.evidence.partition(": ")[0], requirement.lack or requirement.name)
        for requirement in state.requirements
        if not isinstance(requirement.met, Unknown) and not requirement.met
    ]


@AREA.critical(
    "no-gdr-path",
    "No path between NICs and GPU memory is usable",
    "NVIDIA GPUDirect RDMA manual, https://docs.nvidia.com/cuda/gpudirect-rdma/",
    ok="A path between NICs and GPU memory is usable",
    impact="NCCL copies every message through host memory: more latency, and less bandwidth on fast NICs.",
    part_of=(
        *("nvidia-not-loaded", "mlx5-core-not-loaded", "mlx4-core-not-loaded", "ib-core-not-loaded"),
        *("ib-uverbs-not-loaded", "mlx5-ib-not-loaded", "mlx4-ib-not-loaded", "gpu-too-old-for-gdr"),
        *DMABUF_MISSING,
        *PEERMEM_MISSING,
        *("dmabuf-gpu-too-old", "efa-not-loaded", "cxi-ss1-not-loaded", "cxi-user-not-loaded"),
        *("efa-peermem-unusable", "cxi-without-gpu-support"),
    ),
)
def no_gdr_path(examination: Examination) -> Outcome:
    """Find a node on which neither path is usable."""
    if no_gpu_or_nic(examination) is not None:
        end_with(no_gpu_or_rdma_device(examination))
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is Reason.NOT_YET:
        need(rdma, RDMA_DEVICES)  # they decide which paths there are
    direct = need(examination.node.gpudirect, "the state of GPUDirect")
    if direct.by_design:
        return passed(Evidence("libcuda", f"not applicable by design: {direct.by_design}"))
    states: tuple[PathState, ...] = (direct.dmabuf, direct.peermem)
    has_no_peer = direct.peermem.path is GdrPath.PEERMEM and peer_nics(examination.node) == ()
    if direct.peermem.path is GdrPath.CXI:  # libfabric hands DMA-BUFs to the driver itself
        states = (direct.peermem,)
    elif has_no_peer:
        states = (direct.dmabuf,)  # no NIC here could use nvidia_peermem
    ways = " or ".join(state.path.value for state in states)
    usable = [state.path.value for state in states if need(state.usable, f"the state of {state.path.value}")]
    if usable:
        return passed(Evidence("usable paths", ", ".join(usable)))
    # Slingshot NICs are the only RDMA cards; without their driver they have no device.
    is_slingshot = known(nics_of(examination, SLINGSHOT), ()) and not known(nics_of(examination, EFA), ())
    if has_no_peer and is_slingshot:
        return found(
            "libfabric reaches GPU memory through the cxi devices of Slingshot NICs, but there are none.",
            Evidence("/sys/class/cxi", "no device"),
        )
    need(examination.node.pci, "the PCI devices")  # without a GPU or a NIC, nothing is missing
    reasons = dict.fromkeys(evidence.value for state in states for evidence in _unmet(state)[:1])
    return found(
        f"A NIC reaches GPU memory through {ways}, but {', and '.join(reasons)}.",
        *(evidence for state in states for evidence in _unmet(state)),
        fix=_load_peermem(examination, direct),
        gains=gains_of_gdr(examination),
    )


@AREA.critical(
    "cuda-fails-to-start",
    "CUDA programs fail to start",
    "CUDA driver API, cuInit, errors 802 and 803",
    ok="CUDA programs can start",
    impact="No new program can use this node's GPUs. Programs that are already running are not affected.",
    data_path=True,
    part_of=(
        *("nvidia-not-loaded", "driver-library-mismatch", "gpu-fabric-not-registered"),
        *("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"),
        *("nvlsm-down", "nvlsm-missing", "ib-umad-missing", "gpu-driver-start-failed"),
    ),
)
def cuda_fails_to_start(examination: Examination) -> Outcome:
    """Find an error of cuInit that every CUDA program on the node gets."""
    end_with(no_gpu_or_nic(examination))
    direct = need(examination.node.gpudirect, "the state of GPUDirect")
    failure = need(direct.cuda_failure, "CUDA's response")
    if not failure:
        return passed(Evidence("cuInit(0)", "no error caused by the node"))
    return found(
        f"{failure}.",
        Evidence("cuInit(0)", failure.partition("cuInit(0) ")[2] or failure),
        takes=examination.usability.gpus,
        devices=examination.usability.gpus,
    )


@GPUS.warning(
    "gpu-not-served",
    "A GPU cannot use GPUDirect RDMA",
    "NCCL src/graph/paths.cc, ncclTopoCheckGdr; NCCL_NET_GDR_LEVEL",
    ok="Every GPU can use GPUDirect RDMA",
    impact="New jobs do not use GPUDirect RDMA on these GPUs, or only over a more distant NIC.",
    data_path=True,
    part_of=(
        *("gpu-without-driver", "gpu-without-driver-nouveau", "gpu-without-driver-passed-through"),
        *("xid-79-fell-off-bus", "xid-119-gsp-timeout", "gpu-missing-from-nvml", "gpu-driver-start-failed"),
        *("driver-library-mismatch", "nvidia-not-loaded"),
        *("fabric-manager-down", "fabric-manager-down-absent", "fabric-manager-down-version"),
        *("nvlsm-down", "nvlsm-missing", "ib-umad-missing", "gpu-fabric-not-registered"),
        *("no-gdr-path", "gpu-too-old-for-gdr", "dmabuf-gpu-too-old"),
        *("pcie-function-gone", "nic-without-driver", "nic-without-rdma-device", *PORT_DOWN),
        *("dmabuf-nic-driver-lacks-support", "efa-peermem-unusable", "nic-without-driver-passed-through"),
        *("gpu-nic-cross-socket", "gpu-nic-through-cpu", "gpu-without-near-nic", "nccl-topo-file-stale"),
    ),
)
def gpu_not_served(examination: Examination) -> Outcome:
    """Find GPUs that no NIC serves: the GPU or its near NICs do not work, or no NIC is near enough."""
    end_with(no_gpu_or_nic(examination))
    need(examination.node.gpudirect, "the state of GPUDirect")
    usability = examination.usability
    if not usability.unserved and usability.state is State.UNKNOWN:
        end_with(unknown(f"needs the paths between GPUs and NICs ({usability.reason})"))
    if not usability.unserved:
        for gpu in need(examination.node.gpus, "the GPUs").gpus:
            # Where NVML is not installed or answers with an error, other checks say so.
            if isinstance(gpu.nvml, Unknown) and gpu.nvml.reason in UNREAD:
                need(gpu.nvml, "NVML, which says whether each GPU responds")
        served = f"{len(usability.nics)} of {plural(len(usability.gpus), 'GPU')} have a NIC"
        return passed(Evidence("paths between GPUs and NICs", served))
    reasons = tuple(usability.unserved.values())
    others = len(reasons) - 1
    more = f" {plural(others, 'other GPU')} cannot use GPUDirect RDMA either." if others else ""
    return found(
        f"{reasons[0]}.{more}",
        *first_n(Evidence(gpu, reason) for gpu, reason in usability.unserved.items()),
        fix=_plan_for_unserved(examination),
        devices=tuple(usability.unserved),
        takes=tuple(usability.unserved),
    )


def _plan_for_unserved(examination: Examination) -> Plan | None:
    """Return how a GPU gets a NIC; None where one is near enough, so that something else keeps them apart."""
    near = examination.topology.near_nics
    if down := _near_ports_down(examination):
        step = f"Bring up {join_limited(down)}, near the GPU"
    elif all(near.get(gpu) for gpu in examination.usability.unserved):
        return None
    else:
        step = "Move a NIC below the GPU's PCIe switch, or pair the GPU with another NIC"
    return make_plan("Give the GPU a working NIC", step)


def _near_ports_down(examination: Examination) -> list[str]:
    """Return the ports that are not ACTIVE of the NICs that should serve a GPU, which the reasons name."""
    named = {word for why in examination.usability.unserved.values() for word in why.split()}
    ports = known(ports_of(examination), ())
    return [port.name for port in ports if port.device.name in named and not port.is_active]


def _load_peermem(examination: Examination, direct: GpuDirectFacts) -> Plan | None:
    """Return the plan that loads nvidia_peermem; None where more is missing, or the kernel refused it."""
    own = direct.peermem
    if own.path is not GdrPath.PEERMEM or len(_unmet(own)) != 1 or refused_before(examination, PEERMEM):
        return None
    return plan_or_none(load_peermem(examination))
