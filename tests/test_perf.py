"""The benchmark's own parts: comparison, big nodes, load, terminals, and the node that lstopo reads."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from probes.facts.node import probe_node
from probes.simulation.host import SimulatedHost
from probes.topology.paths import build
from tests.perf import __main__ as bench
from tests.perf import fleet, live, monitors, scale, system_calls, table, terminal, text_commands
from tests.perf.command import Command, NotMeasured, measure
from tests.perf.compare import compare, print_comparison
from tests.perf.monitors import load
from tests.perf.terminal import RUNNING, Terminal, costs_over
from tests.support.crowded_node import crowded_node
from tests.support.simulated_tree import write_functions, write_tree


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


def test_a_load_of_no_processes_may_end_by_itself() -> None:
    with load(sleeping=0, spinning=0) as pid:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.slow
def test_costs_of_programs_beside_each_other_are_of_the_same_seconds() -> None:
    loud = Terminal(Command(["sh", "-c", "echo started; while :; do echo more; done"], RUNNING, "started"))
    silent = Terminal(Command(["sh", "-c", "echo started; exec sleep 60"], RUNNING, "started"))
    with closing(loud), closing(silent):
        for each in (loud, silent):
            each.wait_for("started")
        silent.read_for(0.5)
        busy, quiet = costs_over((loud, silent), 0.5)
    assert busy.bytes_written > quiet.bytes_written == 0
    assert busy.cpu_seconds > quiet.cpu_seconds == 0


def test_a_program_that_ends_is_not_waited_for() -> None:
    command = Command(["sh", "-c", "echo no GPU"], RUNNING, "Device")
    with closing(Terminal(command)) as ended, pytest.raises(NotMeasured, match="no GPU"):
        ended.wait_for("Device", seconds=1e9)


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


# What every command of the benchmark must print, so that one of them can fail alone.
_PRINTED = """1 \033[?1049h gdrtop Overview GPU1 type="PCIDev" lstopo 2.9 load average CPU cpu NVITOP Device
gdrtop 1 ACTIVE via peermem · 8 of 8 GPUs, GPU0 H100, nvidia_peermem, gdrtop_gpus 8.0, Drain hgx-h100
keeps at most 1 h; gdrtop was terminated; "label": "500 nodes" "label": "2 nodes" "label": "64 nodes"
"label": "20 nodes" "verdicts": {"ACTIVE": 950, "DEGRADED": 50} "unanswered": []
"""
_DOCUMENT = json.dumps({"label": "20 nodes", "unanswered": [], "nodes": [{}] * 20})
_COMMANDS: dict[Callable[[], None], tuple[str, ...]] = {
    bench.bench_first_paint: ("empty_app", "tui --demo"),
    bench.bench_probe: ("--version", "--of xml"),
    bench.bench_running: (
        "tui --demo",
        "mounted",
        "top -d",
        "htop --delay",
        "btop --utf-force",
        "btop --ver",
    ),
    bench.bench_live: ("tui --demo",),
    bench.bench_system_calls: ("mounted",),
    bench.bench_crowded_dashboard: ("crowded_app",),
    bench.bench_text: ("check --demo", "topo", "modules", "tui check", "--one-line", "metrics"),
    bench.bench_scheduler: ("prolog", "verdict"),
    bench.bench_watch: ("watch",),
    bench.bench_log: ("grep",),
    bench.bench_fleet: ("gpu[001-500]", "gpu001,gpu017", "gpu[001-064]", "gpu[001-020]", "--from"),
}
_WITHOUT_COMMANDS = {
    *(bench.bench_sampling, bench.bench_topologies, bench.bench_pci),
    *(bench.bench_hours, bench.bench_recording, bench.bench_remote_live),
    bench.bench_fleet_live,
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave out what takes long, and what this machine may not have."""

    @contextmanager
    def mounted() -> Iterator[tuple[list[str], Path]]:
        yield ["mounted"], tmp_path

    read = terminal.read_together
    monkeypatch.setattr(terminal, "read_together", lambda all_, seconds: read(all_, min(seconds, 0.05)))
    for module in (fleet, live, scale, text_commands):
        monkeypatch.setattr(module, "slowness", lambda: 1.0)
    for module in (monitors, system_calls, text_commands):
        monkeypatch.setattr(module, "mounted_node", mounted)
        monkeypatch.setattr(module, "is_permitted", lambda _: True)
    monkeypatch.setattr(monitors, "_LOADS", (("quiet", 0, 0),))
    for write in ("write_tree", "write_cpus", "write_functions"):
        monkeypatch.setattr(f"tests.support.simulated_tree.{write}", lambda *_: None)
    monkeypatch.setattr("probes.host.machine.local.LocalHost", lambda _: SimulatedHost("hgx-h100"))
    monkeypatch.setattr(monitors, "_program", lambda name: name)
    monkeypatch.setattr(bench.shutil, "which", lambda name: name)
    monkeypatch.setattr(text_commands, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(bench, "LOG_BYTES", 1 << 12)
    monkeypatch.setattr(fleet, "save_answers", lambda *_, **__: "over")
    monkeypatch.setattr(table, "ROWS", [])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", ["exit 3", "silent"])
@pytest.mark.parametrize(
    ("benchmark", "word"), [(benchmark, word) for benchmark, words in _COMMANDS.items() for word in words]
)
def test_a_benchmark_fails_on_a_command_that_fails_or_prints_nothing(
    benchmark: Callable[[], None], word: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Command.start

    def start_other(command: Command, **options: Any) -> subprocess.Popen[bytes]:
        line = " ".join(command.argv)
        status = next(iter(command.statuses))
        if word in line:
            script = 'printf %s "$0"; exit 3' if fault == "exit 3" else f"exit {max(0, status)}"
            process = start(Command(["sh", "-c", script, _PRINTED], (), ""), **options)
            process.wait()
            return process
        printed = _DOCUMENT if "gpu[001-020]" in line else _PRINTED
        script = (
            'while printf %s "$0"; do sleep 0.01; done' if status < 0 else f'printf %s "$0"; exit {status}'
        )
        return start(Command(["sh", "-c", script, printed], (), ""), **options)

    monkeypatch.setattr(Command, "start", start_other)
    with pytest.raises(NotMeasured, match=re.escape(word)):
        benchmark()


def test_every_benchmark_is_known_with_its_commands() -> None:
    assert _COMMANDS.keys() | _WITHOUT_COMMANDS == set(bench.BENCHES)


def test_only_one_module_of_the_benchmark_starts_commands() -> None:
    starting = re.compile(r"Popen\(|subprocess\.(run|call|check_)|os\.(system|spawn|exec|popen)|pty\.spawn")
    files = Path(bench.__file__).parent.glob("*.py")
    assert [file.name for file in files if starting.search(file.read_text())] == ["command.py"]


def test_what_a_command_took_is_of_a_command_that_did_it() -> None:
    assert measure(Command(["echo", "12 nodes"], (0,), r"\d+ nodes")).text == "12 nodes\n"
