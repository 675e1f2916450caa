"""What a registration would try: every chosen GPU with every chosen NIC, and why it leaves some out."""

from __future__ import annotations

import re

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.affected_jobs import users_of_gpu
from probes.bandwidth.planning.node_settings import no_such_nic
from probes.base.frozen import frozen
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel.modules import PRESENT, ModuleFacts, ModuleState
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice
from probes.snapshot.examination import Examination

CONTEXT_MEMORY = "107 to 555 MiB"
"""GPU memory of a CUDA context in public reports (ggml-org/llama.cpp#23604 has the least and the most)."""
FREE_BYTES = 1 << 30
"""With less free memory a GPU is left out: the context could take what a job allocates next."""
GPU_SECONDS = 30.0
"""Time limit of a GPU with all NICs; without persistence mode, starting the driver alone takes seconds."""
# IBV_ACCESS_LOCAL_WRITE, and with it REMOTE_WRITE and REMOTE_READ. EFA refuses remote access on some NICs.
_ACCESS, _EFA_ACCESS = 7, 1
_NO_NIC = "no RDMA device; gdrtop check shows why"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@frozen
class NicTrial:
    """One NIC."""

    name: str
    kernel_name: str
    access: int  # flags of infiniband/verbs.h
    not_tried: str = ""  # why; "": it is tried


@frozen
class GpuTrial:
    """One GPU, and the NICs that register its memory."""

    label: str  # "GPU0"
    bdf: str
    nics: tuple[NicTrial, ...]
    not_tried: str = ""  # why; "": it is tried
    users: str = ""  # who uses it now, or why that is unknown; "": no process

    @property
    def words(self) -> tuple[str, ...]:
        """Return the NICs that are tried, as the program takes them."""
        return tuple(f"{nic.access}:{nic.kernel_name}" for nic in self.nics if not nic.not_tried)

    @property
    def is_tried(self) -> bool:
        """Return whether anything is tried with this GPU."""
        return not self.not_tried and bool(self.words)


def plan_registration(
    examination: Examination, gpu: str | None = None, nic: str | None = None
) -> tuple[GpuTrial, ...] | Refused:
    """Return what is tried; `gpu`: a BDF, `nic`: an RDMA device; without them, every one."""
    facts, rdma = examination.node.gpus, examination.node.rdma
    if isinstance(facts, Unknown):
        return Refused(f"the GPUs are unknown: {facts}")
    if isinstance(rdma, Unknown):
        is_none = rdma.reason is Reason.NOT_THERE
        return Refused(_NO_NIC if is_none else f"the RDMA devices are unknown: {rdma}")
    devices = [device for device in rdma.devices if nic in (None, device.name)]
    if not devices:
        return no_such_nic(rdma, nic) if nic else Refused(_NO_NIC)
    nics = tuple(map(_nic_trial, devices))
    trials = tuple(_gpu_trial(examination, each, nics) for each in facts.gpus if gpu in (None, each.bdf))
    return trials or Refused("this node has no GPU")


def _nic_trial(device: RdmaDevice) -> NicTrial:
    kernel_name = device.sysfs_path.rpartition("/")[2]
    access = _EFA_ACCESS if known(device.driver, "") == "efa" else _ACCESS
    return NicTrial(device.name, kernel_name, access, _why_no_nic(device, kernel_name))


def _why_no_nic(device: RdmaDevice, kernel_name: str) -> str:
    if isinstance(device.bdf, Unknown):
        return "it is a software device, which cannot reach GPU memory"
    if not has_verbs(device):
        return "Slingshot has no verbs; libfabric registers its memory"
    return "" if _NAME.fullmatch(kernel_name) else "its name is not one of an RDMA device"


def _gpu_trial(examination: Examination, gpu: Gpu, nics: tuple[NicTrial, ...]) -> GpuTrial:
    why = _why_no_gpu(examination, gpu)
    return GpuTrial(f"GPU{gpu.index}", gpu.bdf, nics, why, "" if why else users_of_gpu(examination, gpu))


def _why_no_gpu(examination: Examination, gpu: Gpu) -> str:
    """Return why a context on this GPU would fail or do harm; "" if nothing is known against it."""
    driver = known(gpu.driver, "nvidia")
    if driver != "nvidia":
        return f"its kernel driver is {driver}"
    modules = examination.node.modules
    if isinstance(modules, ModuleFacts):
        for name in ("nvidia", "nvidia_uvm"):
            module = modules.modules.get(name)
            state = None if module is None else module.state
            if isinstance(state, ModuleState) and state not in PRESENT:
                return f"{name} is not loaded, and CUDA would load it"
    direct = examination.node.gpudirect
    if isinstance(direct, GpuDirectFacts) and direct.never_supports(gpu.bdf):
        return direct.gpu_support[gpu.bdf].reason
    if not isinstance(gpu.nvml, Unknown) and gpu.nvml.mig is True:
        return "MIG is on, and gdrtop does not choose an instance"
    live = examination.reading.gpus
    now = None if isinstance(live, Unknown) else live.get(gpu.bdf)
    used = None if now is None else now.memory_used_bytes
    if isinstance(used, int) and isinstance(gpu.memory_total_bytes, int):
        free = gpu.memory_total_bytes - used
        if free < FREE_BYTES:
            return f"only {free >> 20} MiB of its memory are free, and a CUDA context takes {CONTEXT_MEMORY}"
    return ""
