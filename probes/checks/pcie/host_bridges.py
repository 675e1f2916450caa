"""Host bridges of CPUs that are not known to forward traffic between GPU and NIC."""

from __future__ import annotations

from dataclasses import replace

from probes.base.plan import instruction, make_plan
from probes.base.unknown import known
from probes.facts.pci.functions import DEVICES, PciFunction
from probes.queries.finding import Area, Evidence, Outcome, Severity, passed
from probes.queries.pcie_paths import (
    NO_GPU_OR_NIC,
    OUT_OF_SERVICE,
    Tally,
    functions_of,
    gpus_and_nics,
    is_grace,
    need_guest,
    unknown_devices,
)
from probes.snapshot.examination import Examination
from probes.topology.nccl_words import NEAR

AREA = Area("pcie", requires=(unknown_devices,))

_INTEL = 0x8086
# Linux drivers/pci/p2pdma.c, pci_p2pdma_whitelist: Skylake and newer Xeons.
_FORWARDS = (0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09A2)
# The same, REQ_SAME_HOST_BRIDGE: Xeon E5, and Xeon E5 v3 and E7 v3.
_FORWARDS_WITHIN = (0x3C00, 0x3C01, 0x2F00, 0x2F01)


@AREA.check(
    "p2p-host-bridge-unlisted",
    Severity.NOTE,
    "The kernel does not list this CPU's host bridge as able to forward GPU traffic to the NIC",
    "Linux drivers/pci/p2pdma.c, pci_p2pdma_whitelist; NVIDIA/open-gpu-kernel-modules issue 1253",
    ok="No GPU needs an unlisted host bridge to reach its NIC",
    impact="One direction may be slow, hang or fail although the other works.",
    part_of=("gpu-nic-through-cpu", "gpu-nic-cross-socket"),
)
def p2p_host_bridge_unlisted(examination: Examination) -> Outcome:
    """Compare Intel's host bridges between a GPU and its nearest NIC with the kernel's list.

    The list matters to drivers of the kernel alone: the NVIDIA driver has its own, but the hardware is the
    same. AMD processors pass: all since Zen forward this traffic.
    """
    here = gpus_and_nics(examination)
    crossing = _crossing(examination, here)
    if not crossing:
        return passed(NO_GPU_OR_NIC if not here else Evidence("nvidia-smi topo -m", "no pair needs the CPU"))
    if is_grace(examination):
        return passed(Evidence(DEVICES, "Grace and Vera forward this traffic"))
    if need_guest(examination):
        return passed(Evidence("/sys/class/dmi/id", "in a virtual machine, only the host's bridges matter"))
    bridges = _bridges(examination)
    named = examination.topology.labels
    tally = Tally()
    for gpu, nic in crossing:
        same = gpu.root == nic.root
        for end in (gpu, nic):
            bridge = bridges.get(end.root)
            if bridge is None or bridge.vendor_id != _INTEL:
                continue
            if bridge.device_id in _FORWARDS or (same and bridge.device_id in _FORWARDS_WITHIN):
                continue
            text = f"8086:{known(bridge.device_id, 0):04x}, between {named[gpu.bdf]} and {named[nic.bdf]}"
            tally.fault(Evidence(f"lspci -n -s {bridge.bdf}", text), gpu.bdf, nic.bdf)
            break
    outcome = tally.outcome(
        "GPU and NIC have no PCIe switch in common, so the CPU must forward their traffic. Some "
        "desktop processors forward writes but not reads.",
        Evidence("lspci -n", "the host bridges between GPUs and NICs are listed, or hidden by the firmware"),
        make_plan(
            "Measure both directions, or avoid the CPU",
            instruction("Measure both: `gdrtop bench --test write`, then `--test read`", False),
            "If one is slow or fails, move GPU and NIC below one PCIe switch",
            instruction("Or let NCCL copy through host memory: NCCL_NET_GDR_LEVEL=LOC", False),
            disturbs=OUT_OF_SERVICE,
        ),
    )
    gpus = (gpu.bdf for gpu, _ in crossing if gpu.bdf in outcome.devices)
    return replace(outcome, subjects=tuple(frozenset((gpu,)) for gpu in gpus))


def _crossing(
    examination: Examination, here: dict[str, PciFunction]
) -> list[tuple[PciFunction, PciFunction]]:
    """Return each GPU with its nearest NIC, if a host bridge is between them."""
    topology = examination.topology
    bdfs = {nic.id: known(nic.bdf, "") for nic in topology.nics}
    pairs = []
    for gpu, nics in topology.best_nics.items():
        nic = bdfs.get(nics[0], "") if nics else ""
        if gpu not in here or nic not in here:
            continue
        path = topology.paths[gpu, nics[0]]
        if path.crosses_host_bridge and path.nccl_pcie not in NEAR:
            pairs.append((here[gpu], here[nic]))
    return pairs


def _bridges(examination: Examination) -> dict[str, PciFunction]:
    """Return the function at device 0 of each root bus, by which the kernel knows a host bridge."""
    return {
        function.root: function
        for function in functions_of(examination).values()
        if function.chain == (function.bdf,) and function.bdf.endswith(":00.0")
    }
