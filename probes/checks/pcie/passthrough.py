"""GPUs and NICs that are passed to a virtual machine, and look adjacent there."""

from __future__ import annotations

from probes.base.plan import instruction, make_plan
from probes.base.unknown import Reason, Unknown, map_known
from probes.facts.pci.functions import DEVICES, PciKind
from probes.queries.evidence_list import first_n
from probes.queries.finding import Area, Evidence, Outcome, Severity, found, need, passed
from probes.queries.pcie_paths import (
    NO_GPU_OR_NIC,
    config_of,
    gpus_and_nics,
    near_paths,
    need_guest,
    nic_ends,
    unknown_devices,
)
from probes.queries.unproven_paths import guest_pairs
from probes.snapshot.examination import Examination

AREA = Area("pcie", requires=(unknown_devices,))


@AREA.check(
    "vm-pair-unproven",
    Severity.WARNING,
    "A short path between GPU and NIC proves nothing in this virtual machine",
    "https://github.com/ai-dynamo/dynamo/issues/12463; NVIDIA AI Enterprise, VM configuration, ATS and ACS",
    ok="Direct transfers between GPU and NIC do not depend on a hypervisor, or ATS is enabled",
    impact="In such a machine, transfers between adjacent GPUs and NICs were seen to succeed with wrong "
    "data.",
    part_of=("vm-without-p2p-ats",),
)
def vm_pair_unproven(examination: Examination) -> Outcome:
    """Find ConnectX NICs of a guest below a GPU's switch, without ATS and without a topology file."""
    here = gpus_and_nics(examination)
    if {PciKind.GPU, PciKind.NIC} - {function.kind for function in here.values()}:
        return passed(NO_GPU_OR_NIC)
    ends = nic_ends(examination)
    pairs = [(path.a, ends[path.b]) for path in near_paths(examination) if ends.get(path.b) in here]
    if not pairs:
        return passed(Evidence(DEVICES, "no GPU and NIC share a switch"))
    if not need_guest(examination):
        return passed(Evidence("/sys/class/dmi/id", "not a virtual machine"))
    file = examination.topology.file
    if file is not None:
        return passed(Evidence(file.path, "the provider describes the host's PCI tree"))
    named = examination.topology.labels
    unproven = [(gpu, ends[nic]) for gpu, nic in guest_pairs(examination)]
    if not unproven:
        return passed(Evidence("lspci -vvv", "ATS is enabled on these NICs"))
    ats = [map_known(config_of(examination, nic), lambda space: space.ats_enabled) for _, nic in unproven]
    unread = [each for each in ats if isinstance(each, Unknown) and each.reason is not Reason.NOT_THERE]
    if len(unread) == len(unproven):
        need(unread[0], "the configuration space of the NICs")
    return found(
        "The hypervisor shows GPU and NIC below one switch. Only its own settings of IOMMU, ACS and ATS "
        "decide whether a direct transfer reaches the right memory, and a guest cannot see them.",
        *first_n(
            Evidence(DEVICES, f"{named.get(gpu, gpu)} and {named.get(nic, nic)} share a switch, without ATS")
            for gpu, nic in unproven
        ),
        fix=make_plan(
            "Check the data once",
            instruction("Run nccl-tests between two nodes with gdrtop bench: it compares the data", False),
            instruction(
                "If data is wrong, let jobs use a NIC that is not below the GPU's switch (UCX_NET_DEVICES, "
                "NCCL_IB_HCA) until the host is corrected",
                False,
            ),
            instruction("On the host, enable ATS on the NICs, and DirectTrans in the switch's ACS", False),
        ),
        devices=tuple(dict.fromkeys(nic for _, nic in unproven)),
    )
