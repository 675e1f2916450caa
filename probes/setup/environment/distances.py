"""What GPUDirect RDMA needs where GPUs are far from NICs, and the topology file of virtual machines."""

from __future__ import annotations

import posixpath

from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.nccl.topology_file import VARIABLE, TopologyFileFacts
from probes.nccl.variables.variable import Version
from probes.queries.evidence_list import join_limited
from probes.queries.finding import Finding, Status
from probes.queries.jobs import nearest, usable_paths
from probes.queries.pcie_paths import is_guest
from probes.setup.environment.advice import Note, Setting, State
from probes.setup.environment.nics import file_in_use, hides_distances
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import Nccl

LEVEL = "NCCL_NET_GDR_LEVEL"
_C2C = "NCCL_NET_GDR_C2C"
_FAR = {"gpu-nic-cross-socket": Nccl.SYS, "gpu-nic-through-cpu": Nccl.PHB}
_REFUSED = ("p2p-topology-refused-override", "p2p-topology-refused", "p2p-topology-refused-force-pcie")
_FIRST_WITH_C2C, _C2C_BY_DEFAULT = (2, 26), (2, 27)


def level_settings(examination: Examination, version: Version) -> tuple[list[Setting], list[Note]]:
    """Return the level that the farthest GPU needs, or why the default is right.

    The doctor's own checks decide which GPUs are far.
    """
    dmabuf, peermem = usable_paths(examination)
    if dmabuf is False and peermem is False:
        return [], [Note(LEVEL, State.FIX_FIRST, "no GPUDirect RDMA path is usable; see gdrtop check")]
    # All checks, because other findings explain why a near NIC is lost.
    wanted = {*_FAR, *_REFUSED}
    checks = {finding.id: finding for finding in findings(examination) if finding.id in wanted}
    far = {name: checks[name] for name in _FAR if checks[name].status is Status.FOUND}
    lost = [finding for finding in far.values() if finding.part_of]
    if lost:
        text = "the NICs near these GPUs are down or missing; the default is right after the repair"
        return [], [Note(LEVEL, State.FIX_FIRST, text)]
    gpus = {name: _without_nvlink(examination, finding) for name, finding in far.items()}
    word = next((_FAR[name] for name in _FAR if gpus.get(name)), None)
    if word is not None:
        refused = next((checks[name] for name in _REFUSED if checks[name].status is Status.FOUND), None)
        if refused is not None:
            text = f"the driver denies these paths: {refused.title[:1].lower()}{refused.title[1:]}"
            return [], [Note(LEVEL, State.FIX_FIRST, text)]
        labels = {gpu.id: gpu.label for gpu in examination.topology.gpus}
        names = join_limited(labels[gpu] for ids in gpus.values() for gpu in ids)
        # NCCL's authors on CPUs as PCIe switches: https://github.com/NVIDIA/nccl/issues/465 and 1151.
        text = (
            f"{names}: the nearest NIC is at {word.value}, and NCCL allows PXB by default. Direct transfers "
            f"through a CPU may be slower than copies, or hang: measure a job with {LEVEL}={word.value}"
        )
        return [], [Note(LEVEL, State.MEASURE, text)]
    return _of_near_gpus(examination, version, checks)


def _without_nvlink(examination: Examination, finding: Finding) -> list[str]:
    """Return the GPUs that reach no NIC over NVLink either (PXN)."""
    return [gpu for gpu in finding.devices if nearest(examination.topology, gpu) is not Nccl.PXN]


def _of_near_gpus(
    examination: Examination, version: Version, checks: dict[str, Finding]
) -> tuple[list[Setting], list[Note]]:
    topology = examination.topology
    words = {gpu.id: nearest(topology, gpu.id) for gpu in topology.gpus}
    if any(word is Nccl.P2C for word in words.values()):
        return _of_c2c(version)
    unclear = next((finding for finding in checks.values() if finding.status is Status.UNKNOWN), None)
    if hides_distances(examination):
        text = "a virtual machine shows no real distances; NCCL takes them from the topology file"
        return [], [Note(LEVEL, State.UNKNOWN, text)]
    if unclear is not None or None in words.values():
        why = f": {unclear.cause}" if unclear is not None else ""
        return [], [Note(LEVEL, State.UNKNOWN, f"the distances between GPUs and NICs are unknown{why}")]
    if is_guest(examination) is True:
        return [], [Note(LEVEL, State.NOT_NEEDED, "the topology file has the distances")]
    by_nvlink = [gpu.label for gpu in topology.gpus if words[gpu.id] is Nccl.PXN]
    if by_nvlink:
        text = (
            f"{join_limited(by_nvlink)} reach a NIC over NVLink to another GPU (PXN), the others within PXB"
        )
    else:
        text = "every GPU has a NIC within PXB, the default"
    return [], [Note(LEVEL, State.NOT_NEEDED, text)]


def _of_c2c(version: Version) -> tuple[list[Setting], list[Note]]:
    if version >= _C2C_BY_DEFAULT:
        text = "the GPUs reach their NICs over C2C (P2C), which NCCL 2.27 and newer allow by default"
        return [], [Note(LEVEL, State.NOT_NEEDED, text)]
    if version >= _FIRST_WITH_C2C:
        return [Setting(_C2C, "1", "the GPUs reach their NICs over C2C; the default is 0 in NCCL 2.26")], []
    reason = "the GPUs reach their NICs over C2C, which NCCL before 2.26 sees as PHB"
    return [Setting(LEVEL, Nccl.PHB.value, reason)], []


def topology_settings(examination: Examination) -> tuple[list[Setting], list[Note]]:
    """Return the topology file that a virtual machine needs."""
    guest = is_guest(examination)
    if isinstance(guest, Unknown):
        text = f"bare metal or virtual machine: {guest}"
        return [], [Note(VARIABLE, State.UNKNOWN, text)]
    if not guest:
        return [], [Note(VARIABLE, State.NOT_NEEDED, "bare metal shows its topology in sysfs")]
    facts = examination.topology_files
    if isinstance(facts, Unknown):
        return [], [Note(VARIABLE, State.UNKNOWN, f"the topology files are unknown: {facts}")]
    used = file_in_use(examination)
    if used is not None:
        return [], [Note(VARIABLE, State.IN_FILE, f"NCCL already reads {used}")]
    fitting = _fitting(examination, facts)
    if fitting:
        reason = "the only topology file of the image whose GPUs and NICs are all on this virtual machine"
        return [Setting(VARIABLE, fitting, reason)], []
    text = (
        "this virtual machine shows no real topology and has no topology file; get it from the cloud's image"
    )
    return [], [Note(VARIABLE, State.UNKNOWN, text)]


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
