"""The benchmark's own parts: comparison, big nodes, load, terminals, and the node that lstopo reads."""

import importlib
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from probes.facts.node import probe_node
from probes.host.remote.transport import ConnectionFailed
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.perf.__main__ import BENCHES, bench_probe
from tests.perf.compare import compare, print_comparison
from tests.perf.crowded_node import crowded_node
from tests.perf.fleet import bench_fleet
from tests.perf.monitors import load
from tests.perf.table import NotMeasured
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


_WITHOUT_COMMANDS = {
    *(
        "bench_sampling",
        "bench_step_clock",
        "bench_topologies",
        "bench_pci",
        "bench_hours",
        "bench_recording",
    ),
}
_FAILING = {
    "prints nothing": "exit 0",
    "fails": "echo gdrtop GPU1 8 GPUs; exit 3",
    "is killed": 'echo gdrtop GPU1 \'{"verdicts": {}, "unanswered": []}\'; kill -9 $$',
}


@pytest.mark.parametrize("script", _FAILING.values(), ids=_FAILING)
@pytest.mark.parametrize(
    "bench",
    [bench for bench in BENCHES if bench.__name__ not in _WITHOUT_COMMANDS],
    ids=lambda each: each.__name__,
)
def test_a_benchmark_of_a_command_that_does_not_work_fails(
    bench: Callable[[], None], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its budget is kept by doing nothing; this replaces whatever the benchmark starts."""

    class Broken(subprocess.Popen[bytes]):
        def __init__(self, argv: Sequence[str], **options: Any) -> None:
            # Beside which others are measured, a question, and what the answers of nodes are saved with.
            is_saving = bench is bench_fleet and "tests.probes.host.remote.stand_in" in argv
            is_load = "load" in argv or argv[-1] == "true" or is_saving
            super().__init__(argv if is_load else ["sh", "-c", script], **options)

    measured: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", Broken)
    monkeypatch.setattr("tests.perf.__main__.LOG_BYTES", 1 << 12)
    for module in ("__main__", "fleet", "live", "monitors", "scale", "system_calls", "text_commands"):
        rows = importlib.import_module(f"tests.perf.{module}")
        if hasattr(rows, "slowness"):
            monkeypatch.setattr(rows, "slowness", lambda: 1.0)
        monkeypatch.setattr(
            rows, "row", lambda what, measured_, budget, kept, *_: measured.append(what) if kept else None
        )
    if bench is bench_probe and shutil.which("lstopo-no-graphics") is None:
        pytest.skip("it starts lstopo, which is not installed")
    with pytest.raises((NotMeasured, ConnectionFailed, TimeoutError, psutil.Error, OSError, RuntimeError)):
        bench()
    assert not measured
