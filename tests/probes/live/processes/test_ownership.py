"""Which process owns an RDMA object, as seen through RDMA netlink and /proc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.process_files import MappedLibrary
from probes.host.rdma_resources import (
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)
from probes.live.model.sample import Role
from probes.live.processes.ownership import (
    PAGE,
    RdmaUse,
    ResourceRound,
    attribute,
    read_pinned,
    read_round,
    summed,
    with_used_pairs,
)
from tests.support.live_node import MIB, LiveNode, resources_of


@pytest.fixture
def host(tmp_path: Path) -> LiveNode:
    return LiveNode(tmp_path)


def round_of(host: LiveNode) -> ResourceRound:
    found = read_round(host)
    assert isinstance(found, ResourceRound)
    return found


def test_a_region_of_another_thread_belongs_to_its_process(host: LiveNode) -> None:
    host.add_process(42, pinned=32 * MIB)
    host.set_status(1042, 42, 32 * MIB)
    host.resources = RdmaResources(regions=(MemoryRegion("mlx5_0", 1, 32 * MIB, 1, 1042),))
    found = round_of(host)
    assert found.ownership.uses[42].own.bytes == 32 * MIB
    assert found.pinned == {42: 32 * MIB}


@pytest.mark.parametrize(
    ("domain_thread", "context_thread"), [(42, None), (None, 42)], ids=["by-domain", "by-context"]
)
def test_a_region_of_an_ended_thread_belongs_to_the_owner_of_its_domain(
    host: LiveNode, domain_thread: int | None, context_thread: int | None
) -> None:
    host.add_process(42)
    host.resources = RdmaResources(
        queue_pairs=(QueuePair("mlx5_0", 5, "RC", "RTS", pd=1),),
        regions=(MemoryRegion("mlx5_0", 1, 8 * MIB, 1, None),),
        domains=(ProtectionDomain("mlx5_0", 1, 7, domain_thread),),
        contexts=(RdmaContext("mlx5_0", 7, context_thread),),
        completion_queues=(CompletionQueue("mlx5_0", 3, 7, 42),),
    )
    use = round_of(host).ownership.uses[42]
    assert (use.own.bytes, use.inherited.bytes) == (0, 8 * MIB)
    assert (use.queue_pairs, use.ready, use.completion_queues) == (1, 1, 1)


def test_a_domain_of_another_device_with_the_same_number_is_not_asked(host: LiveNode) -> None:
    host.add_process(42)
    host.resources = RdmaResources(
        regions=(MemoryRegion("mlx5_1", 1, 8 * MIB, 1, None),),
        domains=(ProtectionDomain("mlx5_0", 1, 7, 42),),
    )
    ownership = round_of(host).ownership
    assert ownership.unowned_regions == 1
    assert ownership.uses == {}


def test_what_the_kernel_made_is_neither_owned_nor_a_rest(host: LiveNode) -> None:
    host.resources = RdmaResources(
        queue_pairs=(QueuePair("mlx5_0", 1, "GSI", "RTS", kernel_name="ib_core"),),
        regions=(MemoryRegion("mlx5_0", 1, 4096, 1, None, "nvme_rdma"),),
    )
    assert round_of(host).ownership == attribute(RdmaResources(), {}, {})


def test_objects_of_ended_and_hidden_owners_are_a_rest(host: LiveNode) -> None:
    """A child with an inherited device that outlives its parent, or a process of another PID namespace."""
    host.resources = replace(resources_of((77, [4 * MIB])), left_out=3)
    ownership = round_of(host).ownership
    assert (ownership.unowned_regions, ownership.unowned_queue_pairs) == (4, 5)


def test_regions_that_change_while_pinned_memory_is_read_are_not_compared(host: LiveNode) -> None:
    for pid in (42, 43):
        host.add_process(pid)
    answers = [
        resources_of((42, [4 * MIB]), (43, [4 * MIB])),
        resources_of((42, [4 * MIB, 8 * MIB]), (43, [4 * MIB])),
    ]
    host.resources = lambda: answers.pop(0)
    assert round_of(host).unsettled == {42}


def test_the_owners_of_an_unchanged_list_are_not_looked_up_again(host: LiveNode) -> None:
    host.add_process(42, pinned=4 * MIB)
    host.resources = resources_of((42, [4 * MIB]))
    first = round_of(host)
    host.asked.clear()
    host.set_status(42, 42, 8 * MIB)
    second = read_round(host, first)
    assert isinstance(second, ResourceRound)
    assert (second.ownership, second.pinned) == (first.ownership, {42: 8 * MIB})
    assert (host.asked["rdma_resources"], host.asked["/proc/42/status"]) == (2, 1)


def test_only_new_threads_of_a_running_job_are_looked_up(host: LiveNode) -> None:
    host.add_process(42)
    for thread in (1042, 1043):
        host.set_status(thread, 42, 4 * MIB)
    opened = RdmaResources(contexts=(RdmaContext("mlx5_0", 7, 42),))
    regions = tuple(MemoryRegion("mlx5_0", thread, 4 * MIB, 1, thread) for thread in (1042, 1043))
    host.resources = replace(opened, regions=regions[:1])
    first = round_of(host)
    host.asked.clear()
    host.resources = replace(opened, regions=regions)
    second = read_round(host, first)
    assert isinstance(second, ResourceRound)
    assert second.ownership.uses[42].own.bytes == 8 * MIB
    assert (host.asked["/proc/1042/status"], host.asked["/proc/1043/status"]) == (0, 1)
    # Another process has opened the device since: every thread may be another one.
    host.resources = replace(opened, regions=regions, contexts=(RdmaContext("mlx5_0", 8, 42),))
    host.asked.clear()
    assert isinstance(read_round(host, second), ResourceRound)
    assert host.asked["/proc/1042/status"] == 1


def test_an_unowned_object_is_looked_up_in_each_round(host: LiveNode) -> None:
    host.resources = resources_of((42, [4 * MIB]))
    first = round_of(host)
    assert first.ownership.unowned_regions == 1
    host.add_process(42)
    second = read_round(host, first)
    assert isinstance(second, ResourceRound)
    assert second.ownership.unowned_regions == 0


def test_a_list_that_changes_after_an_unchanged_one_is_unsettled(host: LiveNode) -> None:
    host.add_process(42)
    host.resources = resources_of((42, [4 * MIB]))
    first = round_of(host)
    answers = [resources_of((42, [4 * MIB])), resources_of((42, [4 * MIB, 8 * MIB]))]
    host.resources = lambda: answers.pop(0) if len(answers) > 1 else answers[0]
    second = read_round(host, first)
    assert isinstance(second, ResourceRound)
    assert second.unsettled == {42}


def test_a_device_that_gives_no_list_makes_the_round_unknown(host: LiveNode) -> None:
    host.add_process(42)
    host.resources = lambda: replace(resources_of((42, [4 * MIB])), unread=("mlx5_3",))
    found = read_round(host)
    assert isinstance(found, Unknown)
    assert "mlx5_3" in found.detail


def test_a_region_without_owner_that_goes_away_was_there(host: LiveNode) -> None:
    host.add_process(42)
    answers = [resources_of((42, [4 * MIB]), (77, [4 * MIB])), resources_of((42, [4 * MIB]))]
    host.resources = lambda: answers.pop(0)
    found = round_of(host)
    assert found.ownership.unowned_regions == 1
    assert not found.unsettled


def test_pinned_memory_is_read_from_a_thread_that_lives(host: LiveNode) -> None:
    host.add_process(42, pinned=None)
    assert isinstance(read_pinned(host, 42, {}), Unknown)
    (host.path / "proc/42/task/43").mkdir(parents=True)
    (host.path / "proc/42/task/43/status").write_text("Tgid:\t42\nVmPin:\t    4096 kB\n")
    assert read_pinned(host, 42, {}) == 4 * MIB


def test_missing_pinned_memory_is_not_zero(host: LiveNode) -> None:
    host.add_process(42, pinned=None)
    pinned = read_pinned(host, 42, {})
    assert isinstance(pinned, Unknown)
    assert pinned.reason is Reason.NOT_THERE


def test_a_list_without_even_the_kernels_objects_is_noted(host: LiveNode) -> None:
    host.resources = RdmaResources(shares_namespaces=False)
    found = round_of(host)
    assert (found.is_empty, found.shares_namespaces) == (True, False)


def test_no_list_has_its_reason(host: LiveNode) -> None:
    failures: list[Maybe[RdmaResources]] = [RdmaResources(), Unknown(Reason.IO_ERROR, "netlink")]
    host.resources = lambda: failures.pop(0)
    assert isinstance(read_round(host), Unknown)


def test_sums_are_in_whole_pages_without_on_demand_paging() -> None:
    regions = [
        MemoryRegion("mlx5_0", 1, 5001),
        MemoryRegion("mlx5_0", 2, 4 * MIB),
        MemoryRegion("mlx5_0", 3, 16 * MIB, is_odp=True),
        MemoryRegion("mlx5_0", 4, (1 << 64) - 1),
        MemoryRegion("mlx5_1", 5, 0),
        MemoryRegion("mlx5_1", 2, 4 * MIB),
    ]
    found = summed(regions)
    assert found.bytes == 2 * PAGE + 8 * MIB
    assert (found.count, found.on_demand, found.total) == (4, 2, 6)
    assert (found.large_bytes, found.shortest_large) == (8 * MIB, 4 * MIB)
    assert found.without_length == ("mlx5_1",)


NUMBERS = st.integers(0, 3)
THREADS = st.none() | st.integers(40, 45)
DEVICES = st.sampled_from(["mlx5_0", "mlx5_1"])
RESOURCES = st.builds(
    RdmaResources,
    queue_pairs=st.lists(
        st.builds(
            QueuePair,
            DEVICES,
            NUMBERS,
            st.just("RC"),
            st.sampled_from(["RTS", "INIT"]),
            pd=NUMBERS,
            pid=THREADS,
        ),
        max_size=6,
    ).map(tuple),
    regions=st.lists(
        st.builds(
            MemoryRegion, DEVICES, NUMBERS, st.integers(0, 1 << 64), pd=NUMBERS | st.none(), pid=THREADS
        ),
        max_size=6,
    ).map(tuple),
    domains=st.lists(
        st.builds(ProtectionDomain, DEVICES, NUMBERS, NUMBERS | st.none(), THREADS), max_size=4
    ).map(tuple),
    contexts=st.lists(st.builds(RdmaContext, DEVICES, NUMBERS, THREADS), max_size=4).map(tuple),
    left_out=st.integers(0, 2),
)


@pytest.mark.slow
@given(RESOURCES, st.dictionaries(st.integers(40, 45), st.integers(1, 3)))
def test_every_region_has_one_owner_or_is_in_the_rest(
    resources: RdmaResources, groups: dict[int, int]
) -> None:
    found = attribute(resources, groups, {})
    owned = sum(use.own.total + use.inherited.total for use in found.uses.values())
    assert owned + found.unowned_regions == len(resources.regions) + resources.left_out
    assert set(found.uses) <= set(groups.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lists=st.lists(RESOURCES, min_size=4, max_size=4), are_users_equal=st.booleans())
def test_a_round_after_another_one_finds_the_same_as_a_first_one(
    host: LiveNode, lists: list[RdmaResources], are_users_equal: bool
) -> None:
    """Each round reads two lists, which may differ."""
    for thread in range(40, 45):  # 45 is hidden
        host.set_status(thread, 40 + thread % 2, 4 * MIB)
    if are_users_equal:
        lists = [replace(listed, contexts=lists[0].contexts, domains=lists[0].domains) for listed in lists]
    answers = iter((*lists, *lists[2:]))
    host.resources = lambda: next(answers)
    last = round_of(host)
    found = read_round(host, last)
    expected = round_of(host)
    assert isinstance(found, ResourceRound)
    assert (found.ownership, found.pinned) == (expected.ownership, expected.pinned)
    assert found.unsettled == expected.unsettled


# Kinds of queue pairs


@pytest.mark.parametrize("kind", ["RC", "UC", "XRC_INI", "XRC_TGT"])
def test_a_queue_pair_with_a_peer_is_connected_in_rts(kind: str) -> None:
    states = ("RTS", "RTR", "ERR")
    pairs = tuple(QueuePair("mlx5_0", n, kind, state, pid=42) for n, state in enumerate(states))
    (nic,) = attribute(RdmaResources(queue_pairs=pairs), {42: 42}, {}).uses[42].nics
    assert (nic.queue_pairs, nic.ready, nic.merely_open) == (3, 1, 0)


def opened(kind: str, has_region: bool = True) -> RdmaUse:
    """A process with a queue pair in RTS that has no peer."""
    pairs = (QueuePair("rdmap0s0", 1, kind, "RTS", pid=42), QueuePair("rdmap0s0", 2, kind, "INIT", pid=42))
    regions = (MemoryRegion("rdmap0s0", 1, 4 * MIB, 1, 42),) if has_region else ()
    return attribute(RdmaResources(queue_pairs=pairs, regions=regions), {42: 42}, {}).uses[42]


def libraries(*names: str) -> tuple[MappedLibrary, ...]:
    return tuple(MappedLibrary(name, f"/usr/lib/{name}.so", "1.0") for name in names)


NO_ROOT = Unknown(Reason.NEEDS_ROOT, "/proc/42/maps")


@pytest.mark.parametrize("kind", ["UD", "DRIVER"])
def test_a_queue_pair_without_a_peer_is_merely_open(kind: str) -> None:
    use = opened(kind)
    assert (use.queue_pairs, use.ready, use.active, use.nics[0].merely_open) == (2, 0, 0, 1)


@pytest.mark.parametrize(
    ("use", "role", "mapped", "is_used"),
    [
        pytest.param(opened("DRIVER"), Role.NCCL, libraries("libnccl", "libnccl-net"), True, id="nccl"),
        pytest.param(opened("DRIVER"), Role.NCCL, NO_ROOT, True, id="another-users-nccl"),
        pytest.param(opened("DRIVER"), Role.OTHER, libraries("libfabric"), True, id="mpi-on-efa"),
        pytest.param(opened("DRIVER", False), Role.NCCL, libraries("libnccl"), False, id="no-regions"),
        pytest.param(opened("DRIVER"), Role.UCX, libraries("libucp"), False, id="ucx-on-efa"),
        pytest.param(
            opened("DRIVER"),
            Role.NCCL,
            libraries("libfabric", "libplugin_LIBFABRIC"),
            False,
            id="nixl-on-efa",
        ),
        pytest.param(opened("UD"), Role.UCX, libraries("libucp"), False, id="ucx"),
        pytest.param(opened("UD"), Role.NCCL, libraries("libnccl", "libucp"), False, id="ucx-beside-nccl"),
        pytest.param(opened("UD"), Role.PERFTEST, libraries("libibverbs"), True, id="ib_send_bw -c UD"),
        pytest.param(opened("DRIVER"), Role.PERFTEST, (), True, id="ib_send_bw -c SRD"),
    ],
)
def test_what_shows_that_open_queue_pairs_are_in_use(
    use: RdmaUse, role: Role, mapped: Maybe[tuple[MappedLibrary, ...]], is_used: bool
) -> None:
    found = with_used_pairs(use, role, mapped)
    assert (found.active, found.ready) == (is_used, 0)
