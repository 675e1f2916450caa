"""Which GPUs, NICs and NUMA nodes this session may use: its container, control group, namespace and user.

sysfs shows a container every device of the node. Not seen of GPUs: the device program of a version 2 control
group, which only opening a file would show (Documentation/admin-guide/cgroup-v2.rst, Device controller).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import field

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.gpu.gpus import NOT_LISTED, Gpu, GpuFacts
from probes.facts.jobs.own_container import RUNTIME_SHM_BYTES
from probes.facts.pci.functions import is_for_guests
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system.device_nodes import DeviceNode
from probes.facts.system.numa import number_set
from probes.facts.system.platform import in_container
from probes.host.protocol import REFUSED
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import ORDER
from probes.topology.paths import Topology

NO_FILE, DENIED = "no device file", "no permission for the device file"
ELSEWHERE = "its RDMA device is in another network namespace"
NO_HANDLE = "the control group allows no RDMA handles"
FOR_GUESTS = "passed to a virtual machine"
NOT_IN_CONTAINER = "not passed into the container"
NO_CPU, NO_MEMORY = "no CPU in the cpuset", "no memory in the cpuset"


@frozen
class UsableHere:
    """Why this session may not use a device or a NUMA node; "" where it may."""

    devices: Mapping[str, Maybe[str]] = field(default_factory=dict)  # by endpoint: GPU BDF, NIC id
    numa_nodes: Mapping[int, Maybe[str]] = field(default_factory=dict)
    is_container: bool = False

    @property
    def not_usable(self) -> dict[str, str]:
        """The devices that this session may not use, with the reason."""
        return {end: why for end, why in self.devices.items() if not isinstance(why, Unknown) and why}

    @property
    def other_numa_nodes(self) -> dict[int, str]:
        """The NUMA nodes that this session may not use, with the reason."""
        return {
            number: why for number, why in self.numa_nodes.items() if not isinstance(why, Unknown) and why
        }


def usable_here(examination: Examination) -> UsableHere:
    """Return what this session may use, by device files, control group, cpuset and namespace."""
    node, topology = examination.node, examination.topology
    gpus = {gpu.bdf: gpu for gpu in node.gpus.gpus} if isinstance(node.gpus, GpuFacts) else {}
    elsewhere = node.rdma.devices_elsewhere if isinstance(node.rdma, RdmaFacts) else ()
    devices: dict[str, Maybe[str]] = {}
    functions = functions_of(examination)
    for end in topology.gpus:
        devices[end.id] = _of_gpu(examination, gpus.get(end.id))
    for end in topology.nics:
        if end.id in topology.devices:
            devices[end.id] = _of_nic(examination, topology.devices[end.id])
        elif end.bdf in elsewhere:
            devices[end.id] = ELSEWHERE
        elif (function := functions.get(known(end.bdf, ""))) and is_for_guests(function.driver):
            devices[end.id] = FOR_GUESTS
        else:
            devices[end.id] = Unknown(Reason.NOT_THERE, "/sys/class/infiniband", "no RDMA device")
    return UsableHere(devices, _numa_nodes(examination), in_container(node.platform))


def lifts_lock_limit(examination: Examination) -> Maybe[bool]:
    """Return whether no limit of locked memory applies: CAP_IPC_LOCK in a container, root outside of one."""
    in_this = map_known(examination.own_container, lambda container: container.ipc_lock)
    return in_this if in_container(examination.node.platform) else examination.is_root


def lock_limit(examination: Examination) -> Maybe[float]:
    """Return how many bytes this session may lock; math.inf: no limit, as jobs with RDMA need it."""
    lifted = lifts_lock_limit(examination)
    if isinstance(lifted, Unknown):
        return lifted
    own = map_known(examination.memlock, lambda memlock: memlock.own)
    return math.inf if lifted else map_known(own, lambda limit: limit.soft_bytes)


def has_little_shm(examination: Examination, shm_bytes: float) -> bool:
    """Return whether /dev/shm is no larger than runtimes make it, while ranks of several GPUs need it."""
    gpus = {gpu.id for gpu in examination.topology.gpus} - usable_here(examination).not_usable.keys()
    return shm_bytes <= RUNTIME_SHM_BYTES and len(gpus) > 1


def nearer_nic(topology: Topology, gpu: str, here: Collection[str], among: Collection[str]) -> str:
    """Return the NIC of `among` that is nearest to a GPU, if it is nearer than all of `here`; "": none is."""
    best = filter(among.__contains__, topology.best_nics.get(gpu, ()))
    words = {nic: topology.paths[gpu, nic].nccl_pcie for nic in best}
    ranks = {nic: ORDER[word] for nic, word in words.items() if not isinstance(word, Unknown)}
    nearest = min(ranks, key=ranks.__getitem__, default="")
    return "" if any(ranks[nic] <= ranks[nearest] for nic in here if nic in ranks) else nearest


def _of_gpu(examination: Examination, gpu: Gpu | None) -> Maybe[str]:
    if gpu is None:
        return Unknown(Reason.NOT_THERE, "/sys/bus/pci/devices", "no data for this GPU")
    if is_for_guests(gpu.driver):
        return FOR_GUESTS
    if gpu.driver != "nvidia":
        return Unknown(Reason.NOT_THERE, f"/sys/bus/pci/devices/{gpu.bdf}/driver", "no NVIDIA driver")
    if isinstance(gpu.minor, Unknown):
        # NVIDIA's container toolkit shows /proc/driver/nvidia/gpus of the container's GPUs only.
        is_listed = not isinstance(gpu.nvml, Unknown) or gpu.nvml.detail != NOT_LISTED
        if in_container(examination.node.platform) and not is_listed:
            return NOT_IN_CONTAINER
        return gpu.minor
    return _of_file(map_known(examination.device_nodes, lambda nodes: nodes.gpu), f"/dev/nvidia{gpu.minor}")


def _of_nic(examination: Examination, device: RdmaDevice) -> Maybe[str]:
    for limit in known(map_known(examination.rdma_cgroup, lambda facts: facts.own), ()):
        if limit.device == device.name and limit.most == 0:
            return NO_HANDLE
    if isinstance(device.uverbs, Unknown):
        return device.uverbs
    files = map_known(examination.device_nodes, lambda nodes: nodes.rdma)
    if isinstance(files, Unknown) and files.reason is Reason.NOT_THERE:
        return NO_FILE
    return _of_file(files, device.uverbs)


def _of_file(files: Maybe[tuple[DeviceNode, ...]], path: str) -> Maybe[str]:
    if isinstance(files, Unknown):
        return files
    file = next((file for file in files if file.path == path), None)
    if file is None:
        return NO_FILE
    if file.is_refused:
        return REFUSED
    return map_known(file.usable, lambda is_usable: "" if is_usable else DENIED)


def _numa_nodes(examination: Examination) -> dict[int, Maybe[str]]:
    """Compare the CPUs and the memory of each NUMA node with those that the cpuset allows."""
    numa, cpuset = examination.node.numa, examination.cpuset
    if isinstance(numa, Unknown):
        return {}
    found: dict[int, Maybe[str]] = {}
    for node in numa.nodes:
        if isinstance(cpuset, Unknown):
            found[node.number] = cpuset
            continue
        cpus, memory = number_set(cpuset.cpus), number_set(cpuset.memory_nodes)
        own = number_set(node.cpulist)
        if cpus is None or memory is None or own is None:
            facts = (cpuset.cpus, cpuset.memory_nodes, node.cpulist, _MALFORMED)
            found[node.number] = next(fact for fact in facts if isinstance(fact, Unknown))
        elif own and own.isdisjoint(cpus):
            found[node.number] = NO_CPU
        elif own and node.number not in memory:
            found[node.number] = NO_MEMORY
        else:
            found[node.number] = ""
    return found


_MALFORMED = Unknown(Reason.MALFORMED, "/proc/self/status")
