"""ACS on platforms that rdma_topo checks: Direct NIC, where redirects are correct, and ConnectX switches."""

from __future__ import annotations

from enum import Enum

from probes.base.plan import Plan, instruction
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.facts.pci.functions import PciFunction, PciKind
from probes.facts.pci.rdma_topo import ARGV, is_dma_function
from probes.plans.common import REBOOT_ENDS_JOBS
from probes.queries.evidence_list import LIKE_THESE, first_distinct, join_limited
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, passed, unknown
from probes.queries.pcie_paths import (
    DEVICES,
    Tally,
    acs_evidence,
    acs_of,
    bridges_between,
    functions_of,
    near_paths,
    unknown_devices,
)
from probes.snapshot.examination import Examination

AREA = Area("pcie", requires=(unknown_devices,))

# What rdma-core's rdma_topo requires on a Direct NIC platform, as (bits that are 1, bits that are 0):
# kernel-boot/rdma_topo compute_acs.
_TO_NIC = (0x19, 0x04)  # xx110x1
_TO_GPU = (0x15, 0x08)  # xx101x1
_ROOT_PORT = (0x1C, 0x01)  # xx111x0
_MELLANOX = 0x15B3


@AREA.check(
    "acs-direct-nic",
    Severity.WARNING,
    "ACS is not set the way ConnectX needs on this platform",
    "rdma-core, kernel-boot/rdma_topo, "
    "https://github.com/linux-rdma/rdma-core/blob/master/kernel-boot/rdma_topo",
    ok="ACS is set as rdma_topo requires, or not needed here",
    impact="The driver refuses to map GPU memory for the NIC, transfers fail, or they detour through the "
    "CPU.",
    data_path=True,
)
def acs_direct_nic(examination: Examination) -> Outcome:
    """Quote `rdma_topo check`; where it is missing, judge Direct NIC platforms by its rules."""
    functions = functions_of(examination)
    dma_functions = [function for function in functions.values() if is_dma_function(function)]
    answer = examination.rdma_topo
    if not isinstance(answer, Unknown):
        if not answer.failed:
            return passed(Evidence(" ".join(ARGV), join_limited(answer.right, 2)))
        ports = [bdf for bdf in functions if bdf in " ".join(answer.failed)]
        failed = [Evidence(" ".join(ARGV), f"FAIL {line}") for line in answer.failed]
        return _wrong(f"rdma_topo: {answer.failed[0]}. {_WANTED[_shape(examination)]}", failed, ports)
    if not dma_functions:
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    wanted: dict[str, tuple[int, int]] = {}
    for function in dma_functions:
        wanted.update(_wanted(function, functions))
    bad: dict[str, Evidence] = {}
    tally = Tally()
    for bridge, (ones, zeros) in wanted.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            tally.unknowns.append(acs)
        elif acs is not None and (acs.control & ones != ones or acs.control & zeros):
            bad[bridge] = acs_evidence(bridge, acs)
    if bad:
        return _wrong(_WANTED[_Shape.DMA], list(bad.values()), list(bad))
    tally.end_if_unknown()
    if not wanted:
        return unknown(
            "needs rdma_topo (rdma-core of 2025-10 or later): the GPU beside the DMA function was not found"
        )
    return passed(Evidence("lspci -vvv", f"{plural(len(wanted), 'port')} set as rdma_topo requires"))


def _wanted(dma: PciFunction, functions: dict[str, PciFunction]) -> dict[str, tuple[int, int]]:
    """Return the ports to judge for a DMA function: towards it, towards its GPU, and the root port."""
    for gpu in functions.values():
        if gpu.kind is not PciKind.GPU or gpu.root != dma.root:
            continue
        shared = 0
        for dma_port, gpu_port in zip(dma.chain, gpu.chain, strict=False):
            if dma_port != gpu_port:
                break
            shared += 1
        if 2 <= shared < min(len(dma.chain), len(gpu.chain)) - 1:
            return {dma.chain[shared]: _TO_NIC, gpu.chain[shared]: _TO_GPU, dma.chain[0]: _ROOT_PORT}
    return {}


class _Shape(Enum):
    """How NIC and GPU are attached, in rdma_topo's terms."""

    DMA = "a ConnectX DMA function beside the GPU"
    INLINE = "the GPU below the NIC's own switch"
    NUMA = "NIC and GPU below root ports of their own"


_WANTED = {
    _Shape.DMA: "On a Direct NIC platform the GPU and the ConnectX DMA function need certain redirects to "
    "share an IOMMU group.",
    _Shape.INLINE: "Where GPU and NIC share the ConnectX's own switch, its ports must not redirect on bare "
    "metal; for virtual machines they need redirects and ATS.",
    _Shape.NUMA: "NIC and GPU are each attached to the CPU, so their traffic goes through its root ports.",
}


def _shape(examination: Examination) -> _Shape:
    """Return the topology type (DMA, INLINE or NUMA) by the rules of rdma_topo."""
    functions = functions_of(examination)
    if any(map(is_dma_function, functions.values())):
        return _Shape.DMA
    for path in near_paths(examination):
        ports = [functions.get(bdf) for bdf in bridges_between(path)]
        if any(port is not None and port.vendor_id == _MELLANOX for port in ports):
            return _Shape.INLINE
    return _Shape.NUMA


def _wrong(cause: str, evidence: list[Evidence], ports: list[str]) -> Outcome:
    return found(
        cause,
        *first_distinct(evidence, LIKE_THESE),
        fix=Plan(
            "Set ACS as rdma_topo requires",
            (
                # Without -n it changes files below /etc/default/grub.d: the admin decides on that.
                instruction(
                    "Print the required setting: rdma_topo write-grub-acs -n. Without -n it writes "
                    "/etc/default/grub.d/config-acs.cfg and runs update-grub (Debian and Ubuntu)."
                ),
                instruction(
                    "On other systems, add the printed pci=config_acs= to the kernel command line. Keep its "
                    'quotes, because ";" ends a command in grub.cfg.'
                ),
                instruction("Reboot. pci=config_acs= needs Linux 6.11."),
            ),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        devices=tuple(ports),
    )
