"""The ranks of a job that differ from all others, on whichever node they run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.fleet.job_model import Difference, FleetRank
from probes.live.model.activity import BUSY_PERCENT, IDLE_PERCENT
from probes.live.model.sample import GDR_WORDS, NO_PATH, OddOne, PathWord, path_phrase
from probes.live.odd_ranks import odd_members

H = TypeVar("H", bound=Hashable)
_OF_NODE = ("link", "place", "cpus")  # aspects that a node compares by itself
_NAMED = 3


def different_ranks(ranks: Sequence[FleetRank], waits: bool) -> list[Difference]:
    """Return the ranks that are stopped, use another path or another number of NICs, or whose GPU is idle.

    `waits`: the job moves no data, and its ranks wait; only then GPUs are compared. A rank of which a fact is
    unknown is left out of that comparison.
    """
    return [
        *_different(ranks, "state", _is_stopped, _state_phrase),
        *_different(ranks, "path", _use, _use_phrase),
        *_different(ranks, "path", _gdr_path, path_phrase),
        *_different(ranks, "nics", _nics, _nics_phrase),
        *(_different(ranks, "gpu", _is_busy, _gpu_phrase) if waits else ()),
    ]


def _different(
    ranks: Sequence[FleetRank],
    aspect: str,
    value: Callable[[FleetRank], H | None],
    phrase: Callable[[H, bool], str],
) -> Iterator[Difference]:
    """Yield the few ranks with another value than all others; one difference for a node with only such ranks.

    `phrase`: what a rank with this value does, or several of them.
    """
    members = [rank for rank in ranks if value(rank) is not None]
    odd = odd_members(members, value) or _odd_node(members, value)
    if odd is None:
        return
    rest = f"the other {len(members) - len(odd[0])} ranks of this job {phrase(odd[1], True)}"
    groups: dict[tuple[str, H | None], list[FleetRank]] = {}
    for rank in odd[0]:
        groups.setdefault((rank.node, value(rank)), []).append(rank)
    for (node, here), group in sorted(groups.items(), key=lambda item: len(item[1])):
        assert here is not None
        all_are_likely = aspect == "path" and all(rank.process.path.is_likely for rank in group)
        likely = "likely " * all_are_likely
        keys = tuple(rank.key for rank in group)
        if len(group) == 1:
            name = group[0].name
            yield Difference(aspect, name, f"{name} {likely}{phrase(here, False)}; {rest}", keys)
            continue
        on_node = sum(rank.node == node for rank in ranks)
        count = f"all {on_node}" if len(group) == on_node else f"{len(group)} of {on_node}"
        sentence = f"{count} ranks on {node} {likely}{phrase(here, True)}; {rest}"
        yield Difference(aspect, node, sentence, keys)


def _odd_node(
    members: Sequence[FleetRank], value: Callable[[FleetRank], H | None]
) -> tuple[list[FleetRank], H] | None:
    """Return the ranks of the few nodes that differ where each node is uniform, as `odd_members` does."""
    by_node = {rank.node: rank for rank in members}
    if any(value(rank) != value(by_node[rank.node]) for rank in members):
        return None
    odd = odd_members(list(by_node.values()), value)
    nodes = {rank.node for rank in odd[0]} if odd else set()
    return None if odd is None else ([rank for rank in members if rank.node in nodes], odd[1])


def _is_stopped(rank: FleetRank) -> bool | None:
    return rank.process.is_stopped


def _state_phrase(is_stopped: bool, of_many: bool) -> str:
    return f"{'are' if of_many else 'is'} {'stopped' if is_stopped else 'running'}"


def _use(rank: FleetRank) -> str | None:
    """Return the path of a rank, the same for both kinds of GPUDirect RDMA."""
    word = rank.process.path.word
    return None if word in NO_PATH else "" if word in GDR_WORDS else word.value


def _use_phrase(path: str, of_many: bool) -> str:
    if path:
        return path_phrase(PathWord(path), of_many)
    return f"{'use' if of_many else 'uses'} GPUDirect RDMA"


def _gdr_path(rank: FleetRank) -> PathWord | None:
    word = rank.process.path.word
    return word if word in GDR_WORDS else None


def _nics(rank: FleetRank) -> int | None:
    return None if rank.process.path.word is PathWord.TCP else len(rank.process.ready_nics)


def _nics_phrase(count: int, of_many: bool) -> str:
    nics = f"{plural(count, 'NIC')}{' each' * of_many}" if count else "no NIC"
    return f"{'use' if of_many else 'uses'} {nics}"


def _is_busy(rank: FleetRank) -> bool | None:
    load = rank.gpu_percent
    if isinstance(load, Unknown) or not rank.gpus or IDLE_PERCENT < load < BUSY_PERCENT:
        return None
    return load >= BUSY_PERCENT


def _gpu_phrase(is_busy: bool, of_many: bool) -> str:
    load = "busy" if is_busy else "idle"
    return f"have {load} GPUs" if of_many else f"has {'a' if is_busy else 'an'} {load} GPU"


def differences_of_nodes(odd: Mapping[str, Iterable[OddOne]], ranks: Sequence[FleetRank]) -> list[Difference]:
    """Return what nodes find by themselves, such as a slow PCIe link; the same on several nodes once."""
    nodes: dict[tuple[str, str], list[str]] = {}
    pids: dict[tuple[str, str], int | None] = {}
    for node, members in odd.items():
        for member in members:
            if member.aspect in _OF_NODE:
                nodes.setdefault((member.aspect, member.sentence), []).append(node)
                pids[node, member.sentence] = member.pid
    return [
        Difference(
            aspect,
            names[0],
            f"{some_names(names)}: {sentence}",
            tuple(rank.key for rank in ranks if pids.get((rank.node, sentence)) == rank.process.pid),
        )
        for (aspect, sentence), names in nodes.items()
    ]


def some_names(names: Sequence[str]) -> str:
    """Return the first names: "gpu001, gpu002, gpu003 and 5 more"."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
