"""What became of a registration: for each GPU with each NIC, whether its memory registers on each path.

"registers" says that the GPU driver and the NIC accepted the memory. Whether data arrives, only a bandwidth
test shows: behind an IOMMU or ACS redirect, a registration succeeds too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from probes.bandwidth.registration.errors import (
    compute_mode,
    cuda_error,
    dmabuf_error,
    errno_text,
    peer_memory_error,
    setup_error,
)
from probes.bandwidth.registration.trial import GpuTrial, NicTrial
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.queries.unproven_paths import unproven_pairs
from probes.snapshot.examination import Examination

# The calls as tui/bandwidth/registration/child.py names them, in its order.
NIC_CALLS = ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "host memory")
COMPUTE_MODE, SUPPORTED = "compute mode", ("peer memory supported", "DMA-BUF supported")
GPU_CALLS = (
    "cuInit",
    "cuDeviceGetByPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
)
EXPORT = "cuMemGetHandleForAddressRange"
LIBRARIES = ("libibverbs", "libcuda")
DMABUF, PEER_MEMORY = "DMA-BUF", "peer memory"
_FUNCTIONS = {DMABUF: "ibv_reg_dmabuf_mr", PEER_MEMORY: "ibv_reg_mr", "host memory": "ibv_reg_mr"}
_DETAIL_CHARACTERS = 200


class Outcome(Enum):
    """What became of one path of a pair; the value is shown."""

    REGISTERS = "registers"
    REFUSED = "refused"
    NOT_TRIED = "not tried"
    NO_ANSWER = "no answer"


@frozen
class Answer:
    """What the program reports about a call."""

    nic: str  # "": a call to libcuda
    call: str
    value: int | str | None  # CUresult or errno, 0: success; a text: what is missing; None: it begins


@frozen
class PathResult:
    """One path of a pair."""

    outcome: Outcome
    why: str = ""
    function: str = ""  # that refused, or did not return
    error: str = ""  # "ENOMEM (12)", "CUDA error 801"


@frozen
class PairResult:
    """One GPU with one NIC."""

    gpu: str  # "GPU0"
    bdf: str
    nic: str
    dmabuf: PathResult
    peer_memory: PathResult
    doubt: str = ""  # why data may be wrong although the pair registers

    @property
    def paths(self) -> tuple[tuple[str, PathResult], ...]:
        """Return both paths with their names."""
        return ((DMABUF, self.dmabuf), (PEER_MEMORY, self.peer_memory))

    @property
    def outcome(self) -> Outcome:
        """Return the better path's outcome: a NIC needs only one of them."""
        both = (self.dmabuf.outcome, self.peer_memory.outcome)
        return next(outcome for outcome in _BEST_FIRST if outcome in both)


_BEST_FIRST = (Outcome.REGISTERS, Outcome.NO_ANSWER, Outcome.REFUSED, Outcome.NOT_TRIED)


def parse_answer(text: str) -> Answer | None:
    """Parse a line of the program; None if it is something else."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parts, list) or len(parts) != 3:
        return None
    nic, call, value = parts
    if not isinstance(nic, str) or not isinstance(call, str) or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return Answer(nic, call, printable(value, _DETAIL_CHARACTERS))
    is_number = isinstance(value, int) and abs(value) < 1 << 31
    return Answer(nic, call, value) if value is None or is_number else None


def results_of(
    trial: GpuTrial, answers: Iterable[Answer], ended: str, examination: Examination
) -> tuple[PairResult, ...]:
    """Return the outcome for each NIC; `ended`: why the program ended early, "" if it did not."""
    values = {(answer.nic, answer.call): answer.value for answer in answers}
    doubts = unproven_pairs(examination)
    pairs = (_Pair(trial, nic, values, ended, examination) for nic in trial.nics)
    return tuple(replace(pair.result(), doubt=doubts.get((trial.bdf, pair.nic), "")) for pair in pairs)


def not_tried(trial: GpuTrial, why: str) -> tuple[PairResult, ...]:
    """Return that nothing was tried with a GPU."""
    path = PathResult(Outcome.NOT_TRIED, why)
    return tuple(PairResult(trial.label, trial.bdf, nic.name, path, path) for nic in trial.nics)


class _Pair:
    """One GPU with one NIC, and what the program reported."""

    def __init__(
        self,
        trial: GpuTrial,
        nic: NicTrial,
        values: dict[tuple[str, str], int | str | None],
        ended: str,
        examination: Examination,
    ) -> None:
        self._trial, self._nic, self._values = trial, nic, values
        self._ended, self._examination = ended, examination

    @property
    def nic(self) -> str:
        return self._nic.name

    def result(self) -> PairResult:
        trial, nic = self._trial, self._nic
        return PairResult(trial.label, trial.bdf, nic.name, self._path(DMABUF), self._path(PEER_MEMORY))

    def _path(self, path: str) -> PathResult:
        why = self._trial.not_tried or self._nic.not_tried
        if why:
            return PathResult(Outcome.NOT_TRIED, why)
        key = (self._nic.kernel_name, path)
        if key not in self._values:
            return self._earlier(path)
        value, function = self._values[key], _FUNCTIONS[path]
        if value == 0:
            return PathResult(Outcome.REGISTERS)
        if not isinstance(value, int):
            return self._without_number(value, function)
        nic, examination = self._nic.name, self._examination
        why = (
            dmabuf_error(value, self._trial.bdf, nic, examination)
            if path == DMABUF
            else peer_memory_error(value, nic, examination)
        )
        return PathResult(Outcome.REFUSED, why, function, errno_text(value))

    def _without_number(self, value: str | None, function: str) -> PathResult:
        if value is None:
            return PathResult(Outcome.NO_ANSWER, self._ended or "the program crashed", function)
        return PathResult(Outcome.NOT_TRIED, value, function)

    def _earlier(self, path: str) -> PathResult:
        """Return what kept the program from trying this path."""
        for library in LIBRARIES:
            if isinstance(missing := self._values.get(("", library)), str):
                return PathResult(Outcome.NOT_TRIED, missing)
        for call in NIC_CALLS:
            value = self._values.get((self._nic.kernel_name, call), 0)
            if value == 0:
                continue
            function = _FUNCTIONS.get(call, call)
            if not isinstance(value, int):
                return self._without_number(value, function)
            why = setup_error(call, value, self._examination)
            return PathResult(Outcome.NOT_TRIED, why, function, errno_text(value))
        return self._gpu_error(path)

    def _gpu_error(self, path: str) -> PathResult:
        calls = (*GPU_CALLS, EXPORT) if path == DMABUF else GPU_CALLS
        for call in calls:
            value = self._values.get(("", call), 0)
            if value == 0:
                continue
            if not isinstance(value, int):
                return self._without_number(value, call)
            outcome = Outcome.REFUSED if call == EXPORT else Outcome.NOT_TRIED
            return PathResult(outcome, cuda_error(value), call, f"CUDA error {value}")
        if isinstance(mode := self._values.get(("", COMPUTE_MODE)), int) and mode:
            return PathResult(Outcome.NOT_TRIED, compute_mode(mode))
        if all(self._values.get(("", name)) == 0 for name in SUPPORTED):
            return PathResult(Outcome.NOT_TRIED, "its driver says that it supports neither path")
        return PathResult(Outcome.NOT_TRIED, self._ended or "the program ended early")
