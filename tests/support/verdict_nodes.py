"""Nodes and readings for the tests of the verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from probes.base.unknown import Maybe, Reason, Unknown
from probes.checks.judgment import conclude
from probes.checks.path.gdr_path import AREA, GPUS
from probes.checks.registry import findings_of, run_checks
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, MemoryPeer, PathState, PeermemReading, Requirement
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.node import Node, probe_node
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.rdma.devices import RdmaFacts
from probes.facts.system.platform import Environment, PlatformFacts
from probes.queries.finding import Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.rates import Reading
from probes.snapshot.verdict import State, Usability, Verdict, assess
from probes.topology.paths import build

ABSENT = Unknown(Reason.NOT_THERE, "absent")
DENIED = Unknown(Reason.NEEDS_ROOT, "/sys/kernel/debug")
NEEDS_OPEN = "DMA-BUF needs the open kernel modules"
NOT_LOADED = "nvidia_peermem is not loaded"


@cache
def simulated(name: str) -> Node:
    return probe_node(SimulatedHost(name), seconds=60.0)


def state_of(path: GdrPath, usable: Maybe[bool], lack: str = "") -> PathState:
    return PathState(path, usable, (Requirement("a condition", usable, "evidence", lack),))


def direct(
    dmabuf: Maybe[bool] = True,
    peermem: Maybe[bool] = False,
    in_use: Maybe[bool] = DENIED,
    nics: dict[str, Maybe[bool]] | None = None,
) -> GpuDirectFacts:
    preferred = GdrPath.DMABUF if dmabuf is True else GdrPath.PEERMEM if peermem is True else None
    able = {f"mlx5_{n}": dmabuf for n in range(10)}
    return GpuDirectFacts(
        state_of(GdrPath.DMABUF, dmabuf, NEEDS_OPEN),
        state_of(GdrPath.PEERMEM, peermem, NOT_LOADED),
        preferred,
        able | (nics or {}),
        in_use,
    )


def a_node(facts: GpuDirectFacts | None = None, name: str = "hgx-h100", **parts: Any) -> Node:
    return replace(simulated(name), gpudirect=facts or direct(), **parts)


def reading_of(
    refcnt: Maybe[int] = 0,
    peers: Maybe[tuple[MemoryPeer, ...]] = ABSENT,
    states: dict[tuple[str, int], Maybe[str]] | None = None,
) -> Reading:
    return Reading(0.0, {}, ABSENT, PeermemReading(refcnt, peers), {}, states or {})


def judged(node: Node, usability: Usability) -> Verdict:
    """Return the verdict, with the cause of a finding about GPUs without a NIC as its reason."""
    examination: Any = SimpleNamespace(
        node=node, usability=usability, topology=build(node), distribution=ABSENT, port_health=ABSENT
    )
    starts = [check for check in AREA.checks if check.id == "cuda-fails-to-start"]
    found = findings_of(run_checks(examination, [*starts, *GPUS.checks]), examination)
    verdict = conclude(usability, found)
    causes = [finding.cause for finding in found if finding.status is Status.FOUND]
    return replace(verdict, reason=causes[0]) if causes and usability.state is not State.UNKNOWN else verdict


def verdict_of(node: Node, reading: Reading | None = None) -> Verdict:
    return judged(node, assess(node, build(node), reading_of() if reading is None else reading))


def with_ports(node: Node, state: Maybe[str], *names: str) -> Node:
    """Return the node with the ports of these devices (default: all) in this state."""
    assert isinstance(node.rdma, RdmaFacts)
    devices = [
        replace(device, ports=tuple(replace(port, state=state) for port in device.ports))
        if not names or device.name in names
        else device
        for device in node.rdma.devices
    ]
    return replace(node, rdma=RdmaFacts(tuple(devices)))


def with_gpu(node: Node, index: int, **facts: Any) -> Node:
    assert isinstance(node.gpus, GpuFacts)
    gpus = [replace(gpu, **facts) if gpu.index == index else gpu for gpu in node.gpus.gpus]
    return replace(node, gpus=replace(node.gpus, gpus=tuple(gpus)))


def with_gpus(node: Node, **facts: Any) -> Node:
    assert isinstance(node.gpus, GpuFacts)
    for index in range(len(node.gpus.gpus)):
        node = with_gpu(node, index, **facts)
    return node


def without(node: Node, kind: PciKind) -> Node:
    """Return the node without functions of this kind."""
    assert isinstance(node.pci, PciFacts)
    assert isinstance(node.gpus, GpuFacts)
    left = {bdf: function for bdf, function in node.pci.functions.items() if function.kind is not kind}
    node = replace(node, pci=replace(node.pci, functions=left))
    if kind is PciKind.GPU:
        return replace(node, gpus=replace(node.gpus, gpus=()))
    return replace(node, rdma=ABSENT)


def with_module(node: Node, name: str, state: ModuleState) -> Node:
    assert isinstance(node.modules, ModuleFacts)
    module = replace(node.modules.modules[name], state=state)
    return replace(node, modules=replace(node.modules, modules={**node.modules.modules, name: module}))


def in_place(node: Node, place: Environment) -> Node:
    """Return the node in this environment; bare metal has no hypervisor."""
    assert isinstance(node.platform, PlatformFacts)
    hypervisor = node.platform.hypervisor if place is Environment.VIRTUAL_MACHINE else ABSENT
    return replace(node, platform=replace(node.platform, environment=place, hypervisor=hypervisor))


def driven_by(node: Node, kind: PciKind, driver: str) -> Node:
    """Return the node with all its GPUs or NICs bound to a driver."""
    assert isinstance(node.pci, PciFacts)
    functions = {
        bdf: replace(function, driver=driver) if function.kind is kind else function
        for bdf, function in node.pci.functions.items()
    }
    return replace(node, pci=replace(node.pci, functions=functions))


def without_nvlink(node: Node) -> Node:
    return with_gpus(node, nvlinks=0, nvlink_peers=())


def nearest(node: Node, index: int) -> list[str]:
    """Return the NICs that serve a GPU."""
    topology = build(node)
    gpu = topology.gpus[index].id
    words = ("PIX", "PXB", "P2C")
    return [
        nic for nic in topology.best_nics[gpu] if getattr(topology.paths[gpu, nic].nccl, "value", "") in words
    ]
