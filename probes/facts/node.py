"""A node: the facts that the overview needs, read at one moment."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts import gpudirect_probe
from probes.facts.gpu import gpus
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.gpudirect import GpuDirectFacts, hardware_of
from probes.facts.kernel import modules
from probes.facts.kernel import release as kernel
from probes.facts.kernel.modules import ModuleFacts
from probes.facts.kernel.release import KernelFacts
from probes.facts.network import network_dependencies
from probes.facts.network.network_dependencies import NetworkUse
from probes.facts.pci import functions as pci
from probes.facts.pci.functions import PciFacts, with_management
from probes.facts.rdma import cxi, data_direct
from probes.facts.rdma import devices as rdma
from probes.facts.rdma.data_direct import DataDirectFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.system import numa, platform
from probes.facts.system.numa import NumaFacts
from probes.facts.system.platform import PlatformFacts
from probes.host.nvml import NvmlFacts
from probes.host.probe_table import Probe, ProbedFields, Probing, probes_of
from probes.host.probe_thread import LONGEST_SECONDS, note
from probes.host.protocol import CudaGpu, Host

PROBE_SECONDS = 5.0
_NOT_NEEDED = Unknown(Reason.NOT_THERE, "libcuda", "not queried, because there is no RDMA NIC")
_probed: ProbedFields[Probing] = ProbedFields()


def _gpus(run: Probing) -> Maybe[GpuFacts]:
    functions = run.answer("pci", PciFacts)
    if isinstance(functions, Unknown):
        detail = f"the PCI devices are unknown: {functions}"
        return Unknown(functions.reason, functions.source, detail)
    return gpus.probe(run.host, functions, run.answer("nvml", NvmlFacts))


def _rdma(run: Probing) -> Maybe[RdmaFacts]:
    pci = run.answer("pci", PciFacts)
    return cxi.add_slingshot(run.host, rdma.for_functions(rdma.probe(run.host), pci), pci)


def _cuda(run: Probing) -> Maybe[tuple[CudaGpu, ...]]:
    """Ask libcuda only if there is a NIC: its start may take seconds and wakes sleeping GPUs."""
    found = run.answer("rdma", RdmaFacts)
    if isinstance(found, Unknown) and found.reason is not Reason.NOT_THERE:
        return Unknown(found.reason, "libcuda", f"not queried, because the RDMA devices are unknown: {found}")
    return run.host.cuda_gpus() if hardware_of(found) else _NOT_NEEDED


def _gpudirect(run: Probing) -> Maybe[GpuDirectFacts]:
    def ask_cuda() -> Maybe[tuple[CudaGpu, ...]]:
        note("libcuda", LONGEST_SECONDS)  # a slow libcuda is given up by its own probe, not with this one
        return run.answer("libcuda", tuple)

    return gpudirect_probe.probe(
        run.host,
        run.answer("kernel", KernelFacts),
        run.answer("modules", ModuleFacts),
        run.answer("gpus", GpuFacts),
        run.answer("rdma", RdmaFacts),
        ask_cuda,
        run.answer("data_direct", DataDirectFacts),
    )


@frozen
class Node:
    """The facts of a node. A fact that could not be read is an Unknown with the reason."""

    origin: Origin
    taken_at: float  # seconds since 1970, the host's clock
    platform: Maybe[PlatformFacts] = _probed("platform", lambda run: platform.probe(run.host))
    kernel: Maybe[KernelFacts] = _probed(
        "kernel", lambda run: kernel.probe(run.host), directories=("/proc", "/sys")
    )
    numa: Maybe[NumaFacts] = _probed("numa", lambda run: numa.probe(run.host), directories=("/sys",))
    pci: Maybe[PciFacts] = _probed(
        "pci",
        lambda run: map_known(pci.probe(run.host), lambda found: with_management(run.host, found)),
        directories=("/sys",),
    )
    gpus: Maybe[GpuFacts] = _probed("gpus", _gpus, needs=("pci", "nvml"))
    rdma: Maybe[RdmaFacts] = _probed("rdma", _rdma, needs=("pci",), directories=("/sys",))
    modules: Maybe[ModuleFacts] = _probed(
        "modules",
        lambda run: modules.for_cards(modules.probe(run.host), run.answer("pci", PciFacts)),
        needs=("pci",),
        directories=("/proc",),
    )
    data_direct: Maybe[DataDirectFacts] = _probed(
        "Data Direct",
        lambda run: data_direct.probe(run.host, run.answer("pci", PciFacts), run.answer("rdma", RdmaFacts)),
        needs=("pci", "rdma"),
    )
    gpudirect: Maybe[GpuDirectFacts] = _probed(
        "gpudirect", _gpudirect, needs=("kernel", "modules", "gpus", "rdma", "data_direct")
    )
    network: Maybe[NetworkUse] = _probed(
        "network", lambda run: network_dependencies.probe_use(run.host), directories=("/proc",)
    )

    @property
    def kernel_release(self) -> Maybe[str]:
        """The running kernel's release, "6.8.0-45-generic"."""
        return self.kernel if isinstance(self.kernel, Unknown) else self.kernel.release

    @property
    def known_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs; () where they are unknown."""
        return () if isinstance(self.gpus, Unknown) else self.gpus.gpus

    @property
    def rdma_devices(self) -> tuple[RdmaDevice, ...]:
        """The RDMA devices in this network namespace; () where they are unknown."""
        return () if isinstance(self.rdma, Unknown) else self.rdma.devices


# NVML and libcuda work in their libraries and in the driver, and so in parallel with all other probes.
_LIBRARIES: dict[str, Probe[Probing]] = {
    "nvml": Probe("nvml", lambda run: run.host.nvml(), in_background=True),
    "libcuda": Probe("libcuda", _cuda, needs=("rdma",), in_background=True),
}
PROBES = {**_LIBRARIES, **probes_of(Node)}


def host_name(node: Node) -> Maybe[str]:
    """Return the node's host name; of a redacted recording its token."""
    return node.platform.hostname if isinstance(node.platform, PlatformFacts) else node.platform


def derivation(node: Node) -> str:
    """Return the head of a text that is meant to be saved: "Written by gdrtop from node gpu01"."""
    name, label = printable(known(host_name(node), "?"), 64), printable(node.origin.label, 200)
    match node.origin.source:
        case Source.SIMULATED:
            return f"Written by gdrtop from SIMULATED node {label}: an example, derived from no real machine"
        case Source.RECORDED:
            return f"Written by gdrtop from node {name}, recorded in {label}"
        case Source.TREE:
            return f"Written by gdrtop from node {name}, read from {label}"
    return f"Written by gdrtop from node {name}"


def probe_node(host: Host, seconds: float = PROBE_SECONDS) -> Node:
    """Run every probe, each within `seconds`; only a probe that needs another's facts waits for it."""
    taken_at = host.wall_clock()
    answers = Probing(host, seconds).run(PROBES)
    facts = {name: answer for name, answer in answers.items() if name not in _LIBRARIES}
    return Node(origin=host.origin, taken_at=taken_at, **facts)
