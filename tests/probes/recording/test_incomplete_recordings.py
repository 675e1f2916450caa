"""What a recording does not hold, or a node does not answer, is unknown: it is never absent, and never ok."""

from collections.abc import Iterable
from typing import Any

import pytest

from probes.base.unknown import Reason
from probes.simulation.host import SimulatedHost
from tests.probes.recording.incomplete import (
    RefusingHost,
    Removed,
    contradictions,
    groups,
    judged,
    recorded_moment,
    replayed,
    single_questions,
)
from tests.support.pilot import SteppedClock
from tests.support.tiers import share, usual

NODES = (
    *("hgx-h100", "dgx-a100", "aws-p5", "slingshot", "gb200", "pcie-l40s", "cloud-vm"),
    "hgx-h100+acs-on",
    "hgx-h100+xid-79-fell-off-bus",
    "dgx-a100+port-down",
    "dgx-a100+fabric-manager-down-absent,perftest-without-dmabuf",
    "gb200+no-gdr-path",
    "pcie-l40s+roce-gid-wrong,memlock-login",
)
USUAL = ("gb200", "dgx-a100+port-down", "pcie-l40s+roce-gid-wrong,memlock-login")
FEW, MORE = (1,), (2, 3)  # depths: everything below /sys; everything below /sys/class/net, …


def nodes(*fast: str) -> list[Any]:
    """Return the nodes as parameters; those that are not `fast` are in the slow tier."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in NODES]


def share_of(name: str, choices: Iterable[Removed]) -> list[Removed]:
    """Return a share of the choices, another one for the next node: most nodes are asked the same."""
    return share(choices, turn=NODES.index(name), parts=len(NODES) - 1)


def without(name: str, choices: Iterable[Removed]) -> dict[str, str]:
    """Return the first question of each choice whose loss makes gdrtop say something else."""
    moment = recorded_moment(name)
    complete = judged(replayed(moment, frozenset()))
    return {
        text: " ".join((question.kind, *question.subject))
        for removed in share_of(name, choices)
        for question in sorted(removed)[:1]
        for text in contradictions(complete, judged(replayed(moment, removed)))
    }


def refused(name: str, reason: Reason, choices: Iterable[Removed]) -> dict[str, str]:
    """Return the same for a node that answers with this reason."""
    complete = judged(SimulatedHost(name, clock=SteppedClock()))
    return {
        text: " ".join((question.kind, *question.subject))
        for removed in share_of(name, choices)
        for question in sorted(removed)[:1]
        for text in contradictions(
            complete, judged(RefusingHost(SimulatedHost(name, clock=SteppedClock()), removed, reason))
        )
    }


@pytest.mark.parametrize("name", nodes("pcie-l40s+roce-gid-wrong,memlock-login"))
def test_a_recording_without_a_group_of_answers_says_nothing_else(name: str) -> None:
    assert without(name, groups(recorded_moment(name), FEW)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*USUAL, "slingshot", "aws-p5", "hgx-h100+acs-on"])
def test_a_recording_without_a_smaller_group_of_answers_says_nothing_else(name: str) -> None:
    assert without(name, groups(recorded_moment(name), MORE)) == {}


@pytest.mark.parametrize("name", nodes())
def test_a_recording_without_one_answer_says_nothing_else(name: str) -> None:
    assert without(name, single_questions(recorded_moment(name))) == {}


# Whether this user may open a file is known when the answer is that root is needed.
_ACCESS = ("readable", "writable")


@pytest.mark.slow
@pytest.mark.parametrize("name", nodes("gb200"))
@pytest.mark.parametrize("reason", usual([Reason.NEEDS_ROOT, Reason.TIMED_OUT], [Reason.NEEDS_ROOT]))
def test_a_node_that_does_not_answer_says_nothing_else(name: str, reason: Reason) -> None:
    moment = recorded_moment(name)
    choices = (
        frozenset(question for question in group if question.kind not in _ACCESS)
        for group in groups(moment, FEW)
    )
    assert refused(name, reason, choices) == {}
