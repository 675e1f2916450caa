"""Words about the node that decide what a message means there."""

import pytest

from probes.messages.message import NODE_WORDS
from probes.read.findings import words_about
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine


@pytest.mark.parametrize(
    ("name", "words", "others"),
    [
        ("hgx-h100", {"infiniband", "nvswitch"}, {"vm", "gb10", "efa"}),
        ("aws-p5", {"efa", "vm"}, {"infiniband"}),
        ("dgx-spark", {"gb10", "roce"}, {"nvswitch"}),
    ],
)
def test_a_node_is_known_by_its_words(name: str, words: set[str], others: set[str]) -> None:
    found = words_about(examine(SimulatedHost(name)))
    assert words <= found <= NODE_WORDS.keys()
    assert not found & others
