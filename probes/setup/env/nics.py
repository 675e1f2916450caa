"""Which NICs NCCL, UCX and NVSHMEM use by default, and NICs that are far from GPUs or not for compute."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator

from probes.base.text import join_limited
from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.rdma.devices import RdmaDevice, RdmaPort
from probes.facts.rdma.roce import netdevs_of
from probes.nccl.topology_file import TopologyFileFacts, file_of_new_jobs
from probes.nccl.variables.catalogue import Version
from probes.queries.finding import Finding, Status
from probes.queries.jobs import nearest, usable_paths
from probes.queries.pcie_paths import is_gb10, is_guest
from probes.queries.ports import functions_of_ports
from probes.setup.env.advice import Note, Setting, note_of, setting_of
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import Role, roles_of
from probes.snapshot.path_verdict import hardware_devices
from probes.snapshot.verdict import State as VerdictState
from probes.topology.endpoints import is_down, port_gbps
from probes.topology.nccl_paths import Nccl

_FAR = {"gpu-nic-cross-socket": Nccl.SYS, "gpu-nic-through-cpu": Nccl.PHB}
_REFUSED = ("p2p-topology-refused-override", "p2p-topology-refused", "p2p-topology-refused-force-pcie")
_FIRST_WITH_C2C, _C2C_BY_DEFAULT = (2, 26), (2, 27)


def active_ports(examination: Examination) -> Iterator[tuple[RdmaDevice, RdmaPort]]:
    """Yield the ports that NCCL opens: ACTIVE ones of hardware, InfiniBand or Ethernet."""
    for device in hardware_devices(examination.node).values():
        for port in device.ports:
            if port.is_active and port.link_layer in ("InfiniBand", "Ethernet"):
                yield device, port


def default_nics(examination: Examination) -> dict[str, tuple[str, ...]] | None:
    """Return the NICs that NCCL chooses for each GPU without NCCL_IB_HCA; None: a path is unknown."""
    topology = examination.topology
    names = dict.fromkeys(device.name for device, _ in active_ports(examination))
    chosen = {gpu.id: topology.nics_of_nccl(gpu.id, names) for gpu in topology.gpus}
    found = {gpu: nics for gpu, nics in chosen.items() if nics is not None}
    return found if len(found) == len(chosen) else None


def file_in_use(examination: Examination) -> str | None:
    """Return the topology file that new jobs get, by default or from nccl.conf."""
    file = file_of_new_jobs(examination.topology_files)
    return None if file is None or isinstance(file.endpoints, Unknown) else file.path


def hides_distances(examination: Examination) -> bool:
    """Return whether this is a virtual machine without a topology file: its PCI tree is not the host's."""
    return is_guest(examination) is True and file_in_use(examination) is None


def roce_ports(examination: Examination, nics: Collection[str]) -> dict[str, RdmaPort]:
    """Return the RoCE ports of the NICs that jobs use: of `nics`, if empty of those that NCCL chooses."""
    chosen = default_nics(examination) or {}
    used = set(nics) or {name for names in chosen.values() for name in names}
    return {
        device.name: port
        for device, port in active_ports(examination)
        if port.link_layer == "Ethernet" and (not used or device.name in used)
    }


def nic_advice(examination: Examination) -> list[Setting | Note]:
    """Return the lists of NICs for NCCL, UCX and NVSHMEM, or why none is needed."""
    roles = roles_of(examination.node, examination.topology)
    active = {device.name: device for device, _ in active_ports(examination)}
    compute = [name for name in active if name in roles and roles[name].role is Role.COMPUTE]
    others = [name for name in active if name in roles and roles[name].role is not Role.COMPUTE]
    chosen = default_nics(examination)
    notes = _ports_down(examination, [name for name, role in roles.items() if role.role is Role.COMPUTE])
    if chosen is None or (others and hides_distances(examination)):
        return [note_of("paths-unknown"), *notes]
    if not active:
        return [note_of("no-active-port"), *notes]
    used = sorted({name for names in chosen.values() for name in names}, key=list(active).index)
    wrong = [name for name in used if name in others]
    rdma = examination.node.rdma
    managing = () if isinstance(rdma, Unknown) else rdma.management
    # What manages NVSwitches and is not slower than the NICs: NCCL chooses the fastest ports.
    slowest = min((port_gbps(active[name]) for name in used), default=0.0)
    rivals = [device.name for device in managing if port_gbps(device) >= slowest]
    if rivals and compute and not wrong:
        exact = f"={','.join(compute)}"
        return [setting_of("management-nics", exact, names=join_limited(rivals)), *notes]
    if not wrong or not compute:
        names = join_limited(device.name for device in managing)
        managed = f"; NCCL does not choose those that only manage NVSwitches ({names})" if managing else ""
        return [note_of("right-nics", chosen=_chosen(used, others, len(active)), managing=managed), *notes]
    labels = {gpu.id: gpu.label for gpu in examination.topology.gpus}
    gpus = [labels[gpu] for gpu, names in chosen.items() if set(names) & set(wrong)]
    role = roles[wrong[0]].role.value
    words = {
        "names": join_limited(wrong),
        "role": role if role != "other" else "not a compute NIC",
        "gpus": join_limited(gpus),
    }
    ports = ",".join(
        f"{device.name}:{port.number}" for device, port in active_ports(examination) if device.name in compute
    )
    settings = (
        setting_of("wrong-nics", f"={','.join(compute)}", **words),
        setting_of("wrong-nics-ucx", ports),
    )
    return [*settings, *_of_nvshmem(examination, compute, active), *notes]


def spark_advice(examination: Examination) -> list[Setting | Note]:
    """Return the NICs and interfaces of a DGX Spark with a cable, in place of all others; none elsewhere."""
    active = {device.name: port for device, port in active_ports(examination)}
    pairs = functions_of_ports(hardware_devices(examination.node).values()) if is_gb10(examination) else []
    cabled = [pair for pair in pairs if not active.keys().isdisjoint(pair)]
    if alone := [name for pair in cabled for name in pair if name in active and not active.keys() >= {*pair}]:
        return [note_of("spark-half-port", names=join_limited(alone))]
    names = [name for pair in cabled for name in pair]
    netdevs = [name for port in names for name in netdevs_of(active[port])]
    if not netdevs:
        return []
    return [
        setting_of("spark-nics", f"={','.join(names)}"),
        setting_of("spark-interface", f"={netdevs[0]}"),
        setting_of("spark-interface-ucx", netdevs[0]),
        setting_of("spark-interface-mpi", netdevs[0]),
        note_of("spark-merged"),
        note_of("spark-ring"),
    ]


def _chosen(used: list[str], others: list[str], opened: int) -> str:
    if len(used) == opened and not others:
        return f"NCCL uses the {opened} active NICs" if opened > 1 else f"{used[0]} is the only active NIC"
    rest = f"; it does not use {join_limited(others)}" if others else ""
    return f"NCCL chooses {join_limited(used)} by speed and distance{rest}"


def _ports_down(examination: Examination, compute: list[str]) -> list[Note]:
    devices = hardware_devices(examination.node)
    down = [name for name in compute if is_down(devices.get(name))]
    if not down:
        return []
    verb = "is" if len(down) == 1 else "are"
    return [note_of("nics-down", names=join_limited(down), verb=verb)]


def _of_nvshmem(examination: Examination, compute: list[str], active: dict[str, RdmaDevice]) -> list[Setting]:
    """Map each PE to the nearest compute NIC of its GPU; NVSHMEM counts PEs in the order of the GPUs."""
    mapping: list[tuple[str, int]] = []
    for gpu in examination.topology.gpus:
        near = [name for name in examination.topology.best_nics.get(gpu.id, ()) if name in compute]
        if not near:
            return []
        if mapping and mapping[-1][0] == near[0]:
            mapping[-1] = (near[0], mapping[-1][1] + 1)
        else:
            mapping.append((near[0], 1))
    value = ",".join(f"{name}:{active[name].ports[0].number}:{count}" for name, count in mapping)
    return [setting_of("nvshmem-maps", "1"), setting_of("nvshmem-mapping", value)]


def level_advice(examination: Examination, version: Version) -> Setting | Note:
    """Return the level that the farthest GPU needs, or why the default is right.

    The doctor's own checks decide which GPUs are far.
    """
    dmabuf, peermem = usable_paths(examination)
    if dmabuf is False and peermem is False:
        if examination.usability.state is VerdictState.NOT_APPLICABLE:
            return note_of("level-of-nothing", why=examination.usability.reason)
        return note_of("no-usable-path")
    # All checks, because other findings explain why a near NIC is lost.
    wanted = {*_FAR, *_REFUSED}
    checks = {finding.id: finding for finding in findings(examination) if finding.id in wanted}
    far = {name: checks[name] for name in _FAR if checks[name].status is Status.FOUND}
    if any(finding.part_of for finding in far.values()):
        return note_of("near-nics-lost")
    topology = examination.topology
    gpus = {  # those that reach no NIC over NVLink either (PXN)
        name: [gpu for gpu in finding.devices if nearest(topology, gpu) is not Nccl.PXN]
        for name, finding in far.items()
    }
    word = next((_FAR[name] for name in _FAR if gpus.get(name)), None)
    if word is not None:
        refused = next((checks[name] for name in _REFUSED if checks[name].status is Status.FOUND), None)
        if refused is not None:
            return note_of("paths-denied", why=f"{refused.title[:1].lower()}{refused.title[1:]}")
        labels = {gpu.id: gpu.label for gpu in topology.gpus}
        names = join_limited(labels[gpu] for ids in gpus.values() for gpu in ids)
        return note_of("far-gpus", gpus=names, word=word.value)
    return _of_near_gpus(examination, version, checks)


def _of_near_gpus(examination: Examination, version: Version, checks: dict[str, Finding]) -> Setting | Note:
    topology = examination.topology
    words = {gpu.id: nearest(topology, gpu.id) for gpu in topology.gpus}
    if any(word is Nccl.P2C for word in words.values()):
        return _of_c2c(version)
    unclear = next((finding for finding in checks.values() if finding.status is Status.UNKNOWN), None)
    if hides_distances(examination):
        return note_of("guest-hides-distances")
    if unclear is not None or None in words.values():
        why = f": {unclear.cause}" if unclear is not None else ""
        return note_of("distances-unknown", why=why)
    if is_guest(examination) is True:
        return note_of("file-has-distances")
    if by_nvlink := [gpu.label for gpu in topology.gpus if words[gpu.id] is Nccl.PXN]:
        return note_of("near-gpus-by-nvlink", gpus=join_limited(by_nvlink))
    return note_of("near-gpus")


def _of_c2c(version: Version) -> Setting | Note:
    if version >= _C2C_BY_DEFAULT:
        return note_of("c2c")
    return (
        setting_of("c2c-first", "1")
        if version >= _FIRST_WITH_C2C
        else setting_of("c2c-as-phb", Nccl.PHB.value)
    )


def topology_advice(examination: Examination) -> Setting | Note:
    """Return the topology file that a virtual machine needs."""
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        return note_of("guest-unknown", why=guest)
    if not guest:
        return note_of("bare-metal")
    facts = examination.topology_files
    if isinstance(facts, Unknown):
        return note_of("topology-files-unknown", why=facts)
    if (used := file_in_use(examination)) is not None:
        return note_of("topology-file-read", file=used)
    fitting = _fitting(examination, facts)
    return setting_of("topology-file", fitting) if fitting else note_of("no-topology-file")


def _fitting(examination: Examination, facts: TopologyFileFacts) -> str:
    """Return the vendor's file that describes this machine; "" if not exactly one does."""
    pci = examination.node.pci
    here = set() if isinstance(pci, Unknown) else {bdf.rpartition(".")[0] for bdf in pci.functions}
    fitting = [
        posixpath.normpath(file.path)
        for file in facts.vendor_files
        if not isinstance(file.endpoints, Unknown)
        and file.endpoints
        and all(bus.partition(".")[0] in here for bus in file.endpoints)
    ]
    return fitting[0] if len(fitting) == 1 else ""
