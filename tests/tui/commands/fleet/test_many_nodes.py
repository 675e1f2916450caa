"""Five hundred nodes at once: the odd ones are found, and the memory is bounded."""

import sys
from pathlib import Path

import pytest

from tests.perf.command import Command, measure
from tests.support.saved_answers import save_answers

ODD = {"gpu017": "hgx-h100+acs-on", "gpu233": "hgx-h100+port-down"}


@pytest.mark.slow
def test_the_odd_nodes_of_five_hundred_are_found_in_little_memory(tmp_path: Path) -> None:
    over = save_answers(tmp_path, "hgx-h100", ODD)
    argv = [sys.executable, "-m", "tui", "fleet", "-w", "gpu[001-500]", "--over", over]
    fleet = measure(Command(argv, (1,), "\n500 nodes: "), with_memory=True)
    _, first, rest = fleet.text.split("\n", 2)
    assert first == "500 nodes: 498 ACTIVE, 2 DEGRADED"
    lines = rest.splitlines()
    assert [line.split()[-1] for line in lines if "DEGRADED via" in line] == ["gpu017", "gpu233"]
    assert "acs-redirect-enabled" in rest
    assert "ib-port-not-active" in rest
    assert any(line.endswith("gpu[001-016,018-232,234-500] (498)") for line in lines)
    assert 0 < fleet.most_bytes < 200e6
