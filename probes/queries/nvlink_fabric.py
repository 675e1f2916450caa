"""Whether Fabric Manager of this node configures NVSwitches, and which."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import join_limited, plural
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpu.gpus import NOT_SUPPORTED
from probes.facts.pci.functions import PciKind
from probes.queries.pcie_paths import is_guest
from probes.snapshot.examination import Examination

# "NVIDIA B200", "NVIDIA B300 SXM6 AC"; not "NVIDIA GB200", whose NVSwitches are in other trays of the rack.
_BOARD = re.compile(r"\bB[123]00\b")


@frozen
class NvSwitches:
    """The NVSwitches that Fabric Manager of this node configures."""

    devices: tuple[str, ...]  # the switches on this PCI bus, or the functions that manage them
    text: str  # a sentence about them
    needs_nvlsm: bool  # fourth generation: managed by NVLSM through ib_umad


def nvswitches_of(examination: Examination) -> Maybe[NvSwitches | None]:
    """Return them; None: there are none, or they are configured elsewhere (a rack, the host of this VM)."""
    pci, gpus = examination.node.pci, examination.node.gpus
    if isinstance(pci, Unknown):
        return pci
    switches = tuple(bdf for bdf, function in pci.functions.items() if function.kind is PciKind.NVSWITCH)
    if switches:
        text = f"This machine has {plural(len(switches), 'NVSwitch', 'NVSwitches')}."
        return NvSwitches(switches, text, False)
    if pci.management:
        rdma = examination.node.rdma
        names = [] if isinstance(rdma, Unknown) else [device.name for device in rdma.management]
        manager = join_limited(names or pci.management)
        text = f"This machine's NVSwitches are managed through a ConnectX ({manager})."
        return NvSwitches(tuple(pci.management), text, True)
    if is_guest(examination) is not False or isinstance(gpus, Unknown):
        return None
    # GPUs of an HGX board whose NVSwitches are not on the host's PCI bus.
    for gpu in gpus.gpus:
        is_joined = known(gpu.nvlinks, 1) and known(gpu.fabric.state, "") != NOT_SUPPORTED
        if is_joined and _BOARD.search(gpu.name):
            return NvSwitches((), f"This machine's GPUs ({gpu.name}) are connected by NVSwitches.", True)
    return None
