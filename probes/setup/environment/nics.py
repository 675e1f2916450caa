"""Which NICs NCCL, UCX and NVSHMEM use by default, and whether storage or management NICs are among them."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.unknown import Unknown
from probes.facts.rdma.devices import RdmaDevice, RdmaPort
from probes.nccl.topology_file import file_of_new_jobs
from probes.queries.evidence_list import join_limited
from probes.queries.pcie_paths import is_guest
from probes.setup.environment.advice import Note, Setting, State
from probes.snapshot.examination import Examination
from probes.snapshot.nic_roles import Role, roles_of
from probes.snapshot.served_gpus import hardware_devices
from probes.topology.endpoints import is_down, port_gbps

HCA = "NCCL_IB_HCA"


def active_ports(examination: Examination) -> Iterator[tuple[RdmaDevice, RdmaPort]]:
    """Yield the ports that NCCL opens: ACTIVE ones of hardware, InfiniBand or Ethernet."""
    for device in hardware_devices(examination.node).values():
        for port in device.ports:
            if port.state == "ACTIVE" and port.link_layer in ("InfiniBand", "Ethernet"):
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


def roce_ports(examination: Examination, nics: tuple[str, ...] = ()) -> dict[str, RdmaPort]:
    """Return the RoCE ports of the NICs that jobs use: of `nics`, or of those that NCCL chooses."""
    chosen = default_nics(examination) or {}
    used = set(nics) or {name for names in chosen.values() for name in names}
    return {
        device.name: port
        for device, port in active_ports(examination)
        if port.link_layer == "Ethernet" and (not used or device.name in used)
    }


def nic_settings(examination: Examination) -> tuple[list[Setting], list[Note]]:
    """Return the lists of NICs for NCCL, UCX and NVSHMEM, or why none is needed."""
    roles = roles_of(examination.node, examination.topology)
    active = {device.name: device for device, _ in active_ports(examination)}
    compute = [name for name in active if name in roles and roles[name].role is Role.COMPUTE]
    others = [name for name in active if name in roles and roles[name].role is not Role.COMPUTE]
    chosen = default_nics(examination)
    notes = _ports_down(examination, [name for name, role in roles.items() if role.role is Role.COMPUTE])
    if chosen is None or (others and hides_distances(examination)):
        text = "the paths between GPUs and NICs are unknown, so NCCL's choice is unknown too"
        return [], [Note(HCA, State.UNKNOWN, text), *notes]
    if not active:
        return [], [Note(HCA, State.FIX_FIRST, "no RDMA port is ACTIVE; see gdrtop check"), *notes]
    used = sorted({name for names in chosen.values() for name in names}, key=list(active).index)
    wrong = [name for name in used if name in others]
    rivals = _rivals(examination, [active[name] for name in used])
    if rivals and compute and not wrong:
        reason = f"{join_limited(rivals)} only manage NVSwitches, and NCCL may choose them; “=” is exact"
        return [Setting(HCA, f"={','.join(compute)}", reason)], notes
    if not wrong or not compute:
        text = _not_needed(used, others, len(active)) + _management(examination)
        return [], [Note(HCA, State.NOT_NEEDED, text), *notes]
    labels = {gpu.id: gpu.label for gpu in examination.topology.gpus}
    gpus = [labels[gpu] for gpu, names in chosen.items() if set(names) & set(wrong)]
    role = roles[wrong[0]].role.value
    reason = (
        f"by default NCCL uses {join_limited(wrong)} ({role if role != 'other' else 'not a compute NIC'}) for"
        f" {join_limited(gpus)}; “=” makes the names exact"
    )
    ports = ",".join(
        f"{device.name}:{port.number}" for device, port in active_ports(examination) if device.name in compute
    )
    same = "the compute NICs, for the same reason as NCCL_IB_HCA"
    settings = [Setting(HCA, f"={','.join(compute)}", reason), Setting("UCX_NET_DEVICES", ports, same)]
    return [*settings, *_of_nvshmem(examination, compute, active)], notes


def _not_needed(used: list[str], others: list[str], opened: int) -> str:
    if len(used) == opened and not others:
        return f"NCCL uses the {opened} active NICs" if opened > 1 else f"{used[0]} is the only active NIC"
    rest = f"; it does not use {join_limited(others)}" if others else ""
    return f"NCCL chooses {join_limited(used)} by speed and distance{rest}"


def _rivals(examination: Examination, used: list[RdmaDevice]) -> list[str]:
    """Return what manages NVSwitches and is not slower than the NICs: NCCL chooses the fastest ports."""
    rdma = examination.node.rdma
    slowest = min(map(port_gbps, used), default=0.0)
    return [] if isinstance(rdma, Unknown) else [d.name for d in rdma.management if port_gbps(d) >= slowest]


def _management(examination: Examination) -> str:
    """Say that NCCL also opens the ports that manage NVSwitches, which are slower than the NICs."""
    rdma = examination.node.rdma
    names = [] if isinstance(rdma, Unknown) else [device.name for device in rdma.management]
    return f"; {join_limited(names)} only manage NVSwitches, and NCCL does not choose them" if names else ""


def _ports_down(examination: Examination, compute: list[str]) -> list[Note]:
    devices = hardware_devices(examination.node)
    down = [name for name in compute if is_down(devices.get(name))]
    if not down:
        return []
    verb = "is" if len(down) == 1 else "are"
    text = f"{join_limited(down)} {verb} down; run gdrtop env again after the repair"
    return [Note(HCA, State.FIX_FIRST, text)]


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
    return [
        Setting("NVSHMEM_ENABLE_NIC_PE_MAPPING", "1", "without it NVSHMEM ignores the mapping"),
        Setting(
            "NVSHMEM_HCA_PE_MAPPING", value, "each PE's nearest compute NIC, if PE 0 uses GPU 0 and so on"
        ),
    ]
