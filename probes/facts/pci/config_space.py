"""PCI configuration space of selected functions: facts that only capabilities show, such as ACS above a NIC.

Every user can read 64 bytes of the file `config`; the rest needs CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c,
pci_read_config). Reading 4096 bytes takes about a millisecond, so it is not done every second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from probes.base.frozen import frozen
from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci.capabilities import HEADER_BYTES, WHOLE_BYTES, ConfigSpace, is_gone, parse_config
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.pci.rdma_topo import is_dma_function
from probes.facts.pci.sleep import DEVICES, asleep
from probes.host.protocol import Host

MAX_FUNCTIONS = 512
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@frozen
class ConfigSpaceFacts:
    """BDF -> configuration space, for the requested functions."""

    functions: dict[str, Maybe[ConfigSpace]]


def probe(host: Host, bdfs: Iterable[str]) -> ConfigSpaceFacts:
    """Read `config` of at most 512 functions; a failure affects only its own function.

    NEEDS_ROOT or NOT_RECORDED (a dump): only 64 bytes. NOT_THERE: the function sleeps or is gone from sysfs.
    DRIVER_ERROR: it does not answer on the bus.
    """
    chosen = list(dict.fromkeys(bdfs))[:MAX_FUNCTIONS]
    return ConfigSpaceFacts({bdf: _function(host, bdf) for bdf in chosen})


def path_functions(pci: PciFacts) -> tuple[str, ...]:
    """Return the BDFs of GPUs, NICs, their DMA functions, NVSwitches, and every bridge above them.

    Virtual functions are left out: a node has hundreds, and only their ATS setting is their own.
    """
    found: set[str] = set()
    for function in pci.functions.values():
        if is_dma_function(function):
            found.update(function.chain)
        if function.kind in (PciKind.GPU, PciKind.NIC, PciKind.NVSWITCH) and not function.physical_function:
            found.update(function.chain)
    return tuple(bdf for bdf in pci.functions if bdf in found)


def _function(host: Host, bdf: str) -> Maybe[ConfigSpace]:
    if not _BDF.fullmatch(bdf):
        return Unknown(Reason.MALFORMED, printable(bdf, 40), "not a BDF")
    sleeps = asleep(host, bdf)
    if sleeps is not None:
        return sleeps
    path = f"{DEVICES}/{bdf}/config"
    content = host.read_bytes(path, WHOLE_BYTES)
    if isinstance(content, Unknown):
        return content
    if len(content) == HEADER_BYTES and not is_gone(content):
        return _only_the_header(host, path)
    return parse_config(content, bdf, path)


def _only_the_header(host: Host, path: str) -> Unknown:
    beyond = "PCI config beyond 64 bytes"
    if host.origin.source is not Source.LIVE:
        return Unknown(Reason.NOT_RECORDED, path, beyond)
    if host.is_root():
        return Unknown(Reason.IO_ERROR, path, f"{beyond} is denied even to root: CAP_SYS_ADMIN is missing")
    return Unknown(Reason.NEEDS_ROOT, path, beyond)
