"""The type of a machine: nodes of one type are expected to measure the same."""

from __future__ import annotations

from collections import Counter

from probes.examination import Examination
from probes.gpus import GpuFacts
from probes.platform import PlatformFacts
from probes.rdma import RdmaFacts
from probes.text import printable
from probes.unknown import Unknown, known

_LIMIT = 200


def machine_type(examination: Examination) -> str:
    """Its product, GPUs and ports: "Supermicro SYS-821GE-TNHR, 8 × H100, 8 × 400 Gb/s InfiniBand".

    What is not known is left out.
    """
    node = examination.node
    product = known(node.platform.product, "") if isinstance(node.platform, PlatformFacts) else ""
    gpus = node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ()
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    ports = [
        f"{port.rate_gbps:g} Gb/s {known(port.link_layer, '')}".rstrip()
        for device in devices
        if not isinstance(device.bdf, Unknown)
        for port in device.ports
        if not isinstance(port.rate_gbps, Unknown)
    ]
    words = [product, *_counted([gpu.name for gpu in gpus]), *_counted(ports)]
    return printable(", ".join(word for word in words if word), _LIMIT) or "unknown type"


def _counted(names: list[str]) -> list[str]:
    return [f"{count} × {name}" for name, count in sorted(Counter(names).items())]
