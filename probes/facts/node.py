"""A node: all facts of one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from probes.base.origin import Origin
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts import gpudirect
from probes.facts.gpu import gpus
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel import modules
from probes.facts.kernel import release as kernel
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.kernel.release import KernelFacts
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system import network_use, numa, platform
from probes.facts.system.network_use import NetworkUse
from probes.facts.system.numa import NumaFacts
from probes.facts.system.platform import PlatformFacts
from probes.host.cuda import CudaGpu
from probes.host.probe_thread import LONGEST_SECONDS, RunningProbe
from probes.host.probe_thread import begin as begin_probe
from probes.host.progress import note
from probes.host.protocol import Host

PROBE_SECONDS = 5.0
# Threads that read many small files at once hinder each other at the interpreter's lock (a third slower on
# 517 PCI functions), so the next probe starts beside the one before only when that one is slow.
PATIENCE_SECONDS = 0.1
_NOT_NEEDED = Unknown(Reason.NOT_THERE, "libcuda", "not asked, because there is no RDMA NIC")


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
    network: Maybe[NetworkUse] = network_use.NOT_ASKED

    @property
    def kernel_release(self) -> Maybe[str]:
        """The running kernel's release, "6.8.0-45-generic"."""
        return self.kernel if isinstance(self.kernel, Unknown) else self.kernel.release


T = TypeVar("T")


def probe_node(host: Host, seconds: float = PROBE_SECONDS) -> Node:
    """Runs every probe, each within `seconds`; none waits for one that is slow but those that need its facts.

    A probe that raises or hangs is an Unknown in its own place.
    """

    def begin(name: str, ask: Callable[[], Maybe[T]]) -> RunningProbe[T]:
        running = begin_probe(host, name, ask)
        running.wait(min(PATIENCE_SECONDS, seconds))
        return running

    taken_at = host.wall_clock()
    # NVML works in its library and in the driver, and so beside all the others.
    nvml_run = begin_probe(host, "nvml", host.nvml)
    pci_run = begin("pci", lambda: pci.probe(host))
    rdma_run = begin("rdma", lambda: rdma.probe(host))
    modules_run = begin("modules", lambda: modules.probe(host))
    kernel_run = begin("kernel", lambda: kernel.probe(host))
    numa_run = begin("numa", lambda: numa.probe(host))
    network_run = begin("network", lambda: network_use.probe(host))
    platform_run = begin("platform", lambda: platform.probe(host))

    pci_facts, nvml_facts = pci_run.answer(seconds), nvml_run.answer(seconds)
    gpu_facts: Maybe[GpuFacts]
    if isinstance(pci_facts, Unknown):
        detail = f"the PCI devices are unknown: {pci_facts}"
        gpu_facts = Unknown(pci_facts.reason, pci_facts.source, detail)
    else:
        found = pci_facts
        gpu_facts = begin_probe(host, "gpus", lambda: gpus.probe(host, found, nvml_facts)).answer(seconds)
    kernel_facts, module_facts = kernel_run.answer(seconds), modules_run.answer(seconds)
    if not isinstance(module_facts, Unknown):
        module_facts = modules.for_cards(module_facts, pci_facts)
    rdma_facts = rdma_run.answer(seconds)
    # CUDA's start may take seconds and wakes sleeping GPUs: beside the NICs' probe, and only where it counts.
    cuda_run = begin_probe(host, "libcuda", host.cuda_gpus) if gpudirect.hardware_of(rdma_facts) else None

    def ask_cuda() -> Maybe[tuple[CudaGpu, ...]]:
        if cuda_run is None:
            return _NOT_NEEDED
        note("libcuda", LONGEST_SECONDS)  # a slow libcuda is given up by its own probe, not with this one
        return cuda_run.answer(seconds)

    direct_run = begin_probe(
        host,
        "gpudirect",
        lambda: gpudirect.probe(host, kernel_facts, module_facts, gpu_facts, rdma_facts, ask_cuda),
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
        network=network_run.answer(seconds),
    )
