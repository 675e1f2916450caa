"""Lines of the kernel's log in a text, as the answer of dmesg, so that the checks of the log judge them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probes.base.unknown import Reason, Unknown
from probes.checks.gpu import driver
from probes.checks.gpu.devices import LOST_GPU
from probes.checks.live import jobs
from probes.checks.nic import devices
from probes.checks.path import gdr_path
from probes.facts.kernel.log import DMESG, LogKind, recognize, started_driver
from probes.host.protocol import CommandOutput
from probes.nccl.log.facts import Place
from probes.read.pasted_host import gpu_answers
from probes.read.reading import Parsed

_MOST_LINES = 20_000
_NO_TIME = Unknown(Reason.NOT_RECORDED, "the text")
_CHECKS = frozenset(
    check.id
    for area in (driver.XIDS, devices.KERNEL_LOG, jobs.HUNG_TASKS, gdr_path.REFUSALS)
    for check in area.checks
) | {LOST_GPU, "gpu-driver-start-failed", "peermem-invalid-context-flood"}
_OF_GPUS = (LogKind.XID, LogKind.GPU_LOST, LogKind.GPU_DRIVER)
Subject = tuple[LogKind, int | None]


class KernelLogLines:
    """Keeps the lines that the checks look for, with the first place of each kind and Xid."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._gpus: set[str] = set()
        self._first: dict[Subject, Place] = {}

    def take(self, line: str, place: Place) -> bool:
        """Keep a line if it is one of these; return whether it is."""
        message = recognize(line, _NO_TIME)
        if message is None and not started_driver(line):
            return False
        if len(self._lines) < _MOST_LINES:
            self._lines.append(line)
            if message is not None:
                self._first.setdefault((message.kind, message.number), place)
                if message.kind in _OF_GPUS and message.bdf is not None:
                    self._gpus.add(message.bdf)
        return True

    def parsed(self) -> Parsed:
        """Return the lines as the answer of dmesg; their time in the text is not known."""
        return _answer(self._lines, self._gpus) if self._first else Parsed()

    def first_of(self, subjects: Iterable[Subject]) -> Place | None:
        """Return the first line about one of these."""
        places = [self._first[subject] for subject in subjects if subject in self._first]
        return min(places, key=lambda place: place.line, default=None)


def _answer(lines: Iterable[str], gpus: Iterable[str]) -> Parsed:
    text = "".join(f"[?] {line}\n" for line in lines)
    answers: dict[tuple[str, ...], Any] = {("run", *DMESG): CommandOutput(DMESG, 0, text, "")}
    for bdf in gpus:
        answers |= gpu_answers(bdf)
    return Parsed(0, answers=answers, checks=_CHECKS)


def answer_of(line: str) -> Parsed:
    """Return one line as the answer of dmesg."""
    message = recognize(line, _NO_TIME)
    gpus = () if message is None or message.bdf is None else (message.bdf,)
    return _answer((line,), gpus)


def subject_of(text: str) -> Subject | None:
    """Return what a line of the kernel's log is about; None: the checks do not look for it."""
    message = recognize(text, _NO_TIME)
    return None if message is None else (message.kind, message.number)
