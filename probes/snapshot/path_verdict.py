"""A usable path: which GPUs can use it through which NICs, and why others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum

from probes.base.frozen import frozen
from probes.base.latest import Latest
from probes.base.unknown import Maybe, Reason, Unknown, all_of, any_of, known
from probes.facts.gpu.gpus import NOT_LISTED, UNFINISHED, Gpu, GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, hardware_of
from probes.facts.node import Node
from probes.facts.pci.functions import is_for_guests
from probes.facts.rdma.devices import ACTIVE, RdmaDevice
from probes.facts.system.platform import in_container, is_guest
from probes.snapshot.gdr_use import GdrUse, active_text, first_unmet, idle_text, joined_sentences
from probes.snapshot.rates import Reading
from probes.topology.nccl_paths import NEAR, Nccl
from probes.topology.paths import Topology

# Which NICs serve each GPU, and why none serves it.


@frozen
class ServingNics:
    """The NICs that serve one GPU, or why there are none."""

    nics: tuple[str, ...] = ()
    by_pxn: bool = False  # through another GPU's NVLink
    reason: str = ""  # why no NIC serves the GPU
    doubt: str = ""  # what is unknown and could serve it
    far: bool = False  # a NIC reaches the GPU, but only from afar


@frozen
class Reachability:
    """Which NIC reaches the memory of which GPU."""

    node: Node
    topology: Topology
    reading: Reading | None
    direct: GpuDirectFacts
    use: GdrUse
    devices: dict[str, RdmaDevice]  # the RDMA devices that are hardware
    active: dict[str, Maybe[bool]]  # RDMA device -> has an ACTIVE port

    def reaches(self, nic: str, gpu: str) -> Maybe[bool]:
        """Return whether a NIC is up and reaches this GPU's memory by either path."""
        return any_of([self.reaches_by(path, nic, gpu) for path in (GdrPath.DMABUF, self.use.peermem_path)])

    def reaches_by(self, path: GdrPath, nic: str, gpu: str) -> Maybe[bool]:
        """Return whether a NIC is up and reaches this GPU's memory by this path."""
        direct, use = self.direct, self.use
        support = direct.gpu_support.get(gpu)
        if path is GdrPath.DMABUF:
            by_nic = direct.nic_dmabuf.get(nic, Unknown(Reason.NOT_THERE, nic, "not asked"))
            if use.attached and isinstance(by_nic, Unknown):
                by_nic = True
            return all_of((self.active[nic], use.dmabuf, by_nic, True if support is None else support.dmabuf))
        by_nic = direct.nic_peermem.get(nic, use.peermem)
        if use.regions and (isinstance(by_nic, Unknown) or direct.peermem.usable is not True):
            by_nic = True
        return all_of((self.active[nic], use.peermem, by_nic, True if support is None else support.peermem))

    def nics_of(self, gpu: str) -> tuple[str, ...]:
        """Return all NICs that reach a GPU."""
        return tuple(nic for nic in self.active if self.reaches(nic, gpu) is True)


def hardware_devices(node: Node) -> dict[str, RdmaDevice]:
    """Return the RDMA devices that are hardware, by name."""
    return {device.name: device for device in hardware_of(node.rdma)}


def has_active_port(device: RdmaDevice, reading: Reading | None) -> Maybe[bool]:
    """Return whether a port is ACTIVE; NCCL uses no other."""
    states = _port_states(device, reading)
    if ACTIVE in states:
        return True
    return next((state for state in states if isinstance(state, Unknown)), False)


def _port_states(device: RdmaDevice, reading: Reading | None) -> list[Maybe[str]]:
    """Return the states of a device's ports, from the reading if it has them."""
    fresh = {} if reading is None else reading.port_states
    return [fresh.get((device.name, port.number), port.state) for port in device.ports]


def serving_nics(reach: Reachability, gpu: str) -> ServingNics:
    """Return the near NICs that are up; if no NIC is near, those that NVLink leads to.

    Of a node's thousands of pairs only the near ones are looked at.
    """
    topology, devices = reach.topology, reach.devices
    words = topology.near_nics.get(gpu, {})
    near = [name for name in words if name in devices]
    serving = [name for name in near if reach.reaches(name, gpu) is True]
    if serving:
        best = words[serving[0]]
        return ServingNics(tuple(name for name in serving if words[name] is best))
    if doubt := _doubt(reach, gpu):
        return ServingNics(doubt=doubt)
    to_nic, others = topology.paths.nccl.to_nic, () if near else topology.best_nics.get(gpu, ())
    by_nvlink = tuple(
        name
        for name in others
        if name in devices and to_nic(gpu, name) is Nccl.PXN and reach.reaches(name, gpu) is True
    )
    if by_nvlink:
        return ServingNics(by_nvlink, by_pxn=True)
    return ServingNics(reason=_why_unserved(reach, gpu, near), far=not near and bool(reach.nics_of(gpu)))


def _doubt(reach: Reachability, gpu: str) -> str:
    """Return what is unknown and could serve the GPU: a near NIC, or the path to one that is up."""
    topology, rdma, c2c = reach.topology, reach.node.rdma, _c2c_links(reach.node, gpu)
    for name in reach.active:
        path = topology.paths.get((gpu, name))
        if path is not None and isinstance(c2c, Unknown) and path.nccl is Nccl.PHB:
            return f"the links between CPU and GPU are {c2c}"  # with C2C this NIC is near
        reaches = reach.reaches(name, gpu)
        if path is None or (not isinstance(reaches, Unknown) and not reaches):
            continue
        if isinstance(path.nccl, Unknown):
            return f"the path to {name} is unknown: {path.nccl}"
        if isinstance(reaches, Unknown) and path.nccl in NEAR:
            return f"the state of {name} is unknown: {reaches}"
    for bdf in () if isinstance(rdma, Unknown) else rdma.devices_elsewhere:
        path = topology.paths.get((gpu, bdf))
        if path is not None and path.nccl in NEAR:
            return f"the RDMA device of {bdf} is in another network namespace; run gdrtop in that pod"
    return ""


def _c2c_links(node: Node, gpu: str) -> Maybe[int]:
    """Return a GPU's C2C links if they are known or will be; a driver that shows none is taken for none."""
    gpus = () if isinstance(node.gpus, Unknown) else node.gpus.gpus
    links = next((row.c2c_links for row in gpus if row.bdf == gpu), 0)
    return links if isinstance(links, Unknown) and links.reason is Reason.NOT_YET else 0


def _why_unserved(reach: Reachability, gpu: str, near: list[str]) -> str:
    topology, support = reach.topology, reach.direct.gpu_support.get(gpu)
    if support is not None and support.reason:
        return support.reason
    if near:
        states = _port_states(reach.devices[near[0]], reach.reading)
        if ACTIVE in states:
            return f"{near[0]} cannot register GPU memory"
        return f"{near[0]} {f'is {states[0]}' if states else 'has no ports'}"
    up = [name for name in topology.best_nics.get(gpu, ()) if reach.active.get(name) is True]
    if not up:
        return "no NIC is up"
    nccl = topology.paths[gpu, up[0]].nccl
    return f"the nearest is {up[0]} at {nccl if isinstance(nccl, Unknown) else nccl.value}"


_HIDDEN_SWITCHES = "paths between GPUs and NICs are unknown: this virtual machine hides its PCIe switches"


class State(Enum):
    """The word of the verdict, from good to bad."""

    ACTIVE = "ACTIVE"  # usable, in use now, and no finding degrades it
    READY = "READY"  # the same, not in use now as far as gdrtop can see
    DEGRADED = "DEGRADED"  # usable, but a finding takes GPUs away or costs bandwidth
    BROKEN = "BROKEN"  # no usable path, or no program here can use one
    UNKNOWN = "UNKNOWN"  # what decides could not be read
    NOT_APPLICABLE = "NOT APPLICABLE"  # no NVIDIA GPU, no RDMA NIC, or hardware that cannot do it by design

    @property
    def is_green(self) -> bool:
        """Whether the node works."""
        return self in (State.READY, State.ACTIVE)

    @property
    def is_usable(self) -> bool:
        """Whether GPUs can use GPUDirect RDMA, perhaps not all or not at full bandwidth."""
        return self.is_green or self is State.DEGRADED

    @property
    def is_faulty(self) -> bool:
        """Whether the path, or a part of it, does not work."""
        return self in (State.DEGRADED, State.BROKEN)

    @property
    def has_counts(self) -> bool:
        """Whether GPUs that can use GPUDirect RDMA, none perhaps, were counted."""
        return self.is_green or self.is_faulty


@frozen
class PathUsability:
    """Whether a GPU here can use one path through a NIC here, and the first reason against it."""

    path: GdrPath
    usable: Maybe[bool]
    why: str = ""  # the requirement that is unmet or unknown, or that no NIC reaches GPU memory by this path


@frozen
class Usability:
    """What the requirements of the paths say of a node; its findings turn this into the verdict.

    The state is never DEGRADED: only a finding degrades a node.
    """

    state: State
    path: GdrPath | None
    reason: str  # what shows the use, or the requirement that is unmet or unknown; no full stop at the end
    gpus: tuple[str, ...] = ()  # GPUs that could use GPUDirect RDMA, by BDF
    nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the NICs that serve each GPU
    unserved: Mapping[str, str] = field(default_factory=dict)  # GPU -> why no NIC serves it, as a clause
    paths: tuple[PathUsability, ...] = ()  # DMA-BUF, then peer memory; () where their facts are unknown
    seen: frozenset[GdrPath] = frozenset()  # paths that ranks of running jobs use, certainly or likely
    hides_use: bool = False  # READY: whether the path is in use could not be read
    all_nics: int = 0  # RDMA NICs of the node, also those that serve no GPU

    @property
    def ranked_paths(self) -> tuple[GdrPath, ...]:
        """The path of the verdict, then the other one if it is usable."""
        others = [row.path for row in self.paths if row.usable is True and row.path is not self.path]
        return () if self.path is None else (self.path, *others)

    @property
    def used(self) -> frozenset[GdrPath]:
        """The paths that are in use now, certainly or likely."""
        return self.seen | {self.path} if self.state is State.ACTIVE and self.path else self.seen

    @property
    def likely_in_use(self) -> bool:
        """Whether running jobs seem to use the path, and only root could tell."""
        return self.hides_use and self.path in self.seen


@frozen
class ServedGpus:
    """The GPUs that can use the path, as far as that does not depend on how much is in use."""

    usability: Usability
    notes: tuple[str, ...] | None = None  # after the reason why it is READY or ACTIVE; None: it is neither


def path_usability(
    node: Node,
    topology: Topology,
    reading: Reading | None,
    use: GdrUse,
    file: Maybe[str],
    cache: Latest[ServedGpus],
) -> Usability:
    """Return who can use a usable path; `file`: NCCL's topology file, "" if there is none."""
    direct = node.gpudirect
    assert not isinstance(direct, Unknown)
    states = None if reading is None else reading.port_states

    def serve() -> ServedGpus:
        devices = hardware_devices(node)
        active = {name: has_active_port(device, reading) for name, device in devices.items()}
        reach = Reachability(node, topology, reading, direct, use, devices, active)
        found = _served_gpus(reach, file)
        paths = _reached_paths(reach, found.usability.gpus, _no_nic(devices, active))
        return replace(found, usability=replace(found.usability, paths=paths, all_nics=len(devices)))

    served = cache.get(
        serve,
        objects=(node, topology),
        # How many regions there are changes all the time, and which GPUs are served depends only on whether
        # any.
        values=(use.dmabuf, use.peermem, use.peermem_path, use.attached, bool(use.regions), states, file),
    )
    if served.notes is None:
        return served.usability
    is_active = use.attached or use.regions
    sign = active_text(use, direct) if is_active else idle_text(use, direct)
    state = State.ACTIVE if is_active else State.READY
    return replace(served.usability, state=state, reason=joined_sentences(sign, *served.notes))


def _served_gpus(reach: Reachability, file: Maybe[str]) -> ServedGpus:
    """Return the GPUs with a NIC near, and why the others have none."""
    node, topology, direct, use, devices = reach.node, reach.topology, reach.direct, reach.use, reach.devices
    facts = {gpu.bdf: gpu for gpu in usable_gpus(node)}
    gpus = [gpu for gpu in topology.gpus if gpu.id in facts or isinstance(node.gpus, Unknown)]
    # A GPU that can never use it does not count next to others that can.
    gpus = [gpu for gpu in gpus if not direct.never_supports(gpu.id)]
    names = tuple(gpu.id for gpu in gpus)
    unserved = {gpu.id: why for gpu in gpus if gpu.id in facts and (why := _gpu_fault(node, facts[gpu.id]))}
    answers = {gpu.id: serving_nics(reach, gpu.id) for gpu in gpus}
    served = [gpu for gpu in gpus if gpu.id not in unserved and answers[gpu.id].nics]
    # A file that gdrtop has read shows NCCL's own paths, on a virtual machine too.
    is_far = topology.file is None and any(answer.far for answer in answers.values())
    guest = is_guest(node.platform) if is_far else False
    guest_paths, named = guest is True, known(file, "")
    if guest_paths and (named or use.attached or use.regions):
        # NCCL has other paths than this PCI tree shows, or uses them already.
        served = [gpu for gpu in gpus if gpu.id not in unserved]
        answers = {gpu.id: replace(answers[gpu.id], nics=reach.nics_of(gpu.id)) for gpu in gpus}
    nics = {gpu.id: answers[gpu.id].nics for gpu in served}
    reaching = (reach.reaches(name, gpu.id) for name in devices for gpu in gpus)
    if gpus and not any(isinstance(answer, Unknown) or answer for answer in reaching):
        return ServedGpus(Usability(State.BROKEN, None, _no_nic(devices, reach.active), names))
    left = [gpu for gpu in gpus if gpu.id not in nics and gpu.id not in unserved]
    doubts = [f"{gpu.label}: {answers[gpu.id].doubt}" for gpu in left if answers[gpu.id].doubt]
    without = [gpu for gpu in left if not answers[gpu.id].doubt]
    if without and guest is not False:
        reason = f"{_HIDDEN_SWITCHES}, and NCCL has no topology file"
        if isinstance(guest, Unknown):
            reason = f"cannot tell whether this is a virtual machine, which hides PCIe switches: {guest}"
        elif isinstance(file, Unknown):
            reason = f"{_HIDDEN_SWITCHES}, and gdrtop cannot tell whether NCCL has a topology file: {file}"
        return ServedGpus(Usability(State.UNKNOWN, use.path, reason, names))
    level = "P2C" if any(known(gpu.c2c_links, 0) for gpu in facts.values()) else "PXB"
    for gpu in without:
        unserved[gpu.id] = f"{gpu.label} has no usable NIC within {level}: {answers[gpu.id].reason}"
    if doubts and not unserved:
        return ServedGpus(Usability(State.UNKNOWN, use.path, doubts[0], names, nics))
    notes = [_pxn_text([gpu.label for gpu in served if answers[gpu.id].by_pxn])]
    if guest_paths:
        from_file = f"paths come from NCCL's topology file {named} and were not checked"
        notes.append(from_file if named else _HIDDEN_SWITCHES)
    if topology.file is not None:
        notes.append(f"paths come from NCCL's topology file {topology.file.path}")
    return ServedGpus(Usability(State.READY, use.path, "", names, nics, unserved), tuple(notes))


def required_paths(direct: GpuDirectFacts, use: GdrUse | None = None) -> tuple[PathUsability, ...]:
    """Return both paths as their requirements have them; a path in use is usable, whatever they say."""
    answers = (direct.dmabuf.usable, direct.peermem.usable) if use is None else (use.dmabuf, use.peermem)
    states = (direct.dmabuf, direct.peermem)
    return tuple(
        PathUsability(state.path, usable, "" if usable is True else first_unmet(state))
        for state, usable in zip(states, answers, strict=True)
    )


def _reached_paths(reach: Reachability, gpus: tuple[str, ...], no_nic: str) -> tuple[PathUsability, ...]:
    """Return both paths: one whose requirements are met is usable if a NIC reaches a GPU by it."""
    required = required_paths(reach.direct, reach.use)
    if not gpus:
        return required
    paths: list[PathUsability] = []
    for row in required:
        reaching = any_of(reach.reaches_by(row.path, nic, gpu) for nic in reach.active for gpu in gpus)
        if row.usable is not True or reaching is True:
            paths.append(row)
        elif isinstance(reaching, Unknown):
            paths.append(PathUsability(row.path, reaching, f"what the NICs can do is unknown: {reaching}"))
        else:
            paths.append(PathUsability(row.path, False, no_nic))
    return tuple(paths)


def _gpu_fault(node: Node, gpu: Gpu) -> str:
    """Return why a GPU does not work although the driver does; "" if nothing is known."""
    if isinstance(gpu.driver, Unknown):
        # A dump may contain no drivers at all; a GPU without one is a fault only next to others with one.
        bound = isinstance(node.gpus, GpuFacts) and any(known(other.driver, "") for other in node.gpus.gpus)
        return f"GPU{gpu.index} has no driver" if bound and gpu.driver.reason is Reason.NOT_THERE else ""
    if gpu.driver != "nvidia":
        return f"GPU{gpu.index} is bound to {gpu.driver}"
    if isinstance(node.gpus, GpuFacts) and node.gpus.driver.nvml is None and isinstance(gpu.nvml, Unknown):
        return f"GPU{gpu.index} does not respond: {gpu.nvml.detail or gpu.nvml.reason.value}"
    state = known(gpu.fabric.state, "")
    if state in UNFINISHED:
        return f"GPU{gpu.index}'s NVLink fabric is {state}, so CUDA fails with error 802"
    return ""


def _no_nic(devices: dict[str, RdmaDevice], active: dict[str, Maybe[bool]]) -> str:
    names = short_list(list(devices))
    if not any(answer is True for answer in active.values()):
        return f"no port of {names} is ACTIVE"
    return f"no NIC with an ACTIVE port can register GPU memory: {names}"


def _pxn_text(gpus: list[str]) -> str:
    if not gpus:
        return ""
    verb = "reaches" if len(gpus) == 1 else "reach"
    return f"{short_list(gpus)} {verb} a NIC over NVLink through another GPU (PXN)"


def usable_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs of this node: not passed to a virtual machine, visible in this container."""
    if isinstance(node.gpus, Unknown):
        return ()
    contained = in_container(node.platform)
    return tuple(
        gpu
        for gpu in node.gpus.gpus
        if not is_for_guests(gpu.driver)
        and not (contained and isinstance(gpu.nvml, Unknown) and gpu.nvml.detail == NOT_LISTED)
    )


def short_list(names: list[str]) -> str:
    """Return "mlx5_0, mlx5_1 and 3 more"."""
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
