"""Which path of GPUDirect RDMA is usable, and which one is in use."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.text import capitalized
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PathState
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.node import Node
from probes.snapshot.rates import Reading, port_rates


@frozen
class GdrUse:
    """Which paths are usable, and the signs of use at this moment."""

    dmabuf: Maybe[bool]
    peermem: Maybe[bool]
    peermem_path: GdrPath  # nvidia_peermem's, or EFA's own
    regions: int  # registered through nvidia-peermem now
    attached: bool  # a NIC is attached to a dma-buf of the GPU driver now

    @property
    def path(self) -> GdrPath | None:
        """The path in use, else the one that NCCL prefers: DMA-BUF before peermem."""
        if self.attached or (not self.regions and not isinstance(self.dmabuf, Unknown) and self.dmabuf):
            return GdrPath.DMABUF
        return self.peermem_path if not isinstance(self.peermem, Unknown) and self.peermem else None


def read_use(node: Node, direct: GpuDirectFacts, reading: Reading | None) -> GdrUse:
    """Return the use at one moment. refcnt counts registered regions (nvidia-peermem.c); 0 is no fault."""
    regions = 0
    if reading is not None:
        regions = known(reading.peermem.refcnt, 0)
        if isinstance(reading.peermem.refcnt, Unknown) and not isinstance(reading.peermem.peers, Unknown):
            regions = sum(known(peer.live_mrs, 0) for peer in reading.peermem.peers)
    elif isinstance(node.modules, ModuleFacts) and "nvidia_peermem" in node.modules.modules:
        regions = known(node.modules.modules["nvidia_peermem"].refcnt, 0)
    regions = max(0, regions)
    attached = known(direct.dmabuf_in_use, False)
    # A path that is in use is usable, even if its requirements could not be read.
    return GdrUse(
        True if attached else direct.dmabuf.usable,
        True if regions else direct.peermem.usable,
        direct.peermem.path,
        regions,
        attached,
    )


def first_unmet(state: PathState) -> str:
    """Return the first requirement that is not met, else the first that is unknown, as a clause."""
    for requirement in state.requirements:
        if not isinstance(requirement.met, Unknown) and not requirement.met:
            return requirement.lack or f"{state.path.value} needs {requirement.name}"
    for requirement in state.requirements:
        if isinstance(requirement.met, Unknown):
            return f"{state.path.value}: {requirement.name} unknown ({requirement.met})"
    return f"{state.path.value} is unknown"


def joined_sentences(*sentences: str) -> str:
    """Return sentences as one text; all but the first begin with a capital letter."""
    parts = [sentence for sentence in sentences if sentence]
    return ". ".join(parts[:1] + [capitalized(part) for part in parts[1:]])


def active_text(use: GdrUse, direct: GpuDirectFacts) -> str:
    """Return what shows that GPUDirect RDMA is in use."""
    if not use.regions:
        return "a NIC is attached to GPU memory via DMA-BUF"
    regions = f"{use.regions} memory region{'s' if use.regions > 1 else ''}"
    if use.attached:
        return f"{regions} registered via peermem, and a NIC is attached to GPU memory via DMA-BUF"
    # Jobs keep the path through which they registered, and both paths may be usable.
    preference = "; NCCL prefers DMA-BUF for new jobs" if direct.preferred is GdrPath.DMABUF else ""
    return f"{regions} registered via peermem{preference}"


def idle_text(use: GdrUse, direct: GpuDirectFacts) -> str:
    """Return that nothing is registered; "" if only root can see that."""
    if use.path is GdrPath.DMABUF and isinstance(direct.dmabuf_in_use, Unknown):
        return ""
    if use.path is GdrPath.CXI:
        return "gdrtop cannot see which memory libfabric has registered with Slingshot NICs"
    if use.path is GdrPath.EFA:
        return "efa_nv_peermem does not report which memory is registered"
    return "no memory region is registered now"


def signs_of_use(node: Node, reading: Reading | None, before: Reading | None) -> str:
    """Return signs of use for an admin who is not root: programs, open RDMA devices, traffic."""
    signs: list[str] = []
    if reading is not None and not isinstance(reading.gpus, Unknown):
        pids = {pid for gpu in reading.gpus.values() for pid in known(gpu.processes, ())}
        if pids:
            signs.append(f"{len(pids)} GPU process{'es' if len(pids) > 1 else ''}")
    contexts = _open_contexts(node, reading)
    if contexts:
        signs.append(f"{contexts} RDMA context{'s' if contexts > 1 else ''}")
    if reading is not None and before is not None:
        own = [rate for rate in port_rates(before, reading).values() if not rate.interface]
        gbps = sum(max(known(rate.sent_gbps, 0.0), known(rate.received_gbps, 0.0)) for rate in own)
        if gbps >= 1:
            # Rounded, so that the line does not change with every reading.
            signs.append(f"{f'{gbps / 1000:.1f} T' if gbps >= 1000 else f'{gbps:.0f} G'}b/s on the NICs")
    return joined_sentences(", ".join(signs), "only root can tell whether DMA-BUF is in use")


def _open_contexts(node: Node, reading: Reading | None) -> int:
    """Return how often programs have opened an RDMA device: references to ib_uverbs that no module has."""
    if reading is None or isinstance(node.modules, Unknown):
        return 0
    module = node.modules.modules.get("ib_uverbs")
    users = 0 if module is None else len(known(module.used_by, ()))
    return max(0, known(reading.module_refcnts.get("ib_uverbs", 0), 0) - users)
