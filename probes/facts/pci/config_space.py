"""PCI configuration space of chosen functions: what only the capabilities tell, such as ACS above a NIC.

The file `config` gives 64 bytes to all, the rest to who has CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c,
pci_read_config). Reading 4096 bytes takes about a millisecond: nothing for every second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from probes.base.origin import Source
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.facts.pci.capabilities import HEADER_BYTES, WHOLE_BYTES, ConfigSpace, is_gone, parse_config
from probes.facts.pci.functions import PciFacts, PciKind
from probes.facts.pci.rdma_topo import is_dma_function
from probes.host.protocol import Host

DEVICES = "/sys/bus/pci/devices"
MAX_FUNCTIONS = 512
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class ConfigSpaceFacts:
    """BDF -> configuration space, for the functions asked after."""

    functions: dict[str, Maybe[ConfigSpace]]


def probe(host: Host, bdfs: Iterable[str]) -> ConfigSpaceFacts:
    """Read `config` of the functions, of at most 512; each function fails for itself.

    Unknown, by reason: NEEDS_ROOT and NOT_RECORDED (a dump) where there are 64 bytes only, NOT_THERE where
    the function sleeps or is gone from sysfs, DRIVER_ERROR where it does not answer on the bus.
    """
    chosen = list(dict.fromkeys(bdfs))[:MAX_FUNCTIONS]
    return ConfigSpaceFacts({bdf: _function(host, bdf) for bdf in chosen})


def path_functions(pci: PciFacts) -> tuple[str, ...]:
    """Return the BDFs worth reading: GPUs, NICs, their DMA functions, NVSwitches, and every bridge above them.

    Virtual functions have no settings of their own there but ATS, and a node has hundreds of them.
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
    asleep = _asleep(host, f"{DEVICES}/{bdf}")
    if asleep is not None:
        return asleep
    path = f"{DEVICES}/{bdf}/config"
    content = host.read_bytes(path, WHOLE_BYTES)
    if isinstance(content, Unknown):
        return content
    if len(content) == HEADER_BYTES and not is_gone(content):
        return _only_the_header(host, path)
    return parse_config(content, bdf, path)


def _asleep(host: Host, directory: str) -> Unknown | None:
    """Return why a function must be left alone: reading its configuration wakes it (pci_config_pm_runtime_get)."""
    for name, words in (("power/runtime_status", ("suspended", "suspending")), ("power_state", ("D3cold",))):
        state = known(host.read(f"{directory}/{name}", 4096), "")
        if state in words:
            return Unknown(
                Reason.NOT_THERE, f"{directory}/{name}", f"not read: {state}, reading would wake it"
            )
    return None


def _only_the_header(host: Host, path: str) -> Unknown:
    beyond = "PCI config beyond 64 bytes"
    if host.origin.source is not Source.LIVE:
        return Unknown(Reason.NOT_RECORDED, path, beyond)
    if host.is_root():
        return Unknown(
            Reason.IO_ERROR, path, f"{beyond} is refused even to root: CAP_SYS_ADMIN is missing here"
        )
    return Unknown(Reason.NEEDS_ROOT, path, beyond)
