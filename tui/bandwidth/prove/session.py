"""Registers the memory of GPUs with NICs, one GPU after the other, each in a process of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext

from probes.bandwidth.model.command import Refused
from probes.bandwidth.prove import (
    GPU_SECONDS,
    Answer,
    GpuTrial,
    PairResult,
    not_tried,
    parse_answer,
    plan_registration,
    results_of,
)
from probes.base.origin import Source
from probes.host.protocol import Host
from probes.snapshot.examination import Examination
from tui.actions.guards import no_actions_here
from tui.bandwidth.impact_check import with_users
from tui.bandwidth.processes import LocalProcessStarter, ToolProcess
from tui.bandwidth.prove import child
from tui.runtime.lock import ActionLock, LockTaken

Start = Callable[[GpuTrial, float], ToolProcess]
"""Starts the program for a GPU; it is stopped after so many seconds."""
_WAIT_SECONDS = 0.2
_LIBRARIES = ("libcuda.so.1", "libibverbs.so.1")
_CANCELED = "canceled"
_MOST_ANSWERS = 4096  # of a GPU; eight GPUs with ten NICs have 60 each


class RegistrationSession:
    """One registration at a time; `run` blocks."""

    def __init__(self, host: Host, read_only: bool = False, start: Start | None = None) -> None:
        """`start` starts the program; by default the one that fits the host."""
        self._host, self._read_only = host, read_only
        self._start = start or self._start_on_node
        self._stopped = threading.Event()

    @property
    def refusal(self) -> str:
        """Return why nothing can be registered on this host, or ""."""
        if self._host.origin.source is Source.REMOTE:
            return "memory is not registered over a connection; run gdrtop on the node itself"
        return no_actions_here(self._host.origin, self._read_only)

    def run(
        self,
        examination: Examination,
        trials: Iterable[GpuTrial],
        on_results: Callable[[tuple[PairResult, ...]], object],
    ) -> tuple[PairResult, ...] | Refused:
        """Try the GPUs in order, and report the results of each; return all of them."""
        if self.refusal:
            return Refused(self.refusal)
        is_live = self._host.origin.source is Source.LIVE
        results: list[PairResult] = []
        try:
            with ActionLock() if is_live else nullcontext():
                for trial in trials:
                    of_gpu = self._try(examination, trial)
                    results += of_gpu
                    on_results(of_gpu)
        except LockTaken as taken:
            return Refused(str(taken))
        return tuple(results)

    def stop(self) -> None:
        """Stop it; may be called from any thread."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Return whether it was stopped."""
        return self._stopped.is_set()

    def _try(self, examination: Examination, trial: GpuTrial) -> tuple[PairResult, ...]:
        if not trial.is_tried:
            return results_of(trial, (), "", examination)
        if self.is_stopped:
            return not_tried(trial, _CANCELED)
        if not trial.users and self._host.origin.source is Source.LIVE:
            planned = plan_registration(with_users(self._host, examination), trial.bdf)
            if not isinstance(planned, Refused) and planned[0].users:
                return not_tried(trial, f"a job has started on it ({planned[0].users})")
        process = self._start(trial, GPU_SECONDS)
        answers: list[Answer] = []
        while (ended := process.ended) is None:
            for line in process.lines(_WAIT_SECONDS):
                answer = parse_answer(line)
                if answer is not None and len(answers) < _MOST_ANSWERS:
                    answers.append(answer)
            if self._stopped.is_set():
                process.end()
        return results_of(trial, answers, ended.why, examination)

    def _start_on_node(self, trial: GpuTrial, seconds: float) -> ToolProcess:
        if self._host.origin.source is Source.LIVE:
            program = ("python3", "-I", "-S", child.__file__, trial.bdf, *_LIBRARIES, *trial.words)
            # The interpreter of gdrtop itself, which need not be on the trusted path.
            return LocalProcessStarter(lambda _: sys.executable).start(program, seconds)
        from probes.simulation.host import SimulatedHost
        from tui.bandwidth.simulated_processes import SimulatedProcessStarter

        assert isinstance(self._host, SimulatedHost)
        begun = self._host.begin_registration(trial.bdf, trial.words)
        return SimulatedProcessStarter(self._host).follow(begun, seconds)
