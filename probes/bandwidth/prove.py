"""Registering GPU memory with NICs: what would be tried, what is left out and why, and what became of it."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable
from enum import Enum

from probes.bandwidth.model.command import Refused
from probes.bandwidth.planning.affected_jobs import users_of_gpu
from probes.bandwidth.planning.node_settings import no_such_nic
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Reason, Unknown, known
from probes.facts.gpu.gpus import Gpu
from probes.facts.gpudirect import GpuDirectFacts, parse_driver_version
from probes.facts.gpudirect_probe import CUDA_START_ERRORS
from probes.facts.kernel.modules import PRESENT, ModuleFacts, ModuleState
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.devices import RdmaDevice
from probes.facts.system.limits import MemlockFacts
from probes.queries.kernel_log import NAMES_IMPORTER
from probes.queries.unproven_paths import unproven_pairs
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
    trials = []
    for each in facts.gpus:
        if gpu in (None, each.bdf):
            why = _why_no_gpu(examination, each)
            users = "" if why else users_of_gpu(examination, each)
            trials.append(GpuTrial(f"GPU{each.index}", each.bdf, nics, why, users))
    return tuple(trials) or Refused("this node has no GPU")


def _nic_trial(device: RdmaDevice) -> NicTrial:
    kernel_name = device.sysfs_path.rpartition("/")[2]
    access = _EFA_ACCESS if known(device.driver, "") == "efa" else _ACCESS
    why = "" if _NAME.fullmatch(kernel_name) else "its name is not one of an RDMA device"
    if isinstance(device.bdf, Unknown):
        why = "it is a software device, which cannot reach GPU memory"
    elif not has_verbs(device):
        why = "Slingshot has no verbs; libfabric registers its memory"
    return NicTrial(device.name, kernel_name, access, why)


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


# What became of a registration: for each GPU with each NIC, whether its memory registers on each path.
#
# "registers" says that the GPU driver and the NIC accepted the memory. Whether data arrives, only a
# bandwidth test shows: behind an IOMMU or ACS redirect, a registration succeeds too.

# CUresult: cuda.h. ibv_reg_dmabuf_mr: drivers/infiniband/core/uverbs_std_types_mr.c, umem_dmabuf.c and the
# NIC's driver; NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-dmabuf.c, whose ENOTSUPP (524) is of the
# kernel alone. ibv_reg_mr: drivers/infiniband/core/umem.c, kernel-open/nvidia-peermem/nvidia-peermem.c.
ENOTSUPP = 524
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
        return _unmapped(gpu, examination)
    if number == errno.EINVAL:
        return "the NIC cannot register this buffer: a virtual function, or its firmware"
    return _NO_REASON


def _unmapped(gpu: str, examination: Examination) -> str:
    """Return why a GPU's memory was not mapped; older drivers refuse some NIC drivers with the same error."""
    gpus = examination.node.gpus
    version = None if isinstance(gpus, Unknown) else known(gpus.driver.version, None)
    is_older = version is not None and (parse_driver_version(version) or NAMES_IMPORTER) < NAMES_IMPORTER
    refusers = "the IOMMU or the GPU driver refused" if is_older else "the IOMMU refused"
    log = "; dmesg | grep P2P shows whether the driver did" if is_older else ""
    bar1 = _bar1(gpu, examination)
    return f"the GPU's memory could not be mapped for the NIC: BAR1 is full, or {refusers}{bar1}{log}"


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
    modules, direct = examination.node.modules, examination.node.gpudirect
    if any(each.name == nic and each.driver == "efa" for each in examination.node.rdma_devices):
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
    live, gpus = examination.reading.gpus, examination.node.known_gpus
    if isinstance(live, Unknown) or gpu not in live:
        return ""
    total = next((known(each.bar1_total_bytes, 0) for each in gpus if each.bdf == gpu), 0)
    used = live[gpu].bar1_used_bytes
    if isinstance(used, Unknown) or not total:
        return ""
    return f"; {used >> 20} of {total >> 20} MiB of BAR1 are in use"


# The calls as tui/bandwidth/prove/child.py names them, in its order.
NIC_CALLS = ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "host memory")
COMPUTE_MODE, SUPPORTED = "compute mode", ("peer memory supported", "DMA-BUF supported")
GPU_CALLS = (
    *("cuInit", "cuDeviceGetByPCIBusId", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2"),
)
EXPORT = "cuMemGetHandleForAddressRange"
LIBRARIES = ("libibverbs", "libcuda")
DMABUF, PEER_MEMORY = "DMA-BUF", "peer memory"
_FUNCTIONS = {DMABUF: "ibv_reg_dmabuf_mr", PEER_MEMORY: "ibv_reg_mr", "host memory": "ibv_reg_mr"}
_DETAIL_CHARACTERS = 200


class Outcome(Enum):
    """What became of one path of a pair; the value is shown."""

    REGISTERS = "registers"
    REFUSED = "refused"
    NOT_TRIED = "not tried"
    NO_ANSWER = "no answer"


@frozen
class Answer:
    """What the program reports about a call."""

    nic: str  # "": a call to libcuda
    call: str
    value: int | str | None  # CUresult or errno, 0: success; a text: what is missing; None: it begins


@frozen
class PathResult:
    """One path of a pair."""

    outcome: Outcome
    why: str = ""
    function: str = ""  # that refused, or did not return
    error: str = ""  # "ENOMEM (12)", "CUDA error 801"


@frozen
class PairResult:
    """One GPU with one NIC."""

    gpu: str  # "GPU0"
    bdf: str
    nic: str
    dmabuf: PathResult
    peer_memory: PathResult
    doubt: str = ""  # why data may be wrong although the pair registers

    @property
    def paths(self) -> tuple[tuple[str, PathResult], ...]:
        """Return both paths with their names."""
        return ((DMABUF, self.dmabuf), (PEER_MEMORY, self.peer_memory))

    @property
    def outcome(self) -> Outcome:
        """Return the better path's outcome: a NIC needs only one of them."""
        both = (self.dmabuf.outcome, self.peer_memory.outcome)
        return next(outcome for outcome in _BEST_FIRST if outcome in both)


_BEST_FIRST = (Outcome.REGISTERS, Outcome.NO_ANSWER, Outcome.REFUSED, Outcome.NOT_TRIED)


def parse_answer(text: str) -> Answer | None:
    """Parse a line of the program; None if it is something else."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parts, list) or len(parts) != 3:
        return None
    nic, call, value = parts
    if not isinstance(nic, str) or not isinstance(call, str) or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return Answer(nic, call, printable(value, _DETAIL_CHARACTERS))
    is_number = isinstance(value, int) and abs(value) < 1 << 31
    return Answer(nic, call, value) if value is None or is_number else None


def results_of(
    trial: GpuTrial, answers: Iterable[Answer], ended: str, examination: Examination
) -> tuple[PairResult, ...]:
    """Return the outcome for each NIC; `ended`: why the program ended early, "" if it did not."""
    values = {(answer.nic, answer.call): answer.value for answer in answers}
    doubts = unproven_pairs(examination)
    results = []
    for nic in trial.nics:
        pair, doubt = _Pair(trial, nic, values, ended, examination), doubts.get((trial.bdf, nic.name), "")
        both = pair.path(DMABUF), pair.path(PEER_MEMORY)
        results.append(PairResult(trial.label, trial.bdf, nic.name, *both, doubt))
    return tuple(results)


def not_tried(trial: GpuTrial, why: str) -> tuple[PairResult, ...]:
    """Return that nothing was tried with a GPU."""
    path = PathResult(Outcome.NOT_TRIED, why)
    return tuple(PairResult(trial.label, trial.bdf, nic.name, path, path) for nic in trial.nics)


@frozen
class _Pair:
    trial: GpuTrial
    nic: NicTrial
    values: dict[tuple[str, str], int | str | None]  # by NIC and call
    ended: str
    examination: Examination

    def path(self, path: str) -> PathResult:
        why = self.trial.not_tried or self.nic.not_tried
        if why:
            return PathResult(Outcome.NOT_TRIED, why)
        key = (self.nic.kernel_name, path)
        if key not in self.values:
            return self._earlier(path)
        value, function = self.values[key], _FUNCTIONS[path]
        if value == 0:
            return PathResult(Outcome.REGISTERS)
        if not isinstance(value, int):
            return self._without_number(value, function)
        why = peer_memory_error(value, self.nic.name, self.examination)
        if path == DMABUF:
            why = dmabuf_error(value, self.trial.bdf, self.nic.name, self.examination)
        return PathResult(Outcome.REFUSED, why, function, errno_text(value))

    def _without_number(self, value: str | None, function: str) -> PathResult:
        if value is None:
            return PathResult(Outcome.NO_ANSWER, self.ended or "the program crashed", function)
        return PathResult(Outcome.NOT_TRIED, value, function)

    def _earlier(self, path: str) -> PathResult:
        for library in LIBRARIES:
            if isinstance(missing := self.values.get(("", library)), str):
                return PathResult(Outcome.NOT_TRIED, missing)
        for call in NIC_CALLS:
            value = self.values.get((self.nic.kernel_name, call), 0)
            if value == 0:
                continue
            function = _FUNCTIONS.get(call, call)
            if not isinstance(value, int):
                return self._without_number(value, function)
            why = setup_error(call, value, self.examination)
            return PathResult(Outcome.NOT_TRIED, why, function, errno_text(value))
        return self._gpu_error(path)

    def _gpu_error(self, path: str) -> PathResult:
        calls = (*GPU_CALLS, EXPORT) if path == DMABUF else GPU_CALLS
        for call in calls:
            value = self.values.get(("", call), 0)
            if value == 0:
                continue
            if not isinstance(value, int):
                return self._without_number(value, call)
            outcome = Outcome.REFUSED if call == EXPORT else Outcome.NOT_TRIED
            return PathResult(outcome, _CUDA.get(value, _NO_REASON), call, f"CUDA error {value}")
        if isinstance(mode := self.values.get(("", COMPUTE_MODE)), int) and mode:
            name = _COMPUTE_MODES.get(mode, str(mode))
            why = f"its compute mode is {name}, in which a context would keep a job out that starts now"
            return PathResult(Outcome.NOT_TRIED, why)
        if all(self.values.get(("", name)) == 0 for name in SUPPORTED):
            return PathResult(Outcome.NOT_TRIED, "its driver says that it supports neither path")
        return PathResult(Outcome.NOT_TRIED, self.ended or "the program ended early")
