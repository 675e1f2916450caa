"""The probe of GPUDirect RDMA: which path this node can use, and which it is using."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, known, map_known
from probes.facts import gpudirect_requirements as required
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState, Requirement, hardware_of
from probes.facts.kernel.modules import ModuleFacts, has_ofed_peer_memory
from probes.facts.kernel.release import KernelFacts
from probes.facts.pci.nic_families import PEER_DRIVERS
from probes.facts.rdma.cxi import has_verbs
from probes.facts.rdma.data_direct import DataDirectFacts, functions_of_nics
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.host.protocol import CudaGpu, Host

BUFINFO = "/sys/kernel/debug/dma_buf/bufinfo"
_BUFINFO_LIMIT = 4 << 20
_NO_DATA_DIRECT = DataDirectFacts(())
CUDA_START_ERRORS = {
    "3": "the driver cannot use the GPUs on this kernel",
    "802": "the NVSwitch fabric is not set up; check Fabric Manager",
    "803": "the driver's kernel modules and libraries have different versions",
}


@frozen
class AttachedDevices:
    """The devices that are attached to DMA-BUFs, by their kernel names (PCI: BDF)."""

    gpu_memory: frozenset[str] = frozenset()  # to buffers that nv_dmabuf exported
    other: frozenset[str] = frozenset()
    is_whole: bool = True  # the list has its beginning and its end

    @property
    def are_none(self) -> bool:
        """Whether no device uses any DMA-BUF."""
        return self.is_whole and not (self.gpu_memory or self.other)


def parse_bufinfo(text: str) -> AttachedDevices:
    """Return the devices that are attached to DMA-BUFs.

    drivers/dma-buf/dma-buf.c dma_buf_debug_show: "Dma-buf Objects:", a line "size flags mode count exporter
    ino name" for each buffer, its fences, "Attached Devices:", one device name per line, "Total N devices
    attached", and at the end "Total N objects, N bytes".
    """
    attached: set[str] = set()
    others: set[str] = set()
    ours = devices = begins = ends = False
    for line in text.splitlines():
        words = line.split()
        if re.match(r"\d{8,20}\t", line):
            ours, devices = len(words) > 4 and words[4] == "nv_dmabuf", False
        elif words[:2] == ["Attached", "Devices:"]:
            devices = True
        elif words[:1] == ["Total"]:
            devices, ends = False, ends or words[2:3] == ["objects,"]
        elif words[:2] == ["Dma-buf", "Objects:"]:
            begins = True
        elif devices and words:
            (attached if ours else others).add(words[0])
    return AttachedDevices(frozenset(attached), frozenset(others), begins and ends)


def read_attached(host: Host) -> Maybe[AttachedDevices]:
    """Return the devices that are attached to DMA-BUFs now; only root can read them."""
    return map_known(host.read(BUFINFO, _BUFINFO_LIMIT), parse_bufinfo)


def dmabuf_verdict(number: Maybe[int]) -> Maybe[bool]:
    """Return whether an errno of the probe means support (NCCL src/transport/net_ib/gdr.cc)."""
    return map_known(number, lambda found: found not in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT))


def _cuda_failure(cuda: Maybe[tuple[CudaGpu, ...]]) -> Maybe[str]:
    """Return the error of cuInit that every CUDA program gets; "" if it is not caused by the node's state."""
    match = re.search(r"cuInit\(0\) returned (\d{1,4})", cuda.detail) if isinstance(cuda, Unknown) else None
    if match is None and isinstance(cuda, Unknown) and cuda.reason is not Reason.NOT_THERE:
        return cuda
    if match is None or match[1] not in CUDA_START_ERRORS:
        return ""
    return f"CUDA programs fail to start: cuInit(0) returned {match[1]} ({CUDA_START_ERRORS[match[1]]})"


def _nics_by_peer_memory(
    host: Host, devices: list[RdmaDevice], peermem: PathState, modules: Maybe[ModuleFacts]
) -> dict[str, Maybe[bool]]:
    """Return whether each NIC can use peer memory now; an unknown driver counts as able to."""
    answers: dict[str, Maybe[bool]] = {}
    for device in devices:
        driver = known(device.driver, "")
        if driver == "efa":
            answers[device.name] = required.efa_requirement(host, device).met
        elif not has_verbs(device):
            answers[device.name] = peermem.usable if peermem.path is GdrPath.CXI else False
        elif driver == "bnxt_en" and peermem.usable is True:
            answers[device.name] = required.is_live(host, "ib_peer_mem")
        elif driver == "erdma" and peermem.usable is True:
            answers[device.name] = modules if isinstance(modules, Unknown) else has_ofed_peer_memory(modules)
        else:
            answers[device.name] = peermem.usable if not driver or driver in PEER_DRIVERS else False
    return answers


def _is_attached(host: Host, rdma: Maybe[RdmaFacts], data_direct: Maybe[DataDirectFacts]) -> Maybe[bool]:
    """Return whether a NIC is attached to a buffer of the GPU driver; so may be other devices."""
    attached = map_known(read_attached(host), lambda found: found.gpu_memory)
    if isinstance(attached, Unknown) or not attached:
        return attached if isinstance(attached, Unknown) else False
    if not attached.isdisjoint(functions_of_nics(rdma, data_direct)):
        return True
    unread = first_unread((rdma, data_direct))
    return False if unread is None else unread


def _ask_nics(host: Host, hardware: list[RdmaDevice]) -> dict[str, Maybe[bool]]:
    """Run the DMA-BUF probe on every RDMA device that is hardware; return the answers by name."""
    if not hardware:
        return {}
    kernel_names = {device.name: device.sysfs_path.rpartition("/")[2] for device in hardware}
    numbers = host.dmabuf_errnos(tuple(kernel_names.values()))
    return {name: dmabuf_verdict(numbers[kernel_name]) for name, kernel_name in kernel_names.items()}


def probe(
    host: Host,
    kernel: Maybe[KernelFacts],
    modules: Maybe[ModuleFacts],
    gpus: Maybe[GpuFacts],
    rdma: Maybe[RdmaFacts],
    ask_cuda: Callable[[], Maybe[tuple[CudaGpu, ...]]] | None = None,
    data_direct: Maybe[DataDirectFacts] = _NO_DATA_DIRECT,
) -> GpuDirectFacts:
    """Decide as NCCL does (src/init.cc dmaBufSupported, net_ib/gdr.cc), with the evidence.

    `ask_cuda`: returns the answer of libcuda, if libcuda is being asked already.
    """
    hardware = hardware_of(rdma)
    answers = _ask_nics(host, [device for device in hardware if has_verbs(device)])
    cuda = (ask_cuda or host.cuda_gpus)()
    support = required.gpu_support(gpus, cuda)
    dmabuf = required.path_state(
        GdrPath.DMABUF,
        (
            *required.driver_requirements(modules, gpus),
            *required.kernel_requirements(kernel, answers),
            required.verbs_requirement(modules, answers),
            required.nic_requirement(rdma, answers),
            *required.support_requirements(support, GdrPath.DMABUF),
        ),
    )
    of_gpus = required.support_requirements(support, GdrPath.PEERMEM)
    of_topology = required.topology_requirements(gpus, GdrPath.PEERMEM)
    peermem = required.peermem_state(modules, [*of_topology, *of_gpus])
    if hardware and all(known(device.driver, "") == "efa" for device in hardware):
        rows = [required.efa_requirement(host, device) for device in hardware]
        first = next((row for row in rows if row.met is True), rows[0])
        peermem = required.path_state(GdrPath.EFA, (first, *of_gpus))
    elif hardware and not any(map(has_verbs, hardware)):
        peermem = required.path_state(GdrPath.CXI, required.cxi_requirements(host, gpus, support))
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        unread = Requirement("NICs whose kind is known", rdma, f"/sys/class/infiniband: {rdma}")
        dmabuf = required.path_state(GdrPath.DMABUF, (*required.driver_requirements(modules, gpus), unread))
        peermem = required.path_state(GdrPath.PEERMEM, (unread, *of_gpus))
    return GpuDirectFacts(
        dmabuf=dmabuf,
        peermem=peermem,
        preferred=next((state.path for state in (dmabuf, peermem) if state.usable is True), None),
        nic_dmabuf=answers,
        dmabuf_in_use=_is_attached(host, rdma, data_direct),
        nic_peermem=_nics_by_peer_memory(host, hardware, peermem, modules),
        gpu_support=support,
        cuda_failure=_cuda_failure(cuda),
    )
