"""PCIe errors that the kernel counted or that devices recorded, and devices that do not respond."""

from __future__ import annotations

from dataclasses import replace

from probes.base.evidence import Evidence, Severity
from probes.base.grouping import grouped
from probes.base.text import plural
from probes.base.unknown import Reason, Unknown
from probes.checks.nic.counters import NEXT_CHECK
from probes.facts.kernel.log import LogKind, is_corrected
from probes.facts.pci.config_space import ErrorCounts, PcieErrorFacts
from probes.facts.pci.functions import DEVICES
from probes.plans.common import reboot_plan
from probes.queries.finding import Area, Outcome, Status, end_with, passed, unknown
from probes.queries.kernel_log import with_messages
from probes.queries.pcie_paths import (
    OUT_OF_SERVICE,
    Tally,
    chains_of,
    functions_of,
    gpus_and_nics,
    near_paths,
    need_read,
    unknown_devices,
)
from probes.snapshot.examination import Examination

AREA = Area("pcie", __package__, requires=(unknown_devices,))

_NO_AER = "needs PCIe error counts (AER): the kernel has none, or the firmware keeps them (BMC log)"
_FIND_LINK = reboot_plan(
    "Find the link with the errors",
    "Read the AER lines of these devices in the kernel log: journalctl -k --grep AER.",
    "With the power off, reseat the card, its riser and cables. Swap them with good ones.",
    disturbs=OUT_OF_SERVICE,
)


def _count_text(counts: ErrorCounts) -> str:
    names = ", ".join(f"{name} {count}" for name, count in list(counts.by_name.items())[:4])
    return f"{counts.total} ({names})" if names else str(counts.total)


def _name(examination: Examination, bdf: str) -> str:
    return f"{examination.topology.labels.get(bdf, 'bridge')} {bdf}"


def _error_counts(examination: Examination) -> PcieErrorFacts:
    """Return the kernel's error counts; end the check without them, or without GPUs and NICs."""
    if not gpus_and_nics(examination):
        end_with(passed(Evidence(DEVICES, "no GPU and no RDMA NIC")))
    return need_read(examination.pcie_errors)


@AREA.warning("pcie-aer-uncorrectable")
def pcie_aer_uncorrectable(examination: Examination) -> Outcome:
    """Check non-fatal and fatal errors since boot, of GPUs, NICs and the ports above them."""
    facts, tally = _error_counts(examination), Tally()
    counted = _counted(examination, facts, tally, "nonfatal", "fatal")
    for bdf, path, counts in counted:
        if counts.total:
            tally.fault(Evidence(path, f"{_count_text(counts)}: {_name(examination, bdf)}"), bdf)
    here = plural(len(facts.functions), "function")
    outcome = tally.outcome(
        "Packets have been lost or damaged since boot.",
        Evidence(f"{DEVICES}/*/aer_dev_fatal", f"no such error in {here}"),
        _FIND_LINK,
    )
    return with_messages(examination, outcome, LogKind.AER) if counted else outcome


def _counted(
    examination: Examination, facts: PcieErrorFacts, tally: Tally, *kinds: str
) -> list[tuple[str, str, ErrorCounts]]:
    """Return the counts that were read, each with its function and its file; note why others were not.

    For a kernel that counts no errors, add those in its log to the tally; without any, end the check.
    """
    counted: list[tuple[str, str, ErrorCounts]] = []
    for bdf, errors in facts.functions.items():
        by_kind = {"correctable": errors.correctable, "nonfatal": errors.nonfatal, "fatal": errors.fatal}
        for kind in kinds:
            counts = by_kind[kind]
            if not isinstance(counts, Unknown):
                counted.append((bdf, f"{DEVICES}/{bdf}/aer_dev_{kind}", counts))
            elif counts.reason is not Reason.NOT_THERE:
                tally.unknowns.append(counts)
    if counted or tally.unknowns or not facts.functions:
        return counted
    log, chains, corrected = examination.kernel_log, chains_of(examination), "correctable" in kinds
    for message in () if isinstance(log, Unknown) else reversed(log.messages):
        if message.kind is LogKind.AER and message.bdf in chains and is_corrected(message) is corrected:
            tally.fault(Evidence(log.source, message.text), message.bdf)
    if not tally.faults:
        end_with(unknown(_NO_AER))
    return counted


@AREA.note("pcie-aer-correctable")
def pcie_aer_correctable(examination: Examination) -> Outcome:
    """Check corrected errors since boot; warn where they rose since the previous check."""
    earlier = examination.earlier_pcie_errors
    errors_before = earlier.functions if isinstance(earlier, PcieErrorFacts) else {}
    tally, risen = Tally(), False
    counted = _counted(examination, _error_counts(examination), tally, "correctable")
    for bdf, path, counts in counted:
        if not counts.total:
            continue
        before = errors_before[bdf].correctable if bdf in errors_before else None
        shown = f"{_count_text(counts)}: {_name(examination, bdf)}"
        if isinstance(before, ErrorCounts) and counts.total > before.total:
            risen = True
            shown = f"+{counts.total - before.total} since the last check, {shown}"
        tally.fault(Evidence(path, shown), bdf)
    if tally.faults:
        tally.faults.sort(key=lambda fault: not fault.value.startswith("+"))
        cause = (
            "The errors are still rising, so a link is bad."
            if risen
            else f"A link has had errors since boot. {NEXT_CHECK}"
        )
        severity = Severity.WARNING if risen else None
        outcome = replace(tally.outcome(cause, tally.faults[0], _FIND_LINK), severity=severity)
        return with_messages(examination, outcome, LogKind.AER) if counted else outcome
    tally.end_if_unknown()
    return passed(Evidence(f"{DEVICES}/*/aer_dev_correctable", f"0 in {plural(len(counted), 'function')}"))


@AREA.note("pcie-error-unreported")
def pcie_error_unreported(examination: Examination) -> Outcome:
    """Compare Device Status (DevSta: FatalErr) with the kernel's count of fatal errors."""
    spaces, counts = need_read(examination.config_space), examination.pcie_errors
    tally = Tally()
    for bdf, space in spaces.functions.items():
        if isinstance(space, Unknown):
            tally.unknowns.append(space)
            continue
        express = space.express
        if isinstance(express, Unknown):
            if express.reason is not Reason.NOT_THERE:  # a conventional PCI function has no such register
                tally.unknowns.append(express)
            continue
        if "fatal" not in express.detected:
            continue
        errors = None if isinstance(counts, Unknown) else counts.functions.get(bdf)
        fatal = 0 if errors is None or isinstance(errors.fatal, Unknown) else errors.fatal.total
        if not fatal:
            text = f"DevSta: FatalErr+: {_name(examination, bdf)}"
            tally.fault(Evidence(f"lspci -vvv -s {bdf}", text), bdf)
    return tally.outcome(
        "The device detected the error, but did not report it, or did so before the kernel handled AER.",
        Evidence("lspci -vvv", "no device recorded a fatal error"),
        _FIND_LINK,
    )


@AREA.note("pcie-config-unreachable")
def pcie_config_unreachable(examination: Examination) -> Outcome:
    """Find functions whose extended configuration space (ACS, ATS) cannot be read."""
    spaces = need_read(examination.config_space)
    tally = Tally()
    for bdf, space in spaces.functions.items():
        fact = space if isinstance(space, Unknown) else space.acs
        if not isinstance(fact, Unknown) or (fact is not space and fact.reason is Reason.NOT_THERE):
            continue  # read, or read and without ACS
        if fact.reason is Reason.DRIVER_ERROR:
            continue  # pcie-function-gone reports it
        if fact.reason is Reason.IO_ERROR:
            tally.fault(Evidence(f"{DEVICES}/{bdf}/config", fact.detail or str(fact)), bdf)
        else:
            tally.unknowns.append(fact)
    return tally.outcome(
        "Memory-mapped configuration (MMCONFIG) is off or broken, or CAP_SYS_ADMIN is missing in this "
        "container.",
        Evidence(f"{DEVICES}/*/config", f"all of it read for {plural(len(spaces.functions), 'function')}"),
    )


@AREA.critical("pcie-function-gone", data_path=True)
def pcie_function_gone(examination: Examination) -> Outcome:
    """Find functions whose configuration reads as all ones; any user may read the first 64 bytes."""
    spaces = need_read(examination.config_space)
    tally = Tally()
    for bdf, space in spaces.functions.items():
        if not isinstance(space, Unknown):
            continue
        if space.reason in (Reason.NOT_THERE, Reason.TIMED_OUT, Reason.MALFORMED):
            tally.unknowns.append(space)  # else the first 64 bytes were read, and they are not all ones
        if space.reason is Reason.DRIVER_ERROR:
            tally.fault(Evidence(f"setpci -s {bdf} VENDOR_ID", f"ffff: {_name(examination, bdf)}"), bdf)
    read = plural(len(spaces.functions), "function")
    outcome = tally.outcome(
        "The device lost its link or power, or is hung.",
        Evidence(f"{DEVICES}/*/config", f"{read} read, none returned all ones"),
        reboot_plan(
            "Bring the device back",
            "Look in the kernel log for Xid 79, 'link down' and AER lines of this device.",
            "Power-cycle the node. If that does not help, reseat or replace the card.",
            disturbs=OUT_OF_SERVICE,
        ),
    )
    outcome = with_messages(examination, outcome, LogKind.AER, LogKind.GPU_LOST, LogKind.NIC_HEALTH)
    if outcome.status is Status.FOUND and not _cuts_off_a_gpu(examination, set(tally.devices)):
        return replace(outcome, severity=Severity.WARNING)
    return outcome


def _cuts_off_a_gpu(examination: Examination, gone: set[str]) -> bool:
    """Return whether a GPU is gone, or a port above it, or every NIC that is near it."""
    functions = functions_of(examination)

    def lost(bdf: str) -> bool:
        return bdf in functions and not gone.isdisjoint(functions[bdf].chain)

    near = grouped((path.a, lost(examination.topology.nic_ends[path.b])) for path in near_paths(examination))
    return any(lost(gpu.id) for gpu in examination.topology.gpus) or any(map(all, near.values()))
