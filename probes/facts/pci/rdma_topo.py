"""The answer of rdma-core's `rdma_topo check` about ACS on Direct NIC platforms (kernel-boot/rdma_topo).

It supports machines whose ConnectX has a DMA function next to the GPU. Since 2026 it also supports machines
whose GPU is below the ConnectX's own switch or, like the NIC, directly below a root port
(linux-rdma/rdma-core pull requests 1725, 1779). It reads the VPD of every function, which is slow, so it runs
only on machines that it can judge.
"""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.pci.functions import PciFacts, PciFunction, PciKind, asleep
from probes.facts.pci.nic_families import CONNECTX
from probes.host.protocol import Host

ARGV = ("rdma_topo", "check")
_SECONDS = 5.0
_MOST_LINES = 256
_DMA_FUNCTION = 0x2100
_NONE_HERE = "No supported topology"
_UNSUPPORTED = "does not support this platform"


@frozen
class RdmaTopoFacts:
    """The lines of its output; versions of 2025 stop at the first failure."""

    right: tuple[str, ...]
    failed: tuple[str, ...]


def is_dma_function(function: PciFunction) -> bool:
    """Return whether this is the DMA function of a ConnectX, next to the GPU on a Direct NIC platform."""
    return function.vendor_id == CONNECTX.vendor and function.device_id == _DMA_FUNCTION


def probe(host: Host, pci: PciFacts) -> Maybe[RdmaTopoFacts]:
    """Run it; NOT_THERE: not installed, or it does not support this platform."""
    if not any(
        is_dma_function(function)
        or (function.kind is PciKind.BRIDGE and function.vendor_id == CONNECTX.vendor)
        for function in pci.functions.values()
    ):
        return Unknown(Reason.NOT_THERE, " ".join(ARGV), _UNSUPPORTED)
    # The VPD of a sleeping function would wake it up.
    sleeping = (asleep(host, bdf) for bdf in pci.functions)
    reason = next((sleeps for sleeps in sleeping if sleeps is not None), None)
    if reason is not None:
        return reason
    answer = host.run(ARGV, _SECONDS)
    return answer if isinstance(answer, Unknown) else parse(answer.stdout)


def parse(output: str) -> Maybe[RdmaTopoFacts]:
    """Parse the lines "OK", "FAIL" and "E:" of its output; the exit status adds nothing."""
    source = " ".join(ARGV)
    right: list[str] = []
    failed: list[str] = []
    for line in output.split("\n")[:_MOST_LINES]:
        word, _, text = line.strip().partition(" " if line.startswith("E:") else "\t")
        text = printable(text.strip(), 300)
        if word == "E:":
            if _NONE_HERE in text:
                return Unknown(Reason.NOT_THERE, source, _UNSUPPORTED)
            reason = Reason.NEEDS_ROOT if "root" in text else Reason.DRIVER_ERROR
            return Unknown(reason, source, text)
        if word == "OK":
            right.append(text)
        elif word == "FAIL":
            failed.append(text)
    if not right and not failed:
        return Unknown(Reason.MALFORMED, source, "neither OK nor FAIL in its output")
    return RdmaTopoFacts(tuple(right), tuple(failed))
