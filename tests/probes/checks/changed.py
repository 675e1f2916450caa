"""Examinations with one thing changed, and what one check says of them."""

from collections.abc import Callable
from dataclasses import replace

from probes.checks.finding import Finding, Status
from probes.checks.registry import findings
from probes.examination import Examination, examine
from probes.gpus import Gpu
from probes.kernel_log import parse_log
from probes.nvml import NvmlGpu
from probes.port_health import PortHealth
from probes.rdma import RdmaDevice, RdmaPort
from probes.simulation import SimulatedHost
from probes.unknown import Unknown


def said(name: str, examination: Examination) -> Finding:
    """What the check of this id says."""
    (finding,) = findings(examination, only={name})
    return finding


def status(name: str, examination: Examination) -> Status:
    """How the check of this id ended."""
    return said(name, examination).status


def with_devices(
    examination: Examination, change: Callable[[RdmaDevice], RdmaDevice], *names: str
) -> Examination:
    """RDMA devices changed: those named, or all."""
    rdma = examination.node.rdma
    assert not isinstance(rdma, Unknown)
    devices = tuple(change(one) if not names or one.name in names else one for one in rdma.devices)
    return replace(examination, node=replace(examination.node, rdma=replace(rdma, devices=devices)))


def with_ports(examination: Examination, change: Callable[[RdmaPort], RdmaPort], *names: str) -> Examination:
    """Ports of RDMA devices changed."""
    return with_devices(
        examination, lambda device: replace(device, ports=tuple(change(p) for p in device.ports)), *names
    )


def with_health(
    examination: Examination, change: Callable[[PortHealth], PortHealth], *names: str
) -> Examination:
    """The health of ports changed."""
    facts = examination.port_health
    assert not isinstance(facts, Unknown)
    ports = {key: change(port) if not names or key[0] in names else port for key, port in facts.ports.items()}
    return replace(examination, port_health=replace(facts, ports=ports))


def with_gpus(examination: Examination, change: Callable[[Gpu], Gpu], *indices: int) -> Examination:
    """GPUs changed: those of these indices, or all."""
    facts = examination.node.gpus
    assert not isinstance(facts, Unknown)
    gpus = tuple(change(one) if not indices or one.index in indices else one for one in facts.gpus)
    return replace(examination, node=replace(examination.node, gpus=replace(facts, gpus=gpus)))


def with_nvml(examination: Examination, change: Callable[[NvmlGpu], NvmlGpu]) -> Examination:
    """What NVML says of every GPU changed."""

    def changed(gpu: Gpu) -> Gpu:
        assert not isinstance(gpu.nvml, Unknown)
        return replace(gpu, nvml=change(gpu.nvml))

    return with_gpus(examination, changed)


def with_log(examination: Examination, *lines: str) -> Examination:
    """Another kernel log."""
    text = "".join(f"<4>[{10 + number}.000000] {line}\n" for number, line in enumerate(lines))
    return replace(examination, kernel_log=parse_log(text, "dmesg"))


def two_examinations(name: str, apart_seconds: float = 60.0) -> Examination:
    """The second of two examinations of a simulated node."""
    now = 1000.0
    host = SimulatedHost(name, clock=lambda: now)
    before = examine(host)
    now += apart_seconds
    return examine(host, before=before)
