"""What has changed on one node between two moments."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from probes.base.frozen import frozen
from probes.fleet.traits import Trait

if TYPE_CHECKING:  # needed only once something may have changed
    from probes.fleet.compare import Fleet
    from probes.fleet.facts import Fact
    from probes.fleet.summary import NodeSummary

LAST_OK = "last ok"  # the earlier moment's name in a comparison
_NOW = "now"  # the later one's if the node has no name


@frozen
class Change:
    """A fact that has another value than before, on one device or several."""

    fact: Fact
    slots: tuple[str, ...]  # devices or names; (): the node itself
    before: str
    now: str


@frozen
class Changes:
    """A node when it last worked, and now."""

    before: NodeSummary
    now: NodeSummary
    changes: tuple[Change, ...]  # what decides the path first
    unread: tuple[tuple[str, tuple[Fact, ...]], ...]  # facts unknown then or now, by the reason


def fingerprint(traits: Iterable[Trait]) -> str:
    """Return a short text that is the same for equal traits."""
    values = repr([(found.fact, str(found.value), found.slot, found.device) for found in traits])
    return f"{zlib.crc32(values.encode('utf-8', 'replace')):08x}-{len(values)}"


def fleet_of(before: NodeSummary, now: NodeSummary) -> Fleet:
    """Return the comparison of two moments of a node; the earlier one is named LAST_OK."""
    from probes.fleet.compare import compare

    name = now.name if now.name != LAST_OK else _NOW
    return compare((replace(before, name=LAST_OK), replace(now, name=name)), by_type=False)


def changes_between(before: NodeSummary, now: NodeSummary) -> Changes:
    """Return what has changed on a node, the most relevant first."""
    return changes_of(fleet_of(before, now), before.name)


def changes_of(fleet: Fleet, name: str) -> Changes:
    """Return the changes that a comparison of two moments of the node of this name shows."""
    before, now = fleet.summaries
    found: list[Change] = []
    for difference in fleet.differences:
        values = {node: kind.value for kind in difference.others for node in kind.nodes}
        found.append(Change(difference.fact, difference.slots, values[before.name], values[now.name]))
    unread: dict[str, dict[Fact, None]] = {}
    for uncompared in fleet.uncompared:
        unread.setdefault(uncompared.reason, {}).update(dict.fromkeys(uncompared.facts))
    return Changes(
        replace(before, name=name),
        replace(now, name=name),
        tuple(found),
        tuple((reason, tuple(facts)) for reason, facts in unread.items()),
    )
