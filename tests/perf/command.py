"""The one way in which a benchmark runs a command: with what shows that it did what is measured."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil


class NotMeasured(AssertionError):
    """A command did not do what its row of the table says."""


@dataclass(frozen=True)
class Command:
    """A command, and what it must end with and print; a row without these would measure failures."""

    argv: Sequence[str]
    statuses: Collection[int]  # negative: the signal that ends it
    output: str  # a regular expression that is found in what it prints
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """Start it, with options of Popen."""
        return subprocess.Popen(self.argv, **{"env": {**os.environ, **self.environment}, **options})

    def require(self, status: int, text: str, errors: str = "") -> None:
        """Check what came of it.

        Raises:
            NotMeasured: it ended with another status, or did not print what it must.
        """
        if status not in self.statuses or not re.search(self.output, text):
            told = f"ended with {status} (expected: {sorted(self.statuses)}), and printed {text[:200]!r}"
            raise NotMeasured(
                f"{' '.join(self.argv)[:200]} {told} (expected: {self.output!r}) {errors[:200]}"
            )


@dataclass(frozen=True)
class Taken:
    """What a command took."""

    seconds: float
    cpu_seconds: float  # with its children's
    most_bytes: int  # of memory, of gdrtop's processes together; pages that they share count once
    text: str


def measure(command: Command, with_memory: bool = False) -> Taken:
    """Run a command to its end.

    Raises:
        NotMeasured: see `Command.require`.
    """
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    sizes = [0]
    with tempfile.TemporaryFile() as errors, command.start(stdout=subprocess.PIPE, stderr=errors) as process:
        if with_memory:
            threading.Thread(target=_watch_memory, args=(process, sizes), daemon=True).start()
        assert process.stdout is not None
        text = process.stdout.read().decode(errors="replace")
        status, took = process.wait(), time.perf_counter() - began
        errors.seek(0)
        command.require(status, text, errors.read(1000).decode(errors="replace"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(took, cpu_seconds, max(sizes), text)


def _watch_memory(process: subprocess.Popen[bytes], sizes: list[int]) -> None:
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
