"""Which NIC or GPU of a node a component of the history is."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Unknown, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaFacts, port_name

_NO_GUID = "0000:0000:0000:0000"


@frozen
class Identity:
    """A component, by what stays when devices are renamed."""

    id: str
    name: str
    is_gpu: bool
    bdf: str


def identities_of(node: Node) -> dict[str, Identity]:
    """Return the ports of a node by name, and its GPUs by BDF."""
    found: dict[str, Identity] = {}
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    for device in devices:
        bdf, guid = known(device.bdf, ""), known(device.node_guid, "")
        begin = guid if guid and guid != _NO_GUID else bdf or device.name
        for port in device.ports:
            name = port_name(device.name, port.number)
            found[name] = Identity(f"{begin}/{port.number}", name, is_gpu=False, bdf=bdf)
    for gpu in node.gpus.gpus if isinstance(node.gpus, GpuFacts) else ():
        name = gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU {gpu.index}"
        found[gpu.bdf] = Identity(known(gpu.uuid, gpu.bdf), name, is_gpu=True, bdf=gpu.bdf)
    return found
