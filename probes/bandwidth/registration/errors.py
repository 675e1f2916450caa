"""What the errors of a registration mean on this node.

CUresult: cuda.h. ibv_reg_dmabuf_mr: drivers/infiniband/core/uverbs_std_types_mr.c, umem_dmabuf.c and the
NIC's driver; NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-dmabuf.c, whose ENOTSUPP (524) has no name
in user space. ibv_reg_mr: drivers/infiniband/core/umem.c, kernel-open/nvidia-peermem/nvidia-peermem.c.
"""

from __future__ import annotations

import errno

from probes.base.unknown import Unknown, known
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.gpudirect_probe import CUDA_START_ERRORS
from probes.facts.kernel.modules import ModuleState
from probes.facts.system.memlock import MemlockFacts
from probes.snapshot.examination import Examination

ENOTSUPP = 524  # of the kernel alone
_NAMES = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP", ENOTSUPP: "ENOTSUPP"}
_NO_REASON = "dmesg may show the reason"
_DRIVER_LOG = "dmesg | grep dma-buf shows its reason"
_CUDA = {
    1: "the driver refuses this range of GPU memory",
    2: "not enough free GPU memory",
    34: "libcuda is the stub of the CUDA toolkit, not the driver's library",
    46: "another process has the GPU (compute mode), or the GPU does not respond",
    100: "libcuda finds no GPU: a cgroup or container hides it, or the driver is not loaded",
    101: "libcuda does not list this GPU: a cgroup or container hides it, or MIG is on",
    214: "an uncorrectable ECC error; gdrtop check shows the GPU's errors",
    719: "the GPU failed; gdrtop check shows its errors",
    800: "the driver does not permit it",
    801: "the driver cannot export this GPU's memory as a DMA-BUF",
    804: "libcuda is a compatibility package that does not support this GPU",
    999: "the driver failed; dmesg may show why",
    **{int(code): text for code, text in CUDA_START_ERRORS.items()},
}
_COMPUTE_MODES = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def cuda_error(code: int) -> str:
    """Return what a CUresult means."""
    return _CUDA.get(code, _NO_REASON)


def compute_mode(mode: int) -> str:
    """Return why nothing is tried in a compute mode other than the default."""
    name = _COMPUTE_MODES.get(mode, str(mode))
    return f"its compute mode is {name}, in which a context would keep a job out that starts now"


def errno_text(number: int) -> str:
    """Return "ENOMEM (12)"."""
    return f"{_NAMES.get(number, 'error')} ({number})"


def setup_error(call: str, number: int, examination: Examination) -> str:
    """Return why a NIC cannot be used at all: it did not open, or did not register host memory."""
    if number == errno.ENOSYS:
        return "this kernel or container has no RDMA subsystem"
    if number in (errno.EACCES, errno.EPERM) and call != "host memory":
        return "no access to /dev/infiniband, by file mode, cgroup or network namespace"
    if call == "host memory":
        return f"host memory does not register either, so the GPU is not the reason{_memlock(examination)}"
    return _NO_REASON


def dmabuf_error(number: int, gpu: str, nic: str, examination: Examination) -> str:
    """Return why a NIC refused a GPU's memory as a DMA-BUF; `gpu`: its BDF."""
    if number == ENOTSUPP:
        return f"the GPU driver refuses this pair: PCI topology, or NIC driver; {_DRIVER_LOG}"
    if number == errno.EOPNOTSUPP:
        direct = examination.node.gpudirect
        if isinstance(direct, GpuDirectFacts) and direct.nic_dmabuf.get(nic) is True:
            return "the NIC driver knows DMA-BUF, but not with this buffer or its access flags"
        return "the kernel, the NIC driver or its user-space library does not support DMA-BUF"
    if number == errno.EPROTONOSUPPORT:
        return "the kernel does not know DMA-BUF registration, added in Linux 5.12"
    if number == errno.ENOMEM:
        bar1 = _bar1(gpu, examination)
        return f"the GPU's memory could not be mapped for the NIC: BAR1 is full, or the IOMMU refused{bar1}"
    if number == errno.EINVAL:
        return "the NIC cannot register this buffer: a virtual function, or its firmware"
    return _NO_REASON


def peer_memory_error(number: int, nic: str, examination: Examination) -> str:
    """Return why a NIC refused a GPU's memory by its address."""
    if number == errno.EFAULT:
        module, is_loaded = _peer_module(nic, examination)
        if is_loaded:
            return f"{module} is loaded, but did not accept the address: PCI topology, or BAR1 is full"
        return f"{module} is not loaded, so nothing knows the address"
    if number in (errno.ENOMEM, errno.EPERM):
        return f"locked memory is limited, or the GPU's memory could not be mapped{_memlock(examination)}"
    if number == errno.EINVAL:
        return f"{_peer_module(nic, examination)[0]} refused the memory"
    return _NO_REASON


def _peer_module(nic: str, examination: Examination) -> tuple[str, bool]:
    """Return the module that a NIC needs for peer memory, and whether it is loaded."""
    rdma, modules = examination.node.rdma, examination.node.modules
    devices = () if isinstance(rdma, Unknown) else rdma.devices
    direct = examination.node.gpudirect
    if any(device.name == nic and device.driver == "efa" for device in devices):
        return "efa_nv_peermem", not isinstance(direct, Unknown) and direct.nic_peermem.get(nic) is True
    module = None if isinstance(modules, Unknown) else modules.modules.get("nvidia_peermem")
    return "nvidia_peermem", module is not None and module.state is ModuleState.LIVE


def _memlock(examination: Examination) -> str:
    """Return "; the limit of locked memory is 64 KiB", or ""."""
    facts = examination.memlock
    own = facts.own if isinstance(facts, MemlockFacts) else facts
    if isinstance(own, Unknown) or own.soft_bytes == float("inf"):
        return ""
    return f"; the limit of locked memory is {own.soft_bytes / 1024:.0f} KiB (ulimit -l)"


def _bar1(gpu: str, examination: Examination) -> str:
    """Return "; 120 of 128 MiB of BAR1 are in use", or ""."""
    live, gpus = examination.reading.gpus, examination.node.gpus
    if isinstance(live, Unknown) or isinstance(gpus, Unknown) or gpu not in live:
        return ""
    total = next((known(each.bar1_total_bytes, 0) for each in gpus.gpus if each.bdf == gpu), 0)
    used = live[gpu].bar1_used_bytes
    if isinstance(used, Unknown) or not total:
        return ""
    return f"; {used >> 20} of {total >> 20} MiB of BAR1 are in use"
