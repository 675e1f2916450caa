"""A node: all facts of one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from probes import gpudirect, gpus, kernel, modules, numa, pci, platform, rdma
from probes.gpudirect import GpuDirectFacts
from probes.gpus import GpuFacts
from probes.host import Host
from probes.kernel import KernelFacts
from probes.modules import ModuleFacts
from probes.numa import NumaFacts
from probes.origin import Origin
from probes.pci import PciFacts
from probes.platform import PlatformFacts
from probes.rdma import RdmaFacts
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown

PROBE_SECONDS = 5.0
# Threads that read many small files at once hinder each other at the interpreter's lock (a third slower on
# 517 PCI functions), so the next probe starts beside the one before only when that one is slow.
PATIENCE_SECONDS = 0.1


@dataclass(frozen=True)
class Node:
    """Every fact that was read, each probe's or the reason why that probe gave none."""

    origin: Origin
    taken_at: float  # seconds since 1970, the host's clock
    platform: Maybe[PlatformFacts]
    kernel: Maybe[KernelFacts]
    numa: Maybe[NumaFacts]
    pci: Maybe[PciFacts]
    gpus: Maybe[GpuFacts]
    rdma: Maybe[RdmaFacts]
    modules: Maybe[ModuleFacts]
    gpudirect: Maybe[GpuDirectFacts]


T = TypeVar("T")


class _Running(Generic[T]):
    """One probe in a daemon thread of its own: leaving the program does not wait for it."""

    def __init__(self, host: Host, name: str, ask: Callable[[], Maybe[T]]) -> None:
        self._host = host
        self._name = name
        self._ask = ask
        self._began = time.monotonic()
        self._done = threading.Event()
        self._answer: Maybe[T] = Unknown(Reason.TIMED_OUT, name)

    def start(self) -> None:
        """Starts the thread."""
        try:
            threading.Thread(target=self._run, name=f"probe {self._name}", daemon=True).start()
        except RuntimeError as error:  # no more threads to be had
            self._end(self._failure(error))

    def wait(self, seconds: float) -> None:
        """Waits for the probe, at most that long."""
        self._done.wait(seconds)

    def answer(self, seconds: float) -> Maybe[T]:
        """What it found, waiting until `seconds` after its start at most."""
        if self._done.wait(max(0.0, self._began + seconds - time.monotonic())):
            return self._answer
        silent = time.monotonic() - self._began
        return Unknown(Reason.TIMED_OUT, self._name, f"no answer for {silent:.0f} s")

    def _run(self) -> None:
        try:
            answer = self._ask()
        except Exception as error:  # whatever a probe does, it spoils its own panel and nothing else
            answer = self._failure(error)
        self._end(answer)

    def _failure(self, error: Exception) -> Unknown:
        reason = Reason.IO_ERROR if isinstance(error, OSError) else Reason.MALFORMED
        told = printable(f"the probe failed: {type(error).__name__}: {error}", 200)
        return Unknown(reason, self._name, told)

    def _end(self, answer: Maybe[T]) -> None:
        self._answer = answer
        with _LOCK:
            _RUNNING.pop((id(self._host), self._name), None)
        self._done.set()


# Probes that have not come back yet, by host and name. A read that hangs in the kernel cannot be ended: the
# next round asks after the same one instead of sending another after it. An id is not given out again while
# its host is here.
_RUNNING: dict[tuple[int, str], _Running[Any]] = {}
_LOCK = threading.Lock()


def _begin(host: Host, name: str, ask: Callable[[], Maybe[T]]) -> _Running[T]:
    with _LOCK:
        running: _Running[T] | None = _RUNNING.get((id(host), name))
        if running is not None:
            return running
        running = _RUNNING[id(host), name] = _Running(host, name, ask)
    running.start()
    return running


def probe_node(host: Host, seconds: float = PROBE_SECONDS) -> Node:
    """Runs every probe, each within `seconds`; none waits for one that is slow but those that need its facts.

    A probe that raises or hangs is an Unknown in its own place.
    """

    def begin(name: str, ask: Callable[[], Maybe[T]]) -> _Running[T]:
        running = _begin(host, name, ask)
        running.wait(min(PATIENCE_SECONDS, seconds))
        return running

    taken_at = host.wall_clock()
    # NVML works in its library and in the driver, and so beside all the others.
    nvml_run = _begin(host, "nvml", host.nvml)
    pci_run = begin("pci", lambda: pci.probe(host))
    rdma_run = begin("rdma", lambda: rdma.probe(host))
    modules_run = begin("modules", lambda: modules.probe(host))
    kernel_run = begin("kernel", lambda: kernel.probe(host))
    numa_run = begin("numa", lambda: numa.probe(host))
    platform_run = begin("platform", lambda: platform.probe(host))

    pci_facts, nvml_facts = pci_run.answer(seconds), nvml_run.answer(seconds)
    gpu_facts: Maybe[GpuFacts]
    if isinstance(pci_facts, Unknown):
        detail = f"the PCI devices are unknown: {pci_facts}"
        gpu_facts = Unknown(pci_facts.reason, pci_facts.source, detail)
    else:
        found = pci_facts
        gpu_facts = _begin(host, "gpus", lambda: gpus.probe(host, found, nvml_facts)).answer(seconds)
    kernel_facts, module_facts = kernel_run.answer(seconds), modules_run.answer(seconds)
    rdma_facts = rdma_run.answer(seconds)
    direct_run = _begin(
        host,
        "gpudirect",
        lambda: gpudirect.probe(host, kernel_facts, module_facts, gpu_facts, rdma_facts),
    )
    return Node(
        origin=host.origin,
        taken_at=taken_at,
        platform=platform_run.answer(seconds),
        kernel=kernel_facts,
        numa=numa_run.answer(seconds),
        pci=pci_facts,
        gpus=gpu_facts,
        rdma=rdma_facts,
        modules=module_facts,
        gpudirect=direct_run.answer(seconds),
    )
