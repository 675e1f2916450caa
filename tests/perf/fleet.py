"""gdrtop fleet over a stand-in for ssh that costs little, and the live view of a node that is elsewhere."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from probes.base.unknown import known
from probes.fleet.sampler import Begun
from probes.fleet.summary import NodeSummary
from probes.host.remote.fan_out import FanOut, FanOutOptions
from probes.host.remote.remote_host import Answers, Missing, QuestionLists, RemoteHost
from probes.host.remote.transport import Target
from probes.live.job_examination import examine_with_jobs
from probes.live.live_sampler import LiveSampler
from probes.snapshot.node_reader import NodeReader
from tests.perf.command import Command, measure
from tests.perf.table import best, row, slowness
from tests.support.saved_answers import save_answers
from tui.commands.fleet.check import judge_answers

_ODD = {"gpu017": "hgx-h100+acs-on", "gpu233": "hgx-h100+port-down"}
_SECONDS = 20.0  # 500 nodes, on two cores
_BYTES = 200e6
_MANY, _RATIO = 64, 3.0
_SAVED, _DISTINCT, _SAVED_SECONDS = 1000, 20, 2.0
_LIVE_BYTES, _ROUNDS = 20_000, 2.0  # a second of the live view
_LIVE_SECONDS = 30
_LIVE_SAMPLES, _LIVE_RATIO = 12, 4.0  # of CPU time
_LINES, _LINES_SECONDS, _LINES_BYTES = 10_000, 30.0, 400e6  # of nodes that judged themselves


def bench_fleet() -> None:
    """gdrtop fleet on simulated nodes behind a stand-in for ssh, whose answers were saved; by the clock.

    What is judged from files are JSON documents: a recording takes a tenth of a second, as the node itself.
    """
    with tempfile.TemporaryDirectory() as directory:
        # All else takes longer on a slow machine: by the seconds of a fast one a slow node would not be slow.
        over = save_answers(Path(directory), "hgx-h100", _ODD, seconds=slowness())
        fleet = [sys.executable, "-m", "tui", "fleet", "--json", "--over", over, "-w"]
        crowd = measure(_judging([*fleet, "gpu[001-500]"], '"label": "500 nodes"'), with_memory=True)
        normal = crowd.seconds / slowness()
        row(
            "gdrtop fleet, 500 nodes",
            f"{crowd.seconds:.1f} s, {normal:.1f} at full speed, {crowd.most_bytes / 1e6:.0f} MB",
            f"{_SECONDS:.0f} s, {_BYTES / 1e6:.0f} MB",
            normal <= _SECONDS and crowd.most_bytes <= _BYTES,
        )
        # One of the many, and a plain one: its answers are to what a plain node makes gdrtop ask.
        two = _judging([*fleet, f"gpu001,{next(iter(_ODD))}"], '"label": "2 nodes"')
        slowest = best(lambda: measure(two).seconds, 3)
        all_of_them = _judging([*fleet, f"gpu[001-{_MANY:03}]"], f'"label": "{_MANY} nodes"')
        many = best(lambda: measure(all_of_them).seconds, 3)
        row(
            f"gdrtop fleet, {_MANY} nodes",
            f"{many:.1f} s, the slowest and one more {slowest:.1f} s: × {many / slowest:.1f}",
            f"× {_RATIO:.0f}",
            many <= _RATIO * slowest,
        )
        some = measure(_judging([*fleet, f"gpu[001-{_DISTINCT:03}]"], f'"{_DISTINCT} nodes"')).text
        document = json.loads(some)
        saved = Path(directory) / "saved"
        saved.mkdir()
        for number in range(_SAVED):
            node = {**document["nodes"][number % _DISTINCT], "name": f"node{number:04}"}
            (saved / f"node{number:04}.json").write_text(json.dumps({**document, "nodes": [node]}))
        judging = [*fleet[:4], "--json", "--from", str(saved)]
        seconds = measure(_judging(judging, f'"verdicts": {{"ACTIVE": {_SAVED * 19 // 20},')).seconds
        normal = seconds / slowness()
        row(
            f"gdrtop fleet --from, {_SAVED:,} saved documents",
            f"{seconds:.1f} s, {normal:.1f} at full speed",
            f"{_SAVED_SECONDS:.0f} s",
            normal <= _SAVED_SECONDS,
        )
        lines = Path(directory) / "lines"
        with lines.open("w", encoding="ascii") as out:
            for number in range(_LINES):
                node = document["nodes"][number % _DISTINCT]
                out.write(f"gpu{number:05}: {json.dumps({'nodes': [node]})}\n")
        piped = ["sh", "-c", 'exec "$@" <"$0"', str(lines), *fleet[:4], "--rows", "--from", "-"]
        of_lines = measure(Command(piped, (1,), f"gpu{_LINES - 1:05} "), with_memory=True)
        normal = of_lines.seconds / slowness()
        row(
            f"gdrtop fleet --from -, {_LINES:,} nodes that judged themselves",
            f"{of_lines.seconds:.1f} s, {normal:.1f} at full speed, {of_lines.most_bytes / 1e6:.0f} MB",
            f"{_LINES_SECONDS:.0f} s, {_LINES_BYTES / 1e6:.0f} MB",
            normal <= _LINES_SECONDS and of_lines.most_bytes <= _LINES_BYTES,
        )


def _judging(argv: list[str], output: str) -> Command:
    """Return a command that judges all its nodes, of which some are degraded."""
    return Command(argv, (1,), output + r'[\s\S]*"unanswered": \[\]')


def bench_fleet_live() -> None:
    """CPU time of a further node in `gdrtop fleet live`, against judging it in `gdrtop fleet check`."""
    transport = (sys.executable, "-m", "tests.support.stand_in", "", "{host}")
    lists = QuestionLists(60.0)
    begun = Begun()
    for name in ("gpu001", "gpu002"):
        began = time.process_time()
        host = RemoteHost(Target(name, transport))
        host.read_ahead(begun, lists)
        for number in range(_LIVE_SAMPLES):
            if number:
                time.sleep(1.0)
            sample = begun[name].sample()
        spent = time.process_time() - began
        host.close()
        assert len(known(sample.sample.processes, ())) == 8
    judging: list[float] = []

    def judged(answers: Answers) -> NodeSummary | Missing:
        began = time.thread_time()
        found = judge_answers(answers)
        judging.append(time.thread_time() - began)
        return found

    targets = [Target(f"gpu{number:03}", transport) for number in range(6)]
    with ThreadPoolExecutor(1) as executor:
        FanOut(targets, judged, executor, lambda *_: None, FanOutOptions(1, 600.0)).run()
    check = min(judging[-5:])  # the first node was asked in several rounds
    row(
        f"gdrtop fleet live, a further node, {_LIVE_SAMPLES} samples",
        f"{spent * 1e3:.0f} ms CPU, a check {check * 1e3:.0f} ms: × {spent / check:.1f}",
        f"× {_LIVE_RATIO:.0f}",
        spent <= _LIVE_RATIO * check,
    )


def bench_remote_live() -> None:
    """A node that is elsewhere, read once a second as the Live screen does."""
    transport = (sys.executable, "-m", "tests.support.stand_in", "", "{host}")
    host = RemoteHost(Target("gpu001", transport))
    host.read_ahead(examine_with_jobs)
    reader, live = NodeReader(host), LiveSampler()
    node = reader.probe()
    assert node is not None
    counts: list[tuple[int, int, int]] = []
    for _ in range(_LIVE_SECONDS + 1):
        live.sample(host, node, reader.read())
        reader.probe()
        connection = host.connection
        assert connection is not None
        counts.append((connection.sent_bytes, connection.received_bytes, connection.rounds))
        time.sleep(1.0)
    host.close()
    begun = counts[len(counts) - 1 - _LIVE_SECONDS]
    sent, received, rounds = (
        (last - first) / _LIVE_SECONDS for first, last in zip(begun, counts[-1], strict=True)
    )
    assert min(sent, received, rounds) > 0
    row(
        "live view of another node, a second",
        f"{sent / 1e3:.1f} kB sent, {received / 1e3:.1f} kB received, {rounds:.2f} rounds",
        f"{_LIVE_BYTES / 1e3:.0f} kB, {_ROUNDS:.0f} rounds",
        sent + received <= _LIVE_BYTES and rounds <= _ROUNDS,
    )
