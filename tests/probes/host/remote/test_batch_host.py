"""A node that is judged from saved answers."""

from functools import cache

import pytest

from probes.facts.pci.functions import PciFacts
from probes.host.remote.remote_host import Answers, BatchHost, Missing, pack_questions
from probes.host.remote.transport import pack
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine
from tests.support.stand_in import answer
from tui.commands.fleet.check import judge_answers


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
def test_a_link_that_is_slower_than_that_of_the_node_before_is_seen() -> None:
    first, second = answers_of("hgx-h100"), answers_of("hgx-h100+pcie-link-degraded-width")
    widths = []
    for answers in (first, second, first):
        pci = examined(answers).node.pci
        assert isinstance(pci, PciFacts)
        widths.append([str(nic.link) for nic in pci.nics])
    assert widths[0] == widths[2] != widths[1]
