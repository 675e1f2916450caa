"""What is known of the node on which a text was written."""

from __future__ import annotations

from collections.abc import Iterator

from probes.base.unknown import Unknown, known
from probes.facts.gpu.generations import is_model
from probes.facts.pci.functions import PciKind
from probes.facts.pci.nic_families import EFA, SLINGSHOT
from probes.facts.system.platform import in_container, is_guest
from probes.snapshot.examination import Examination

_LAYERS = {"InfiniBand": "infiniband", "Ethernet": "roce"}


def words_about(examination: Examination) -> frozenset[str]:
    """Return the words of the catalogue (NODE_WORDS) that are true of a node."""
    return frozenset(_words(examination))


def _words(examination: Examination) -> Iterator[str]:
    node = examination.node
    for device in node.rdma_devices:
        for port in device.ports:
            yield from filter(None, (_LAYERS.get(known(port.link_layer, "")),))
    functions = () if isinstance(node.pci, Unknown) else node.pci.functions.values()
    drivers = {known(function.driver, "") for function in functions}
    yield from (
        word for word, family in (("efa", EFA), ("slingshot", SLINGSHOT)) if drivers & set(family.pci_drivers)
    )
    if any(function.kind is PciKind.NVSWITCH for function in functions):
        yield "nvswitch"
    if not isinstance(node.gpus, Unknown) and any(is_model(gpu.name, "GB10") for gpu in node.gpus.gpus):
        yield "gb10"
    if is_guest(node.platform) is True:
        yield "vm"
    if in_container(node.platform):
        yield "container"
