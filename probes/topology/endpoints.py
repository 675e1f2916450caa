"""The ends of paths: GPUs and NICs."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown, is_there, known
from probes.facts.gpu.gpus import GpuFacts
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind
from probes.facts.pci.nic_families import CONNECTX, PLUGIN_ONLY, cards_of
from probes.facts.rdma.data_direct import DataDirectFacts
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts, natural


@frozen
class Endpoint:
    """An end of a path: a GPU, or a NIC (an RDMA device; several ports of one NIC are several)."""

    id: str  # GPU: BDF; NIC: RDMA device name, else BDF. What JSON says in from/to.
    label: str  # "GPU0", "mlx5_0"
    bdf: Maybe[str]
    numa_node: Maybe[int]
    is_gpu: bool
    data_direct: str = ""  # NIC: BDF of the function that reaches GPU memory; "": the NIC's own does

    @property
    def to_gpus(self) -> Maybe[str]:
        """The function at which a path between this NIC and a GPU ends: NCCL calls it "mlx5_0_dma"."""
        return self.data_direct or self.bdf


def endpoints(node: Node) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """Return GPUs in index order, and NICs by RDMA name, then those without an RDMA device.

    A software RDMA device has no PCI function, so no path leads to it. A virtual function without an RDMA
    device is reserved for a guest. The RDMA device of a bond is on the first of its functions. None of these
    is an endpoint.
    """
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    if isinstance(node.gpus, GpuFacts):
        gpus = [Endpoint(gpu.bdf, f"GPU{gpu.index}", gpu.bdf, gpu.numa_node, True) for gpu in node.gpus.gpus]
    else:
        named = enumerate(node.pci.gpus if isinstance(node.pci, PciFacts) else ())
        gpus = [Endpoint(card.bdf, f"GPU{place}", card.bdf, card.numa_node, True) for place, card in named]
    direct = node.data_direct.of_devices if isinstance(node.data_direct, DataDirectFacts) else {}
    nics: list[Endpoint] = []
    for device in node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ():
        if isinstance(device.bdf, Unknown):
            continue
        function = functions.get(device.bdf)
        numa = device.numa_node if function is None else function.numa_node
        by_dma = known(direct.get(device.name, None), None) or ""
        nics.append(Endpoint(device.name, device.name, device.bdf, numa, False, by_dma))
    nics.sort(key=lambda nic: natural(nic.label))
    with_device = _with_device(node)
    nics.extend(
        Endpoint(function.bdf, function.bdf, function.bdf, function.numa_node, False)
        for function in rdma_functions(node)
        if function.bdf not in with_device
    )
    return tuple(gpus), tuple(nics)


def rdma_functions(node: Node) -> tuple[PciFunction, ...]:
    """Return the PCI functions of RDMA NICs: those with an RDMA device, and those whose driver makes one.

    A plain Ethernet adapter, such as virtio of a virtual machine, is none. Neither is a virtual function
    without an RDMA device whose card is here; in a virtual machine its card is on the other side.
    """
    with_device, others = _with_device(node), _without_driver(node)
    functions = node.pci.functions if isinstance(node.pci, PciFacts) else {}
    return tuple(
        function
        for function in functions.values()
        if function.bdf in with_device
        or (
            function.kind is PciKind.NIC
            and (function.vendor_id == CONNECTX.vendor or function.bdf in others)
            and function.physical_function not in functions
        )
    )


def _with_device(node: Node) -> set[Maybe[str]]:
    """Return the BDFs of the functions with an RDMA device, also as ports of a bond that one spans."""
    devices = node.rdma.devices if isinstance(node.rdma, RdmaFacts) else ()
    bonds = [port.bond for device in devices for port in device.ports if port.bond is not None]
    bonded = {member.bdf for bond in bonds for member in bond.members}
    return {device.bdf for device in devices if not isinstance(device.bdf, Unknown)} | bonded


def _without_driver(node: Node) -> frozenset[str]:
    """Return the EFAs and Slingshot NICs without a driver."""
    if isinstance(node.pci, Unknown):
        return frozenset()
    cards = cards_of(node.pci, *PLUGIN_ONLY)
    return frozenset(bdf for bdf in cards if is_there(node.pci.functions[bdf].driver) is False)


def is_down(device: RdmaDevice | None) -> bool:
    """Return whether every port is known not to be ACTIVE, or the NIC has no RDMA device.

    Ports that could not be listed are not known to be down.
    """
    if device is None:
        return True
    return bool(device.ports) and all(port.is_down for port in device.ports)


def port_gbps(device: RdmaDevice | None) -> float:
    """Return the rate of the fastest port in Gb/s; 0 if no rate is known."""
    ports = device.ports if device else ()
    return max((known(port.rate_gbps, 0.0) for port in ports), default=0.0)
