"""Examinations with one fact changed, and the finding of one check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probes.base.unknown import Unknown
from probes.checks.registry import findings
from probes.facts.gpu.gpus import Gpu
from probes.facts.kernel.log import parse_log
from probes.facts.kernel.module_files import ModuleFileFacts
from probes.facts.kernel.modules import ModuleFacts, ModuleState
from probes.facts.rdma.devices import RdmaDevice, RdmaPort
from probes.facts.rdma.port_health import PortHealth
from probes.facts.system.services import ServiceFacts
from probes.host.nvml import NvmlGpu
from probes.queries.finding import Finding, Status
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine


def said(name: str, examination: Examination) -> Finding:
    """Return the finding of the check with this id."""
    (finding,) = findings(examination, only={name})
    return finding


def found_in(examination: Examination, **options: Any) -> dict[str, Finding]:
    """Return what is found, by the id of the check."""
    all_findings = findings(examination, **options)
    return {finding.id: finding for finding in all_findings if finding.status is Status.FOUND}


def status(name: str, examination: Examination) -> Status:
    """Return the status of the check with this id."""
    return said(name, examination).status


def with_devices(
    examination: Examination, change: Callable[[RdmaDevice], RdmaDevice], *names: str
) -> Examination:
    """Change RDMA devices: those named, or all."""
    rdma = examination.node.rdma
    assert not isinstance(rdma, Unknown)
    devices = tuple(
        change(device) if not names or device.name in names else device for device in rdma.devices
    )
    node = replace(examination.node, rdma=replace(rdma, devices=devices))
    return replace(examination, node=node, topology=replace(examination.topology, node=node))


def with_ports(examination: Examination, change: Callable[[RdmaPort], RdmaPort], *names: str) -> Examination:
    """Change the ports of RDMA devices."""
    return with_devices(
        examination, lambda device: replace(device, ports=tuple(change(p) for p in device.ports)), *names
    )


def with_health(
    examination: Examination, change: Callable[[PortHealth], PortHealth], *names: str
) -> Examination:
    """Change the health of ports."""
    facts = examination.port_health
    assert not isinstance(facts, Unknown)
    ports = {key: change(port) if not names or key[0] in names else port for key, port in facts.ports.items()}
    return replace(examination, port_health=replace(facts, ports=ports))


def with_gpus(examination: Examination, change: Callable[[Gpu], Gpu], *indices: int) -> Examination:
    """Change GPUs: those of these indices, or all."""
    facts = examination.node.gpus
    assert not isinstance(facts, Unknown)
    gpus = tuple(change(gpu) if not indices or gpu.index in indices else gpu for gpu in facts.gpus)
    return replace(examination, node=replace(examination.node, gpus=replace(facts, gpus=gpus)))


def with_nvml(examination: Examination, change: Callable[[NvmlGpu], NvmlGpu]) -> Examination:
    """Change the NVML facts of every GPU."""

    def changed(gpu: Gpu) -> Gpu:
        assert not isinstance(gpu.nvml, Unknown)
        return replace(gpu, nvml=change(gpu.nvml))

    return with_gpus(examination, changed)


def with_log(examination: Examination, *lines: str) -> Examination:
    """Replace the kernel log."""
    text = "".join(f"<4>[{10 + number}.000000] {line}\n" for number, line in enumerate(lines))
    return replace(examination, kernel_log=parse_log(text, "dmesg"))


def two_examinations(name: str, apart_seconds: float = 60.0) -> Examination:
    """Return the second of two examinations of a simulated node."""
    now = 1000.0
    host = SimulatedHost(name, clock=lambda: now)
    before = examine(host)
    now += apart_seconds
    return examine(host, before=before)


def with_module(examination: Examination, name: str, **facts: Any) -> Examination:
    """Change a module of the ladder."""
    modules = examination.node.modules
    assert isinstance(modules, ModuleFacts)
    changed = {**modules.modules, name: replace(modules.modules[name], **facts)}
    return replace(examination, node=replace(examination.node, modules=replace(modules, modules=changed)))


def without(examination: Examination, *names: str) -> Examination:
    """Unload modules."""
    for name in names:
        examination = with_module(examination, name, state=ModuleState.NOT_LOADED)
    return examination


def with_kernel(examination: Examination, **facts: Any) -> Examination:
    """Change facts of the kernel."""
    kernel = examination.node.kernel
    assert not isinstance(kernel, Unknown)
    return replace(examination, node=replace(examination.node, kernel=replace(kernel, **facts)))


def with_file(examination: Examination, name: str, **facts: Any) -> Examination:
    """Change the modinfo facts of a module's file."""
    found = examination.module_files
    assert isinstance(found, ModuleFileFacts)
    assert not isinstance(found.files, Unknown)
    files = {**found.files, name: replace(found.files[name], **facts)}
    return replace(examination, module_files=replace(found, files=files))


def with_service(examination: Examination, name: str, **facts: Any) -> Examination:
    """Change a service."""
    services = examination.services
    assert isinstance(services, ServiceFacts)
    changed = {**services.services, name: replace(services.services[name], **facts)}
    return replace(examination, services=ServiceFacts(changed))
