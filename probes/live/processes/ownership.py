"""Which process owns which RDMA object, and how much memory it has pinned.

RDMA netlink names the thread that made an object, not the process, and forgets it when the thread ends; then
the owner of the protection domain, and then of the context, is likely the owner. Memory regions are listed
twice, before and after VmPin is read: if they differ, the sums cannot be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.process_files import Status, parse_status
from probes.host.protocol import Host
from probes.host.rdma_resources import MemoryRegion, QueuePair, RdmaResources
from probes.live.model.sample import NicUse

PAGE = 4096  # bytes; the smallest page of all architectures, so that sums are never too large
LARGE = 1 << 20  # bytes: NCCL's buffers are 4 MiB, what it registers for control is smaller
CONNECTED = "RTS"
_IMPLICIT_ODP = (1 << 64) - 1  # length: the whole address space (mlx5/odp.c)
_MAX_THREADS = 4096  # whose owner is looked up in one round
_MAX_TASKS = 64  # asked for VmPin if the first thread has ended


@dataclass(frozen=True)
class Registrations:
    """The sum of some memory regions, without on-demand paging, which is neither pinned nor charged."""

    count: int = 0
    bytes: int = 0  # whole pages
    large_bytes: int = 0  # of those that are at least LARGE
    shortest_large: int = 0  # bytes; 0: there is none
    without_length: tuple[str, ...] = ()  # devices with a region of length 0
    on_demand: int = 0  # regions that are not in the sum

    @property
    def total(self) -> int:
        """All regions."""
        return self.count + self.on_demand


_NOTHING = Registrations()


@dataclass(frozen=True)
class RdmaUse:
    """What a process has on all RDMA devices."""

    nics: tuple[NicUse, ...] = ()
    own: Registrations = _NOTHING  # made by its threads
    inherited: Registrations = _NOTHING  # made by a thread that has ended, in its protection domain
    completion_queues: int = 0
    contexts: tuple[str, ...] = ()  # devices that it has opened

    @cached_property
    def queue_pairs(self) -> int:
        """Queue pairs on all devices."""
        return sum(nic.queue_pairs for nic in self.nics)

    @cached_property
    def ready(self) -> int:
        """Connected queue pairs on all devices."""
        return sum(nic.ready for nic in self.nics)


@dataclass(frozen=True)
class Ownership:
    """RDMA use by process, and what has no visible owner."""

    uses: Mapping[int, RdmaUse] = field(default_factory=dict)
    unowned_regions: int = 0
    unowned_queue_pairs: int = 0


@dataclass(frozen=True)
class ResourceRound:
    """One reading of all RDMA resources and of the memory that their owners have pinned."""

    ownership: Ownership
    pinned: Mapping[int, Maybe[int]] = field(default_factory=dict)  # VmPin in bytes, by pid
    unsettled: frozenset[int] = frozenset()  # processes whose regions changed in the meantime
    shares_namespaces: bool | None = None
    is_empty: bool = False  # not even the kernel's own queue pairs are listed
    resources: RdmaResources = field(default_factory=RdmaResources)  # that the rest was worked out from

    @property
    def is_settled(self) -> bool:
        """Whether every object has an owner, and none changed in the meantime."""
        unowned = self.ownership.unowned_regions + self.ownership.unowned_queue_pairs
        return not self.unsettled and not unowned


def read_round(host: Host, last: ResourceRound | None = None) -> Maybe[ResourceRound]:
    """List the resources, read the owners' status, and list the resources again.

    Where both lists equal the one of the `last` round, its owners are used again.
    """
    before = _resources(host)
    if isinstance(before, Unknown):
        return before
    groups: dict[int, int] = {}
    statuses: dict[int, Maybe[Status]] = {}  # each is read once in a round
    same = last if last is not None and last.is_settled and before == last.resources else None
    if same is None:
        _find_processes(host, before, groups, statuses)
    ownership = attribute(before, groups) if same is None else same.ownership
    pinned = {pid: read_pinned(host, pid, statuses) for pid in sorted(ownership.uses)}
    after = _resources(host)
    if isinstance(after, Unknown):
        return after
    if same is not None and after == before:
        return replace(same, pinned=pinned)
    changed: set[int | None] = set()
    if after != before:
        _find_processes(host, before, groups, statuses)
        _find_processes(host, after, groups, statuses)
        first, second = _by_owner(before, groups), _by_owner(after, groups)
        changed = {pid for pid in {*first, *second} if first.get(pid) != second.get(pid)}
        ownership = attribute(after, groups)
    for pid in ownership.uses:
        if pid not in pinned:  # its first object has just appeared
            pinned[pid] = Unknown(Reason.NOT_RECORDED, f"/proc/{pid}/status", "not read yet")
    if None in changed:
        # A region without an owner came or went: it may be of any process.
        unowned = max(ownership.unowned_regions, attribute(before, groups).unowned_regions)
        ownership = Ownership(ownership.uses, unowned, ownership.unowned_queue_pairs)
    return ResourceRound(
        ownership=ownership,
        pinned=pinned,
        unsettled=frozenset(pid for pid in changed if pid is not None),
        shares_namespaces=after.shares_namespaces,
        is_empty=not (after.queue_pairs or after.contexts or after.domains or after.regions),
        resources=after,
    )


def _resources(host: Host) -> Maybe[RdmaResources]:
    """Return the resources of all devices; unknown if the list of one device is missing."""
    resources = host.rdma_resources()
    if isinstance(resources, Unknown) or not resources.unread:
        return resources
    return Unknown(Reason.IO_ERROR, "RDMA netlink", f"no list for {', '.join(resources.unread[:3])}")


def _status(host: Host, thread: int, statuses: dict[int, Maybe[Status]]) -> Maybe[Status]:
    """Return the status of a thread, which is read once for `statuses`."""
    found = statuses.get(thread)
    if found is None:
        text = host.read(f"/proc/{thread}/status")
        found = statuses[thread] = text if isinstance(text, Unknown) else parse_status(text)
    return found


def read_pinned(host: Host, pid: int, statuses: dict[int, Maybe[Status]]) -> Maybe[int]:
    """Return VmPin in bytes. It is missing if the first thread has ended: then ask the others.

    `statuses`: those that were read since the resources were listed, by thread.
    """
    status = _status(host, pid, statuses)
    if isinstance(status, Unknown):
        return status
    if not isinstance(status.pinned_bytes, Unknown):
        return status.pinned_bytes
    names = host.names(f"/proc/{pid}/task")
    for name in () if isinstance(names, Unknown) else names[:_MAX_TASKS]:
        if not name.isdecimal():
            continue
        other = host.read(f"/proc/{pid}/task/{name}/status")
        found = other if isinstance(other, Unknown) else parse_status(other).pinned_bytes
        if not isinstance(found, Unknown):
            return found
    return Unknown(Reason.NOT_THERE, f"/proc/{pid}/status", "no VmPin: the process is ending")


def _find_processes(
    host: Host, resources: RdmaResources, groups: dict[int, int], statuses: dict[int, Maybe[Status]]
) -> None:
    """Add the process of each thread; a thread that has ended or is hidden has none."""
    objects = (
        resources.contexts,
        resources.domains,
        resources.regions,
        resources.queue_pairs,
        resources.completion_queues,
    )
    threads = dict.fromkeys(item.pid for items in objects for item in items)
    for thread in threads:
        if thread is None or thread in groups or len(groups) >= _MAX_THREADS:
            continue
        status = _status(host, thread, statuses)
        group = status if isinstance(status, Unknown) else status.thread_group
        if not isinstance(group, Unknown):
            groups[thread] = group


class _Owners:
    """Find the process of an object: by its thread, its protection domain, its context."""

    def __init__(self, resources: RdmaResources, groups: Mapping[int, int]) -> None:
        self._resources, self._groups = resources, groups

    # Needed only for objects whose thread has ended; with 256 ranks and NICs there are 65,000 of each.

    @cached_property
    def _contexts(self) -> dict[tuple[str, int], int | None]:
        return {(one.device, one.number): self._of(one.pid) for one in self._resources.contexts}

    @cached_property
    def _domains(self) -> dict[tuple[str, int], int | None]:
        return {
            (domain.device, domain.number): self._of(domain.pid)
            or (None if domain.context is None else self._contexts.get((domain.device, domain.context)))
            for domain in self._resources.domains
        }

    def _of(self, thread: int | None) -> int | None:
        return None if thread is None else self._groups.get(thread)

    def of(self, item: QueuePair | MemoryRegion) -> tuple[int | None, bool]:
        """Return the process, and whether its own thread made the object."""
        owner = None if item.pid is None else self._groups.get(item.pid)
        if owner is not None:
            return owner, True
        return (None if item.pd is None else self._domains.get((item.device, item.pd))), False

    def of_context(self, device: str, thread: int | None, context: int | None) -> int | None:
        """Return the process of an object that belongs to a context."""
        owner = self._of(thread)
        return owner if owner or context is None else self._contexts.get((device, context))


@dataclass
class _Found:
    """What is found of one process."""

    queue_pairs: dict[str, list[QueuePair]] = field(default_factory=lambda: defaultdict(list))
    own: list[MemoryRegion] = field(default_factory=list)
    inherited: list[MemoryRegion] = field(default_factory=list)
    completion_queues: int = 0
    contexts: set[str] = field(default_factory=set)


def attribute(resources: RdmaResources, groups: Mapping[int, int]) -> Ownership:
    """Return the objects of each process, without the kernel's. `groups`: the process of each thread."""
    owners = _Owners(resources, groups)
    found: dict[int, _Found] = defaultdict(_Found)
    unowned_regions = unowned_pairs = 0
    for pair in resources.queue_pairs:
        if pair.kernel_name:
            continue
        owner, _ = owners.of(pair)
        if owner is None:
            unowned_pairs += 1
        else:
            found[owner].queue_pairs[pair.device].append(pair)
    for region in resources.regions:
        if region.kernel_name:
            continue
        owner, is_own = owners.of(region)
        if owner is None:
            unowned_regions += 1
        else:
            (found[owner].own if is_own else found[owner].inherited).append(region)
    for queue in resources.completion_queues:
        if queue.kernel_name:
            continue
        owner = owners.of_context(queue.device, queue.pid, queue.context)
        if owner is not None:
            found[owner].completion_queues += 1
    for context in resources.contexts:
        owner = owners.of_context(context.device, context.pid, None)
        if owner is not None and not context.kernel_name:
            found[owner].contexts.add(context.device)
    uses = {pid: _use(what) for pid, what in found.items()}
    # What is beyond the limit of one answer may be of any process.
    return Ownership(uses, unowned_regions + resources.left_out, unowned_pairs + resources.left_out)


def _use(found: _Found) -> RdmaUse:
    regions: dict[str, list[MemoryRegion]] = defaultdict(list)
    for region in (*found.own, *found.inherited):
        regions[region.device].append(region)
    own, inherited = summed(found.own), summed(found.inherited)
    nics = []
    for device in sorted({*found.queue_pairs, *regions, *found.contexts}):
        if device not in found.queue_pairs and device not in regions:
            nics.append(_only_opened(device))
            continue
        pairs, here = found.queue_pairs.get(device, ()), regions.get(device, ())
        is_all = len(regions) == 1 and bool(here)  # nearly every rank uses one NIC
        registered = own.bytes + inherited.bytes if is_all else summed(here).bytes
        ready = sum(pair.state == CONNECTED for pair in pairs)
        nics.append(NicUse(device, len(pairs), ready, len(here), registered))
    return RdmaUse(
        nics=tuple(nics),
        own=own,
        inherited=inherited,
        completion_queues=found.completion_queues,
        contexts=tuple(sorted(found.contexts)),
    )


@lru_cache(1024)
def _only_opened(device: str) -> NicUse:
    """Return the use of a device that was opened: every rank opens all, so each is the same object."""
    return NicUse(device, 0, 0, 0, 0)


def summed(regions: Iterable[MemoryRegion]) -> Registrations:
    """Sum memory regions in whole pages; a buffer that is registered twice counts twice, as in VmPin."""
    all_regions = list(regions)
    if not all_regions:
        return _NOTHING
    in_sum = [one for one in all_regions if not one.is_odp and one.length_bytes < _IMPLICIT_ODP]
    lengths = [-(-region.length_bytes // PAGE) * PAGE for region in in_sum]
    large = [length for length in lengths if length >= LARGE]
    without_length = {region.device for region in in_sum if not region.length_bytes} if 0 in lengths else ()
    return Registrations(
        len(in_sum),
        sum(lengths),
        sum(large),
        min(large, default=0),
        tuple(sorted(without_length)),
        len(all_regions) - len(in_sum),
    )


def _by_owner(
    resources: RdmaResources, groups: Mapping[int, int]
) -> dict[int | None, frozenset[MemoryRegion]]:
    """Return the regions of each process, as far as the sums depend on them; None: without an owner."""
    owners = _Owners(resources, groups)
    found: dict[int | None, set[MemoryRegion]] = defaultdict(set)
    for region in resources.regions:
        if not region.kernel_name:
            found[owners.of(region)[0]].add(region)
    return {owner: frozenset(regions) for owner, regions in found.items()}
