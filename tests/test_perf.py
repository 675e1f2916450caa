"""The benchmark's own parts: its comparison, and its big nodes."""

import json
from pathlib import Path

import pytest

from probes.facts.node import probe_node
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.perf.compare import compare, print_comparison
from tests.perf.crowded_node import crowded_node


def test_a_comparison_names_what_got_slower_beyond_the_noise() -> None:
    before = {"quiet": [1.0, 1.01, 1.02], "noisy": [1.0, 1.5, 1.6], "gone": [1.0]}
    after = {"quiet": [1.2, 1.2, 1.21], "noisy": [1.3, 1.4, 1.4], "new": [9.0]}
    (told,) = compare(before, after)
    assert told.startswith("quiet: × 1.20, more than the noise of ± 5 %")


def test_a_comparison_of_equal_files_says_that_nothing_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    rows = [{"what": "cpu", "values": [1.0, 1.1]}, {"what": "x", "values": []}]
    file.write_text(json.dumps({"rows": rows}))
    assert not print_comparison(str(file), str(file))
    assert capsys.readouterr().out == "Nothing has changed beyond the noise.\n"


def test_a_crowded_node_has_what_it_was_asked_for() -> None:
    node = probe_node(SimulatedHost("crowded", description=crowded_node(16, 24, 1000)))
    topology = build(node)
    assert (len(topology.gpus), len(topology.nics)) == (16, 24)
    assert len(topology.paths) == 40 * 39
    assert all(len(nics) == 24 for nics in topology.best_nics.values())
    nearest = [topology.path(gpu, nics[0]).smi for gpu, nics in topology.best_nics.items()]
    assert {getattr(word, "value", "") for word in nearest} == {"PIX"}
