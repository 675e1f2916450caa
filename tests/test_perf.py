"""The benchmark's own parts: comparison, big nodes, load, terminals, and the node that lstopo reads."""

import json
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from probes.facts.node import probe_node
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.perf.compare import compare, print_comparison
from tests.perf.crowded_node import crowded_node
from tests.perf.monitors import load
from tests.perf.terminal import Terminal, costs_over
from tests.simulated_tree import write_functions, write_tree


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


@pytest.mark.slow
def test_a_load_has_the_processes_it_was_asked_for_and_ends_them() -> None:
    with load(sleeping=2, spinning=1) as pid:
        parent = psutil.Process(pid)
        while len(children := parent.children()) < 3:
            assert parent.is_running()
        while sum(child.name() == "sleep" for child in children) < 2:
            assert all(child.is_running() for child in children)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.slow
def test_costs_of_programs_beside_each_other_are_of_the_same_seconds() -> None:
    loud = Terminal(["sh", "-c", "echo started; while :; do echo more; done"])
    silent = Terminal(["sh", "-c", "echo started; exec sleep 60"])
    with closing(loud), closing(silent):
        for terminal in (loud, silent):
            terminal.wait_for(b"started")
        silent.read_for(0.5)
        busy, quiet = costs_over((loud, silent), 0.5)
    assert busy.bytes_written > quiet.bytes_written == 0
    assert busy.cpu_seconds > quiet.cpu_seconds == 0


def test_a_program_that_ends_is_not_waited_for() -> None:
    with closing(Terminal(["sh", "-c", "echo no GPU"])) as terminal, pytest.raises(TimeoutError):
        terminal.wait_for(b"Device", seconds=1e9)


@pytest.mark.slow
def test_lstopo_finds_the_ids_of_every_function_of_the_node(tmp_path: Path) -> None:
    write_tree(SimulatedHost("hgx-h100"), tmp_path)
    write_functions(tmp_path)
    functions = sorted((tmp_path / "sys/bus/pci/devices").iterdir())
    assert len(functions) == 517
    for function in functions:
        assert (function / "vendor").read_text().startswith("0x")
        assert (function / "config").read_bytes()[8:12][1:] != bytes(3)
        assert (function / "subsystem_device").exists()
