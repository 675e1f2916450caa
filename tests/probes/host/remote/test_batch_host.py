"""A node that is judged from saved answers, with what was concluded for the nodes before."""

from collections.abc import Iterator
from functools import cache

import pytest

from probes.facts.pci.functions import PciFacts
from probes.host.probe_table import Recalling
from probes.host.remote import remote_host
from probes.host.remote.remote_host import Answers, BatchHost, Missing, pack_questions
from probes.host.remote.transport import pack
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.stand_in import answer
from tui.commands.fleet.check import judge_answers

NODES = ("hgx-h100", "hgx-h100+acs-on", "hgx-h100", "dgx-a100")


@pytest.fixture(autouse=True)
def nothing_recalled() -> Iterator[None]:
    remote_host._recalled.clear()
    yield
    remote_host._recalled.clear()


@cache
def answers_of(name: str) -> Answers:
    """Ask a simulated node until nothing is missing."""
    host = SimulatedHost(name, clock=lambda: 5000.0)
    answers = Answers("gpu1", is_root=True)
    while isinstance(found := judge_answers(answers), Missing):
        assert not found.failure
        answers.asked.append(pack_questions(found.questions))
        told = [answer(host, question) for question in found.questions]
        clocks = {"monotonic": host.monotonic(), "wall": host.wall_clock()}
        answers.lines.append(pack({"answers": told, **clocks}).strip())
    return answers


def examined(answers: Answers) -> Examination:
    return examine(BatchHost(answers))


@pytest.mark.slow
def test_what_other_nodes_answered_changes_no_conclusion(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {name: answers_of(name) for name in set(NODES)}
    after_others = [examined(saved[name]) for name in NODES]
    assert after_others[0].node.pci is after_others[2].node.pci
    assert after_others[0].config_space is after_others[2].config_space
    monkeypatch.setattr(remote_host, "_MOST_CHARACTERS", 0)
    remote_host._recalled.clear()
    for name, found in zip(NODES, after_others, strict=True):
        alone = examined(saved[name])
        assert alone.node.pci is not found.node.pci
        for fact in ("pci", "rdma", "gpus"):
            assert getattr(alone.node, fact) == getattr(found.node, fact)
        assert alone.config_space == found.config_space
        assert alone.pcie_errors == found.pcie_errors


@pytest.mark.slow
def test_a_link_that_is_slower_than_that_of_the_node_before_is_seen() -> None:
    first, second = answers_of("hgx-h100"), answers_of("hgx-h100+pcie-link-degraded-width")
    widths = []
    for answers in (first, second, first):
        pci = examined(answers).node.pci
        assert isinstance(pci, PciFacts)
        widths.append([str(nic.link) for nic in pci.nics])
    assert widths[0] == widths[2] != widths[1]


def test_few_conclusions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_host, "_MOST_KEYS", 3)
    host = BatchHost(Answers("gpu1"))
    assert isinstance(host, Recalling)
    calls = []
    for key in ("a", "a", "b", "c", "d", "a"):
        host.recall(key, lambda key=key: calls.append(key))  # type: ignore[misc, arg-type]
    assert calls == ["a", "b", "c", "d", "a"]
    assert len(remote_host._recalled) <= 3
