"""ACS: ports that redirect traffic between GPU and NIC, and where that is correct; unlisted host bridges."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace
from enum import Enum

from probes.bandwidth.model.gains import gains_of_straight_paths
from probes.base.evidence import LIKE_THESE, Evidence, Severity, first_distinct
from probes.base.plan import Plan, instruction, make_plan
from probes.base.text import join_limited, plural
from probes.base.unknown import Reason, Unknown, known, map_known
from probes.facts.kernel.log import LogKind
from probes.facts.pci.functions import DEVICES, PciFunction, PciKind, is_vera_root_port
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.pci.rdma_topo import ARGV, is_dma_function
from probes.plans.boot import command_line_steps
from probes.plans.common import reboot_plan
from probes.plans.pcie import CHECK_CMDLINE, ats_steps, fix_redirects, pass_through, redirects_option
from probes.queries.finding import Area, Outcome, found, passed, unknown
from probes.queries.kernel_log import messages_about
from probes.queries.modules import impossible_by_design
from probes.queries.pcie_paths import (
    NO_GPU_OR_NIC,
    OUT_OF_SERVICE,
    Tally,
    acs_evidence,
    acs_exemption,
    acs_of,
    bridges_between,
    config_of,
    detour_marks,
    functions_of,
    gpus_and_nics,
    is_grace,
    near_paths,
    need_guest,
    need_read,
    nics_by_bridge,
    passed_to_guests,
    redirects,
    redirects_of,
    translates,
    unknown_devices,
)
from probes.snapshot.examination import Examination
from probes.topology.nccl_paths import NEAR

AREA = Area("pcie", __package__, requires=(unknown_devices, impossible_by_design))
HOST_BRIDGES = Area("pcie", __package__, requires=(unknown_devices, impossible_by_design))

# What rdma-core's rdma_topo requires on a Direct NIC platform, as (bits that are 1, bits that are 0):
# kernel-boot/rdma_topo compute_acs.
_TO_NIC = (0x19, 0x04)  # xx110x1
_TO_GPU = (0x15, 0x08)  # xx101x1
_ROOT_PORT = (0x1C, 0x01)  # xx111x0
# Vera's root ports have P2P Completion Redirect as read-only and disabled: kernel_acs_isolated there.
_VERA_ROOT_PORT = (0x14, 0x01)  # xx1x1x0
# "PCI/ACS: Fix 'pci=config_acs=' parameter", of 6.15 and of NVIDIA's kernels (NVIDIA/NV-Kernels, pull request
# 63): before, the option of 6.11 took one port. setpci-acs: kernel-boot/rdma_topo, cmd_setpci_acs.
_FIRST_WITH_LIST = (6, 15)
_FOR_OLDER_KERNELS = (
    "Check that the kernel applied the whole list: rdma_topo check. A list of ports in pci=config_acs= needs "
    "Linux 6.15, or a kernel that has its fix, as NVIDIA's have.",
    "On a kernel without it, set the ports after each boot: rdma_topo setpci-acs. It needs ACS at boot, and "
    "NVreg_GrdmaPciTopoCheckOverride=1. Any program can then cause a fatal hardware error.",
)


@AREA.critical("acs-redirect-enabled", data_path=True)
def acs_redirect_enabled(examination: Examination) -> Outcome:
    """Check request and completion redirect of the switch ports where the path of GPU and NIC turns."""
    exemption = acs_exemption(examination)
    if exemption is not None:
        return passed(exemption)
    redirects_here = redirects_of(examination)
    bad = redirects_here.ports
    if not bad:
        Tally(unknowns=list(redirects_here.unknowns)).end_if_unknown()
        return passed(Evidence("lspci -vvv", f"no redirect on {redirects_here.checked} switch ports"))
    evidence = first_distinct((acs_evidence(bridge, acs) for bridge, acs in bad.items()), LIKE_THESE)
    need_guest(examination, *evidence)
    devices = (*detour_marks(examination), *bad)
    bdfs = {examination.topology.bdfs.get(device, device) for device in devices}
    evidence = (*evidence, *messages_about(examination, (LogKind.IOMMU_FAULT,), bdfs))
    guests = passed_to_guests(examination)
    if guests:
        return found(
            "This host passes devices through to virtual machines, and ACS keeps those apart. Do not clear "
            "the redirects; enable ATS on the NICs and DirectTrans on the switch ports instead.",
            *evidence,
            Evidence(f"{DEVICES}/{guests[0]}", "used by a virtual machine, in whole or in part"),
            severity=Severity.NOTE,
            devices=devices,
        )
    if translates(examination):
        # An address that needs translation goes up with or without ACS, so clearing ACS would not help yet.
        return found(
            "The IOMMU translates DMA, and the kernel then enables ACS redirect on every switch port. Stop "
            "the translation first; clearing ACS alone does not help.",
            *evidence,
            fix=pass_through(examination),
            devices=devices,
            impact="GPU traffic of these NICs detours through the CPU's IOMMU: transfers are slow, fail or "
            "hang.",
            part_of=("iommu-translated",),
            gains=gains_of_straight_paths(examination),
        )
    is_without_ats = all(acs.on.direct_translated for acs in bad.values())
    return found(
        "The switch ports redirect peer-to-peer requests or completions to the root complex. Virtualization "
        "settings in the BIOS enable this.",
        *evidence,
        fix=fix_redirects(examination, bad),
        severity=Severity.WARNING,
        devices=devices,
        part_of=("acs-direct-translated-without-ats",) if is_without_ats else (),
        subjects=() if is_without_ats else None,
        gains=gains_of_straight_paths(examination),
    )


@AREA.warning("acs-direct-translated-without-ats", data_path=True)
def acs_direct_translated_without_ats(examination: Examination) -> Outcome:
    """Check ATS of the NICs whose switch ports redirect all but translated requests."""
    named = examination.topology.labels
    tally = Tally()
    relying = 0  # number of ports
    for bridge, nics_below in nics_by_bridge(examination).items():
        acs = acs_of(examination, bridge)
        if isinstance(acs, Unknown):
            tally.unknowns.append(acs)
        elif acs is not None and redirects(acs) and acs.on.direct_translated:
            relying += 1
            for nic in nics_below:
                ats = map_known(config_of(examination, nic), lambda space: space.ats_enabled)
                if isinstance(ats, Unknown) and ats.reason is not Reason.NOT_THERE:
                    tally.unknowns.append(ats)
                elif isinstance(ats, Unknown) or not ats:
                    state = "no ATS capability" if isinstance(ats, Unknown) else "ATSCtl: Enable-"
                    tally.fault(Evidence(f"lspci -vvv -s {nic}", f"{named.get(nic, nic)}: {state}"), nic)
    good = "ATS is enabled on the NICs below ports that rely on it"
    return tally.outcome(
        "The switch ports pass only ATS-translated requests; ATS is off on these NICs, so their GPU "
        "traffic goes through the IOMMU.",
        Evidence("lspci -vvv", good if relying else "no switch port between GPU and NIC relies on ATS"),
        reboot_plan(
            "Enable ATS on the NICs",
            *ats_steps(list(dict.fromkeys(tally.devices)), enable=True),
            "Reboot the host: the firmware applies the setting at power-on.",
            disturbs="every job and virtual machine on this node",
        ),
    )


@AREA.note("acs-option-ignored", requires=())
def acs_option_ignored(examination: Examination) -> Outcome:
    """Check for pci=noacs, which guides recommend and mainline kernels ignore."""
    for word in need_read(map_known(examination.node.kernel, lambda kernel: kernel.cmdline)).split():
        if word.startswith("pci=") and "noacs" in re.split(r"[=,]", word):
            return found(
                "No mainline kernel has this option.",
                Evidence("/proc/cmdline", word[:120]),
                fix=_replace_noacs(examination, word),
            )
    return passed(Evidence("/proc/cmdline", "no pci=noacs"))


def _replace_noacs(examination: Examination, word: str) -> Plan:
    """Replace the option by the one that clears redirects."""
    others = [part for part in word.removeprefix("pci=").split(",") if part != "noacs"]
    option = redirects_option(redirects_of(examination).ports or ("<BDF>", "<BDF>")).removeprefix("pci=")
    steps = command_line_steps(examination, "acs", f"pci={','.join((*others, option))}", word)
    note = "Each <BDF> stands for the address of a switch port between GPU and NIC." if "<" in option else ""
    return reboot_plan("Replace pci=noacs", *steps, CHECK_CMDLINE, note=note)


@AREA.warning("acs-direct-nic", data_path=True)
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
        return _wrong(
            examination, f"rdma_topo: {answer.failed[0]}. {_shape(examination).value}", failed, ports
        )
    if not dma_functions:
        return passed(Evidence(DEVICES, "no ConnectX DMA function (15b3:2100)"))
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
        return _wrong(examination, _Shape.DMA.value, list(bad.values()), list(bad))
    tally.end_if_unknown()
    if not wanted:
        tool = "rdma_topo (rdma-core from 2025-10 or later)"
        return unknown(f"needs {tool}: the GPU next to the DMA function was not found")
    return passed(Evidence("lspci -vvv", f"{plural(len(wanted), 'port')} set as rdma_topo requires"))


def _wanted(dma: PciFunction, functions: dict[str, PciFunction]) -> dict[str, tuple[int, int]]:
    """Return the ports to judge for a DMA function: towards it, towards its GPU, and the root port."""
    for gpu in functions.values():
        if gpu.kind is not PciKind.GPU or gpu.root != dma.root:
            continue
        shared = len(posixpath.commonprefix((dma.chain, gpu.chain)))
        if 2 <= shared < min(len(dma.chain), len(gpu.chain)) - 1:
            top = functions.get(dma.chain[0])
            root_port = _VERA_ROOT_PORT if top is not None and is_vera_root_port(top) else _ROOT_PORT
            return {dma.chain[shared]: _TO_NIC, gpu.chain[shared]: _TO_GPU, dma.chain[0]: root_port}
    return {}


class _Shape(Enum):
    """How NIC and GPU are attached, in rdma_topo's terms, and what that means for ACS."""

    DMA = (
        "On a Direct NIC platform the GPU and the ConnectX DMA function need certain redirects to share an "
        "IOMMU group."
    )
    INLINE = (
        "Where GPU and NIC share the ConnectX's own switch, its ports must not redirect on bare metal; for "
        "virtual machines they need redirects and ATS."
    )
    NUMA = "NIC and GPU are each attached to the CPU, so their traffic goes through its root ports."


def _shape(examination: Examination) -> _Shape:
    """Return the topology type (DMA, INLINE or NUMA) by the rules of rdma_topo."""
    functions = functions_of(examination)
    if any(map(is_dma_function, functions.values())):
        return _Shape.DMA
    for path in near_paths(examination):
        ports = [functions.get(bdf) for bdf in bridges_between(path)]
        if any(port is not None and port.vendor_id == CONNECTX.vendor for port in ports):
            return _Shape.INLINE
    return _Shape.NUMA


def _wrong(examination: Examination, cause: str, evidence: list[Evidence], ports: list[str]) -> Outcome:
    option = command_line_steps(examination, "acs", 'pci=config_acs="…"')
    version = map_known(examination.node.kernel, lambda kernel: kernel.version)
    # Without -n it changes files below /etc/default/grub.d: the admin decides on that.
    write = "Write it to /etc/default/grub.d/config-acs.cfg, and apply it: rdma_topo write-grub-acs"
    return found(
        cause,
        *first_distinct(evidence, LIKE_THESE),
        fix=reboot_plan(
            "Set ACS as rdma_topo requires",
            "Print the required setting: rdma_topo write-grub-acs -n",
            *((write,) if any(step.file for step in option) else option),
            "Reboot",
            *(() if known(version, (0, 0)) >= _FIRST_WITH_LIST else _FOR_OLDER_KERNELS),
        ),
        devices=tuple(ports),
    )


# Host bridges of CPUs that are not known to forward traffic between GPU and NIC.

_INTEL = 0x8086
# Linux drivers/pci/p2pdma.c, pci_p2pdma_whitelist: Skylake and newer Xeons.
_FORWARDS = (0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09A2)
# The same, REQ_SAME_HOST_BRIDGE: Xeon E5, and Xeon E5 v3 and E7 v3.
_FORWARDS_WITHIN = (0x3C00, 0x3C01, 0x2F00, 0x2F01)


@HOST_BRIDGES.note("p2p-host-bridge-unlisted", part_of=("gpu-nic-through-cpu", "gpu-nic-cross-socket"))
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
    # By the function at device 0 of each root bus the kernel knows a host bridge.
    functions = functions_of(examination).values()
    firsts = [function for function in functions if function.chain == (function.bdf,)]
    bridges = {function.root: function for function in firsts if function.bdf.endswith(":00.0")}
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
    pairs = []
    for gpu, nics in topology.best_nics.items():
        nic = topology.bdfs[nics[0]] if nics else ""
        if gpu not in here or nic not in here:
            continue
        path = topology.paths[gpu, nics[0]]
        if path.crosses_host_bridge and path.nccl_pcie not in NEAR:
            pairs.append((here[gpu], here[nic]))
    return pairs
