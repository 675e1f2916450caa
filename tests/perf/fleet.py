"""gdrtop fleet over a stand-in for ssh that costs little, and the live view of a node that is elsewhere."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from probes.base.frozen import frozen
from probes.host.remote.remote_host import RemoteHost
from probes.host.remote.transport import Target
from probes.live.live_sampler import LiveSampler
from probes.live.verdict import examine_with_jobs
from probes.snapshot.node_reader import NodeReader
from tests.perf.table import NotMeasured, best, require, row, slowness
from tests.probes.host.remote.saved_answers import save_answers

_ODD = {"gpu017": "hgx-h100+acs-on", "gpu233": "hgx-h100+port-down"}
_SECONDS = 20.0  # 500 nodes, on two cores
_BYTES = 200e6
_MANY, _RATIO = 64, 3.0
_SAVED, _SAVED_SECONDS = 1000, 2.0
_LIVE_BYTES, _ROUNDS = 20_000, 2.0  # a second of the live view
_LIVE_SECONDS = 30


def bench_fleet() -> None:
    """gdrtop fleet on simulated nodes behind a stand-in for ssh, whose answers were saved; by the clock."""
    with tempfile.TemporaryDirectory() as directory:
        # All else takes longer on a slow machine: by the seconds of a fast one a slow node would not be slow.
        over = save_answers(Path(directory), "hgx-h100", _ODD, seconds=slowness())
        fleet = [sys.executable, "-m", "tui", "fleet", "--json", "--over", over, "-w"]
        crowd = taken([*fleet, "gpu[001-500]"], 500)
        normal = crowd.seconds / slowness()
        row(
            "gdrtop fleet, 500 nodes",
            f"{crowd.seconds:.1f} s, {normal:.1f} at full speed, {crowd.most_bytes / 1e6:.0f} MB",
            f"{_SECONDS:.0f} s, {_BYTES / 1e6:.0f} MB",
            normal <= _SECONDS and crowd.most_bytes <= _BYTES,
        )
        slowest = best(lambda: taken([*fleet, next(iter(_ODD))], 1).seconds, 3)  # one of the many
        many = best(lambda: taken([*fleet, f"gpu[001-{_MANY:03}]"], _MANY).seconds, 3)
        row(
            f"gdrtop fleet, {_MANY} nodes",
            f"{many:.1f} s, the slowest of them {slowest:.1f} s: × {many / slowest:.1f}",
            f"× {_RATIO:.0f}",
            many <= _RATIO * slowest,
        )
        answer = taken([*fleet, "gpu001"], 1).text
        saved = Path(directory) / "saved"
        saved.mkdir()
        for number in range(_SAVED):
            (saved / f"{number:04}.json").write_text(answer.replace("gpu001", f"gpu{number:04}"))
        seconds = best(lambda: taken([*fleet[:5], "--from", str(saved)], _SAVED).seconds, 3)
        normal = seconds / slowness()
        row(
            f"gdrtop fleet --from, {_SAVED:,} saved answers",
            f"{seconds:.1f} s, {normal:.1f} at full speed",
            f"{_SAVED_SECONDS:.0f} s",
            normal <= _SAVED_SECONDS,
        )


@frozen
class Taken:
    """What a command took."""

    seconds: float
    most_bytes: int  # of memory, of gdrtop's processes together; pages that they share count once
    text: str


def taken(argv: Sequence[str], nodes: int) -> Taken:
    """Run gdrtop fleet, and return what it took.

    Raises:
        NotMeasured: fewer nodes have answered, or one of them has no verdict.
    """
    began = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sizes = [0]
        threading.Thread(target=_watch_memory, args=(process, sizes), daemon=True).start()
        text = process.stdout.read()
    require(argv, process.returncode, text, '"verdicts"')
    document = json.loads(text)
    verdicts = document["verdicts"]
    if sum(verdicts.values()) != nodes or "UNKNOWN" in verdicts or document["unanswered"]:
        raise NotMeasured(f"{verdicts} of {nodes} nodes, {len(document['unanswered'])} unanswered")
    return Taken(time.perf_counter() - began, max(sizes), text)


def _watch_memory(process: subprocess.Popen[str], sizes: list[int]) -> None:
    """Add what the process and those that it forked take, until it ends; not the transports."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        program = parent.exe()
        while process.poll() is None:
            size = 0
            for each in (parent, *parent.children()):
                with contextlib.suppress(psutil.Error):
                    if each.exe() == program:
                        size += each.memory_full_info().pss
            sizes.append(size)
            time.sleep(0.2)


def bench_remote_live() -> None:
    """A node that is elsewhere, read once a second as the Live screen does."""
    transport = (sys.executable, "-m", "tests.probes.host.remote.stand_in", "", "{host}")
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
    row(
        "live view of another node, a second",
        f"{sent / 1e3:.1f} kB sent, {received / 1e3:.1f} kB received, {rounds:.2f} rounds",
        f"{_LIVE_BYTES / 1e3:.0f} kB, {_ROUNDS:.0f} rounds",
        sent + received <= _LIVE_BYTES and rounds <= _ROUNDS,
    )
