"""Which process owns which RDMA object, and how much memory it has pinned.

RDMA netlink names the thread that made an object, not the process, and forgets it when the thread ends; then
the owner of the protection domain, and then of the context, is likely the owner. Memory regions are listed
twice, before and after VmPin is read: if they differ, the sums cannot be compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.process_files import MappedLibrary, parse_pinned, parse_thread_group
from probes.host.protocol import Host
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.live.model.sample import COLLECTIVE_ROLES, NicUse, Role

PAGE = 4096  # bytes; the smallest page of all architectures, so that sums are never too large
LARGE = 1 << 20  # bytes: NCCL's buffers are 4 MiB, what it registers for control is smaller
_IMPLICIT_ODP = (1 << 64) - 1  # length: the whole address space (mlx5/odp.c)
_BY_DOMAIN = attrgetter("device", "pid", "pd", "kernel_name")
_BY_CONTEXT = attrgetter("device", "pid", "context", "kernel_name")
_MAX_THREADS = 4096  # whose owner is looked up in one round
_BY_LENGTH = attrgetter("device", "length_bytes", "is_odp")
_THREAD = attrgetter("pid")
_Object = QueuePair | CompletionQueue | MemoryRegion | ProtectionDomain | RdmaContext
_InDomain = TypeVar("_InDomain", QueuePair, MemoryRegion)
_NIXL = "libplugin_"
_MAX_TASKS = 64  # asked for VmPin if the first thread has ended


@frozen
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


@frozen
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

    @cached_property
    def active(self) -> int:
        """Queue pairs on all devices over which it can send."""
        is_plain = self.ready == self.queue_pairs  # as mostly
        return self.ready if is_plain else sum(nic.active for nic in self.nics)


@frozen
class Ownership:
    """RDMA use by process, and what has no visible owner."""

    uses: Mapping[int, RdmaUse] = field(default_factory=dict)
    unowned_regions: int = 0
    unowned_queue_pairs: int = 0


@frozen
class DeviceUsers:
    """Who has opened the devices; 256 ranks on 256 NICs have 65,000 contexts, which seldom change."""

    groups: Mapping[int, int] = field(default_factory=dict)  # the process of each thread that is known
    devices: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by pid, sorted
    are_all_known: bool = False  # each thread has a process


@frozen
class ResourceRound:
    """One reading of all RDMA resources and of the memory that their owners have pinned."""

    ownership: Ownership
    pinned: Mapping[int, Maybe[int]] = field(default_factory=dict)  # VmPin in bytes, by pid
    unsettled: frozenset[int] = frozenset()  # processes whose regions changed in the meantime
    shares_namespaces: bool | None = None
    hidden: tuple[str, ...] | None = None  # devices of other network namespaces, whose objects are not listed
    is_empty: bool = False  # not even the kernel's own queue pairs are listed
    resources: RdmaResources = field(default_factory=RdmaResources)  # that the rest was worked out from
    groups: Mapping[int, int] = field(default_factory=dict)  # the process of each thread that made them
    users: DeviceUsers = field(default_factory=DeviceUsers)

    @property
    def is_settled(self) -> bool:
        """Whether every object has an owner, and none changed in the meantime."""
        unowned = self.ownership.unowned_regions + self.ownership.unowned_queue_pairs
        return not self.unsettled and not unowned


def read_round(host: Host, last: ResourceRound | None = None) -> Maybe[ResourceRound]:
    """List the resources, read the owners' status, and list the resources again.

    Where both lists equal that of the `last` round, its owners are used again. Where the same threads have
    opened the devices, and the process of each is known, those are; and of a settled round the processes of
    all other threads.
    """
    before = _resources(host)
    if isinstance(before, Unknown):
        return before
    groups: dict[int, int] = {}
    statuses: dict[int, Maybe[str]] = {}  # each is read once in a round
    same = last if last is not None and last.is_settled and before == last.resources else None
    if same is not None:
        users, ownership = same.users, same.ownership
    elif last is not None and last.users.are_all_known and _have_same_users(before, last.resources):
        users = last.users
        groups.update(users.groups)
        find_processes(host, _makers(before), groups, statuses, last.groups if last.is_settled else {})
        ownership = _kept(attribute(before, groups, users.devices), last.ownership)
    else:
        find_processes(host, (*_openers(before), *_makers(before)), groups, statuses)
        users = _users(before, groups)
        ownership = attribute(before, groups, users.devices)
    pinned = {pid: read_pinned(host, pid, statuses) for pid in sorted(ownership.uses)}
    after = _resources(host)
    if isinstance(after, Unknown):
        return after
    if same is not None and after == before:
        return replace(same, pinned=pinned)
    changed: set[int | None] = set()
    if after != before:
        groups.update(users.groups)
        find_processes(host, (*_makers(before), *_makers(after)), groups, statuses)
        if not _have_same_users(before, after):
            find_processes(host, _openers(after), groups, statuses)
            users = _users(after, groups)
        first, second = _by_owner(before, groups), _by_owner(after, groups)
        changed = {pid for pid in {*first, *second} if first.get(pid) != second.get(pid)}
        ownership = attribute(after, groups, users.devices)
    for pid in ownership.uses:
        if pid not in pinned:  # its first object has just appeared
            pinned[pid] = Unknown(Reason.NOT_RECORDED, f"/proc/{pid}/status", "not read yet")
    if None in changed:
        # A region without an owner came or went: it may be of any process.
        unowned = max(ownership.unowned_regions, attribute(before, groups, {}).unowned_regions)
        ownership = Ownership(ownership.uses, unowned, ownership.unowned_queue_pairs)
    return ResourceRound(
        ownership=ownership,
        pinned=pinned,
        unsettled=frozenset(pid for pid in changed if pid is not None),
        shares_namespaces=after.shares_namespaces,
        hidden=after.hidden,
        is_empty=not (after.queue_pairs or after.contexts or after.domains or after.regions),
        resources=after,
        groups=groups,
        users=users,
    )


def _have_same_users(now: RdmaResources, before: RdmaResources) -> bool:
    return bool(now.contexts) and now.contexts == before.contexts and now.domains == before.domains


def _users(resources: RdmaResources, groups: Mapping[int, int]) -> DeviceUsers:
    devices: dict[int, set[str]] = defaultdict(set)
    for opened in resources.contexts:
        owner = None if opened.pid is None else groups.get(opened.pid)
        if owner is not None and not opened.kernel_name:
            devices[owner].add(opened.device)
    openers = _openers(resources)
    known = {thread: groups[thread] for thread in openers if thread in groups}
    sorted_devices = {pid: tuple(sorted(names)) for pid, names in devices.items()}
    return DeviceUsers(known, sorted_devices, len(known) == len(openers))


def _openers(resources: RdmaResources) -> dict[int, None]:
    return _threads(resources.contexts, resources.domains)


def _makers(resources: RdmaResources) -> dict[int, None]:
    return _threads(resources.regions, resources.queue_pairs, resources.completion_queues)


def _threads(*lists: Iterable[_Object]) -> dict[int, None]:
    threads = dict.fromkeys(map(_THREAD, chain(*lists)))
    threads.pop(None, None)
    return threads


def _resources(host: Host) -> Maybe[RdmaResources]:
    """Return the resources of all devices; unknown if the list of one device is missing."""
    resources = host.rdma_resources()
    if isinstance(resources, Unknown) or not resources.unread:
        return resources
    return Unknown(Reason.IO_ERROR, "RDMA netlink", f"no list for {', '.join(resources.unread[:3])}")


def _status(host: Host, thread: int, statuses: dict[int, Maybe[str]]) -> Maybe[str]:
    found = statuses.get(thread)
    if found is None:
        found = statuses[thread] = host.read(f"/proc/{thread}/status")
    return found


def read_pinned(host: Host, pid: int, statuses: dict[int, Maybe[str]]) -> Maybe[int]:
    """Return VmPin in bytes, of another thread if the first has ended; `statuses`: read in this round."""
    status = _status(host, pid, statuses)
    if isinstance(status, Unknown):
        return status
    pinned = parse_pinned(status)
    if not isinstance(pinned, Unknown):
        return pinned
    names = host.names(f"/proc/{pid}/task")
    for name in () if isinstance(names, Unknown) else names[:_MAX_TASKS]:
        if not name.isdecimal():
            continue
        other = host.read(f"/proc/{pid}/task/{name}/status")
        found = map_known(other, parse_pinned)
        if not isinstance(found, Unknown):
            return found
    return Unknown(Reason.NOT_THERE, f"/proc/{pid}/status", "no VmPin: the process is exiting")


def find_processes(
    host: Host,
    threads: Iterable[int],
    groups: dict[int, int],
    statuses: dict[int, Maybe[str]],
    earlier: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Add the process of each thread that is there and visible; `earlier`: those known to be the same."""
    for thread in threads:
        if thread in groups or len(groups) >= _MAX_THREADS:
            continue
        group: Maybe[int] | None = earlier.get(thread)
        if group is None:
            group = map_known(_status(host, thread, statuses), parse_thread_group)
        if not isinstance(group, Unknown):
            groups[thread] = group


class _Owners:
    """Find the process of an object: by its thread, its protection domain, its context."""

    def __init__(self, resources: RdmaResources, groups: Mapping[int, int]) -> None:
        self._resources, self._groups = resources, groups

    # Needed only for objects whose thread has ended; with 256 ranks and NICs there are 65,000 of each.

    @cached_property
    def _contexts(self) -> dict[tuple[str, int], int | None]:
        return {
            (context.device, context.number): self._of(context.pid) for context in self._resources.contexts
        }

    @cached_property
    def _domains(self) -> dict[tuple[str, int], int | None]:
        return {
            (domain.device, domain.number): self._of(domain.pid)
            or (None if domain.context is None else self._contexts.get((domain.device, domain.context)))
            for domain in self._resources.domains
        }

    def _of(self, thread: int | None) -> int | None:
        return None if thread is None else self._groups.get(thread)

    def of(self, device: str, thread: int | None, domain: int | None) -> tuple[int | None, bool]:
        """Return the process of an object in a protection domain, and whether its own thread made it."""
        if (owner := self._of(thread)) is not None:
            return owner, True
        return (None if domain is None else self._domains.get((device, domain))), False

    def of_each(
        self, objects: Iterable[_InDomain]
    ) -> Iterator[tuple[int | None, bool, str, list[_InDomain]]]:
        """Yield process, whether its own thread made them, device and objects; not those of the kernel.

        Objects of one process follow each other, and there are hundreds.
        """
        for (device, thread, domain, kernel), same in groupby(objects, _BY_DOMAIN):
            if not kernel:
                owner, is_own = self.of(device, thread, domain)
                yield owner, is_own, device, list(same)

    def of_context(self, device: str, thread: int | None, context: int | None) -> int | None:
        owner = self._of(thread)
        return owner if owner or context is None else self._contexts.get((device, context))


@dataclass
class _Found:
    queue_pairs: dict[str, list[QueuePair]] = field(default_factory=lambda: defaultdict(list))
    own: dict[str, list[MemoryRegion]] = field(default_factory=lambda: defaultdict(list))
    inherited: dict[str, list[MemoryRegion]] = field(default_factory=lambda: defaultdict(list))
    completion_queues: int = 0


def attribute(
    resources: RdmaResources, groups: Mapping[int, int], devices: Mapping[int, tuple[str, ...]]
) -> Ownership:
    """Return each process's objects; `groups`: the process of a thread; `devices`: those it has opened."""
    owners = _Owners(resources, groups)
    found: dict[int, _Found] = defaultdict(_Found)
    unowned_regions = unowned_pairs = 0
    for owner, _, device, pairs in owners.of_each(resources.queue_pairs):
        if owner is None:
            unowned_pairs += len(pairs)
        else:
            found[owner].queue_pairs[device].extend(pairs)
    for owner, is_own, device, regions in owners.of_each(resources.regions):
        if owner is None:
            unowned_regions += len(regions)
        else:
            (found[owner].own if is_own else found[owner].inherited)[device].extend(regions)
    for (device, thread, context, kernel), queues in groupby(resources.completion_queues, _BY_CONTEXT):
        owner = None if kernel else owners.of_context(device, thread, context)
        if owner is not None:
            found[owner].completion_queues += len(list(queues))
    nothing = _Found()
    uses = {pid: _use(found.get(pid, nothing), devices.get(pid, ())) for pid in {**found, **devices}}
    # What is beyond the limit of one answer may be of any process.
    return Ownership(uses, unowned_regions + resources.left_out, unowned_pairs + resources.left_out)


def _use(found: _Found, opened: tuple[str, ...]) -> RdmaUse:
    own = {device: summed(regions) for device, regions in found.own.items()}
    inherited = {device: summed(regions) for device, regions in found.inherited.items()}
    nics = dict(_only_opened(opened))
    for device in {**found.queue_pairs, **own, **inherited}:
        pairs = found.queue_pairs.get(device, ())
        made, left = own.get(device, _NOTHING), inherited.get(device, _NOTHING)
        ready = sum(pair.is_connected for pair in pairs)
        open_pairs = (0, 0) if ready == len(pairs) else _open_pairs(pairs)
        sums = made.total + left.total, made.bytes + left.bytes
        nics[device] = NicUse(device, len(pairs), ready, *sums, *open_pairs)
    if len(nics) > len(opened):
        nics = dict(sorted(nics.items()))
    together = _together(list(own.values())), _together(list(inherited.values()))
    return RdmaUse(tuple(nics.values()), *together, found.completion_queues, opened)


def _open_pairs(pairs: Iterable[QueuePair]) -> tuple[int, int]:
    """Return the connectionless queue pairs in RTS, of UD and of the driver's kind."""
    kinds = [pair.kind for pair in pairs if pair.state == "RTS"]
    return kinds.count("UD"), kinds.count("DRIVER")


def with_used_pairs(use: RdmaUse, role: Role, libraries: Maybe[tuple[MappedLibrary, ...]]) -> RdmaUse:
    """Mark the NICs whose connectionless queue pairs are in use, as other signs show.

    EFA has no other ones, and the plugin of NCCL, NVSHMEM or MPI registers its buffers with each NIC that it
    uses. UCX and NIXL register memory with every NIC and open each transport, whichever they use: of these,
    only traffic shows the use. perftest sends over every queue pair that it has.
    """
    if use.ready == use.queue_pairs:  # as mostly
        return use
    names = {library.name for library in known(libraries, ())}
    is_fabric = role in COLLECTIVE_ROLES or isinstance(libraries, Unknown) or "libfabric" in names
    is_fabric = is_fabric and role is not Role.UCX and not any(name.startswith(_NIXL) for name in names)

    def is_used(nic: NicUse) -> bool:
        if role is Role.PERFTEST:
            return bool(nic.open_ud or nic.open_driver)
        return is_fabric and bool(nic.open_driver and nic.regions)

    return replace(use, nics=tuple(replace(nic, is_used=True) if is_used(nic) else nic for nic in use.nics))


@lru_cache(maxsize=1024)
def _only_opened(devices: tuple[str, ...]) -> Mapping[str, NicUse]:
    """Return the use of devices without objects: NCCL opens every NIC."""
    return {device: NicUse(device, 0, 0, 0, 0) for device in devices}


def _kept(new: Ownership, old: Ownership) -> Ownership:
    """Return the new one with the old objects where they are equal, which saves comparing them later."""
    uses = {pid: old.uses[pid] if old.uses.get(pid) == use else use for pid, use in new.uses.items()}
    return replace(new, uses=uses)


def _together(sums: list[Registrations]) -> Registrations:
    if len(sums) < 2:
        return sums[0] if sums else _NOTHING
    return Registrations(
        sum(total.count for total in sums),
        sum(total.bytes for total in sums),
        sum(total.large_bytes for total in sums),
        min(filter(None, (total.shortest_large for total in sums)), default=0),
        tuple(sorted({device for total in sums for device in total.without_length})),
        sum(total.on_demand for total in sums),
    )


def summed(regions: Iterable[MemoryRegion]) -> Registrations:
    """Sum memory regions in whole pages; a buffer that is registered twice counts twice, as in VmPin."""
    count = total = large = shortest = on_demand = 0
    without_length = set()
    # There are hundreds of regions, of a few lengths.
    for (device, length, is_odp), number in Counter(map(_BY_LENGTH, regions)).items():
        if is_odp or length >= _IMPLICIT_ODP:
            on_demand += number
            continue
        in_pages = -(-length // PAGE) * PAGE
        count += number
        total += number * in_pages
        if in_pages >= LARGE:
            large += number * in_pages
            shortest = min(shortest or in_pages, in_pages)
        if not length:
            without_length.add(device)
    return Registrations(count, total, large, shortest, tuple(sorted(without_length)), on_demand)


def _by_owner(
    resources: RdmaResources, groups: Mapping[int, int]
) -> dict[int | None, frozenset[MemoryRegion]]:
    """Return the regions of each process, as far as the sums depend on them; None: without an owner."""
    found: dict[int | None, set[MemoryRegion]] = defaultdict(set)
    for owner, _, _, regions in _Owners(resources, groups).of_each(resources.regions):
        found[owner].update(regions)
    return {owner: frozenset(regions) for owner, regions in found.items()}
