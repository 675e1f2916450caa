"""A node: all facts of one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from probes import gpudirect, gpus, kernel, modules, numa, pci, platform, rdma
from probes.gpudirect import GpuDirectFacts
from probes.gpus import DriverFacts, GpuFacts
from probes.host import Host, Origin
from probes.kernel import KernelFacts
from probes.modules import ModuleFacts
from probes.numa import NumaFacts
from probes.pci import PciFacts
from probes.platform import PlatformFacts
from probes.rdma import RdmaFacts
from probes.text import printable
from probes.unknown import Maybe, Reason, Unknown

PROBE_SECONDS = 5.0


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


class _Stuck:
    """Probes that have not come back, host by host: a second thread is not sent after the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: WeakKeyDictionary[Host, dict[str, float]] = WeakKeyDictionary()

    def began(self, host: Host, name: str) -> float | None:
        """Notes a start; the time of the earlier start if that one has not come back."""
        with self._lock:
            running = self._since.setdefault(host, {})
            if name in running:
                return running[name]
            running[name] = time.monotonic()
            return None

    def ended(self, host: Host, name: str) -> None:
        """Notes that a probe came back."""
        with self._lock:
            self._since.get(host, {}).pop(name, None)


_STUCK = _Stuck()


class _Running(Generic[T]):
    """One probe in a daemon thread of its own: leaving the program does not wait for it."""

    def __init__(self, host: Host, name: str, ask: Callable[[], Maybe[T]]) -> None:
        self._host = host
        self._name = name
        self._ask = ask
        self._result: Maybe[T] | None = None
        self._done = threading.Event()
        self._earlier = _STUCK.began(host, name)
        if self._earlier is None:
            threading.Thread(target=self._run, name=f"probe {name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._ask()
        except Exception as error:  # whatever a probe does, it spoils its own panel and nothing else
            told = printable(f"the probe failed: {type(error).__name__}: {error}", 200)
            self._result = Unknown(Reason.MALFORMED, self._name, told)
        _STUCK.ended(self._host, self._name)
        self._done.set()

    def result(self, until: float) -> Maybe[T]:
        """What it found, waiting until that time of time.monotonic() at most."""
        if self._earlier is not None:
            waited = time.monotonic() - self._earlier
            return Unknown(Reason.TIMED_OUT, self._name, f"no answer for {waited:.0f} s")
        began = time.monotonic()
        if not self._done.wait(max(0.0, until - began)):
            return Unknown(Reason.TIMED_OUT, self._name, f"no answer within {until - began:.0f} s")
        assert self._result is not None
        return self._result


def probe_node(host: Host, seconds: float = PROBE_SECONDS) -> Node:
    """Runs every probe side by side, each within `seconds`; those that build on others come after them."""
    taken_at = host.wall_clock()
    until = time.monotonic() + seconds
    pci_run = _Running(host, "pci", lambda: pci.probe(host))
    modules_run = _Running(host, "modules", lambda: modules.probe(host))
    rdma_run = _Running(host, "rdma", lambda: rdma.probe(host))
    numa_run = _Running(host, "numa", lambda: numa.probe(host))
    kernel_run = _Running(host, "kernel", lambda: kernel.probe(host))
    platform_run = _Running(host, "platform", lambda: platform.probe(host))
    pci_facts = pci_run.result(until)
    gpu_facts: Maybe[GpuFacts] = Unknown(Reason.NOT_THERE, "gpus", "the PCI devices could not be read")
    if not isinstance(pci_facts, Unknown):
        found = pci_facts
        until = time.monotonic() + seconds
        gpu_facts = _Running(host, "gpus", lambda: gpus.probe(host, found)).result(until)
    kernel_facts, module_facts = kernel_run.result(until), modules_run.result(until)
    rdma_facts = rdma_run.result(until)
    direct: Maybe[GpuDirectFacts] = Unknown(
        Reason.NOT_THERE, "gpudirect", "it follows from facts that are unknown"
    )
    if not isinstance(kernel_facts, Unknown) and not isinstance(module_facts, Unknown):
        known_kernel, known_modules = kernel_facts, module_facts
        no_driver = Unknown(Reason.NOT_THERE, "gpus", "the PCI devices could not be read")
        nothing = GpuFacts(DriverFacts(no_driver, no_driver, no_driver, no_driver, str(no_driver)), ())
        known_gpus = nothing if isinstance(gpu_facts, Unknown) else gpu_facts
        direct = _Running(
            host,
            "gpudirect",
            lambda: gpudirect.probe(host, known_kernel, known_modules, known_gpus, rdma_facts),
        ).result(time.monotonic() + seconds)
    return Node(
        origin=host.origin,
        taken_at=taken_at,
        platform=platform_run.result(until),
        kernel=kernel_facts,
        numa=numa_run.result(until),
        pci=pci_facts,
        gpus=gpu_facts,
        rdma=rdma_facts,
        modules=module_facts,
        gpudirect=direct,
    )
