"""ACS on Direct NIC platforms, where a ConnectX has a DMA function beside the GPU and redirects are right."""

from __future__ import annotations

from probes.checks.finding import Area, Evidence, Outcome, Severity, found, passed, unsure
from probes.checks.pcie_paths import DEVICES, acs_evidence, acs_of, functions_of, unread
from probes.checks.wording import LIKE_THESE, few, several
from probes.examination import Examination
from probes.pci import PciFunction, PciKind
from probes.plan import Plan, Step, instruction
from probes.plans.interruptions import REBOOT_ENDS_JOBS
from probes.rdma_topo import ARGV, is_dma_function
from probes.unknown import Unknown

AREA = Area("pcie")

# What rdma-core's rdma_topo wants on a Direct NIC platform, as (bits that are 1, bits that are 0):
# kernel-boot/rdma_topo compute_acs.
_TO_NIC = (0x19, 0x04)  # xx110x1
_TO_GPU = (0x15, 0x08)  # xx101x1
_ROOT_PORT = (0x1C, 0x01)  # xx111x0


@AREA.check(
    "acs-direct-nic",
    Severity.WARNING,
    "ACS on this Direct NIC platform is not as its ConnectX DMA functions need it",
    "rdma-core, kernel-boot/rdma_topo, https://github.com/linux-rdma/rdma-core/blob/master/kernel-boot/rdma_topo",
)
def acs_direct_nic(examination: Examination) -> Outcome:
    """What `rdma_topo check` says, else the ACS bits between GPU, DMA function and root port by its rules."""
    functions = functions_of(examination)
    dma = [one for one in functions.values() if is_dma_function(one)]
    told = examination.rdma_topo
    if not isinstance(told, Unknown):
        if not told.failed:
            return passed(Evidence(" ".join(ARGV), several(told.right, 2)))
        ports = [one.bdf for one in functions.values() if one.bdf in " ".join(told.failed)]
        return _wrong_direct_nic([Evidence(" ".join(ARGV), f"FAIL {line}") for line in told.failed], ports)
    if not dma:
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100) here"))
    wanted: dict[str, tuple[int, int]] = {}
    for one in dma:
        wanted.update(_wanted(one, functions))
    bad: dict[str, Evidence] = {}
    unknown: list[Unknown] = []
    for bridge, (ones, zeros) in wanted.items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            unknown.append(acs)
        elif acs is not None and (acs.control & ones != ones or acs.control & zeros):
            bad[bridge] = acs_evidence(bridge, acs)
    if bad:
        return _wrong_direct_nic(list(bad.values()), list(bad))
    if unknown:
        return unread(unknown)
    if not wanted:
        return unsure(
            "needs rdma_topo (rdma-core since the end of 2025): the GPU beside the DMA function was not found"
        )
    return passed(Evidence("lspci -vvv", f"{len(wanted)} ports are set as rdma_topo wants them"))


def _wanted(dma: PciFunction, functions: dict[str, PciFunction]) -> dict[str, tuple[int, int]]:
    """The ports to look at for one DMA function: towards it, towards its GPU, and the root port."""
    for gpu in functions.values():
        if gpu.kind is not PciKind.GPU or gpu.root != dma.root:
            continue
        shared = 0
        for mine, its in zip(dma.chain, gpu.chain, strict=False):
            if mine != its:
                break
            shared += 1
        if 2 <= shared < min(len(dma.chain), len(gpu.chain)) - 1:
            return {dma.chain[shared]: _TO_NIC, gpu.chain[shared]: _TO_GPU, dma.chain[0]: _ROOT_PORT}
    return {}


def _wrong_direct_nic(evidence: list[Evidence], ports: list[str]) -> Outcome:
    write = Step(
        "writes the ACS settings for the kernel command line below /etc/default/grub.d (Debian, Ubuntu)",
        ("rdma_topo", "write-grub-acs"),
    )
    return found(
        "GPU and ConnectX DMA function need certain redirects to share an IOMMU group: without "
        "them the driver "
        "refuses to map GPU memory for the NIC, or transfers fail",
        *few(evidence, LIKE_THESE),
        fix=Plan(
            "Set ACS as rdma_topo wants it",
            (write, instruction("reboot: pci=config_acs= is read when the kernel starts (Linux 6.11)")),
            needs_reboot=True,
            disturbs=REBOOT_ENDS_JOBS,
        ),
        devices=tuple(ports),
    )
