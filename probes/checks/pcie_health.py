"""PCIe errors that the kernel counted or that functions remember, and functions that do not answer."""

from __future__ import annotations

from dataclasses import replace

from probes.checks.finding import Area, Evidence, Outcome, Severity, Status, found, passed, unsure
from probes.checks.pcie_paths import DEVICES, ends, functions_of, judged, labels, near_paths, unread
from probes.checks.wording import LIKE_THESE, few
from probes.examination import Examination
from probes.pcie_errors import ErrorCounts, PcieErrorFacts
from probes.plan import Plan, instruction
from probes.unknown import Maybe, Reason, Unknown, known

AREA = Area("pcie")

_AER = "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats; Documentation/PCI/pcieaer-howto.rst"
_NO_AER = (
    "needs PCIe error counts (AER): the kernel has none here, or the firmware keeps them; ask the BMC's log"
)
_LOOK = Plan(
    "Find the link with the errors",
    (
        instruction("read the kernel log for AER lines of these devices: journalctl -k --grep AER"),
        instruction(
            "with the power off, seat the card, its riser and cables anew; swap them with a good one"
        ),
    ),
    needs_reboot=True,
    disturbs="the node has to be taken out of service",
)


def _words(counts: ErrorCounts) -> str:
    names = ", ".join(f"{name} {count}" for name, count in list(counts.by_name.items())[:4])
    return f"{counts.total} ({names})" if names else str(counts.total)


def _name(examination: Examination, bdf: str) -> str:
    return f"{labels(examination).get(bdf, 'bridge')} {bdf}"


@AREA.check(
    "pcie-aer-uncorrectable", Severity.WARNING, "PCIe errors that could not be corrected were counted", _AER
)
def pcie_aer_uncorrectable(examination: Examination) -> Outcome:
    """Non-fatal and fatal errors since boot, of GPUs, NICs and the ports above them."""
    facts = examination.pcie_errors
    if not ends(examination):
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC here"))
    if isinstance(facts, Unknown):
        return unread([facts])
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    counted = 0
    for bdf, errors in facts.functions.items():
        for severity, counts in (("nonfatal", errors.nonfatal), ("fatal", errors.fatal)):
            path = f"{DEVICES}/{bdf}/aer_dev_{severity}"
            if isinstance(counts, Unknown):
                if counts.reason is not Reason.NOT_THERE:
                    unknown.append(counts)
                continue
            counted += 1
            if counts.total:
                bad.append(Evidence(path, f"{_words(counts)}: {_name(examination, bdf)}"))
                devices.append(bdf)
    if not counted and not unknown and facts.functions:
        return unsure(_NO_AER)
    return judged(
        "packets were lost or broken on the way since the node started: transfers failed with them",
        bad,
        unknown,
        Evidence(f"{DEVICES}/*/aer_dev_fatal", f"no such error in {len(facts.functions)} functions"),
        _LOOK,
        devices,
    )


@AREA.check(
    "pcie-aer-correctable", Severity.NOTE, "PCIe errors were corrected on the way of GPUs or NICs", _AER
)
def pcie_aer_correctable(examination: Examination) -> Outcome:
    """Corrected errors since boot; a warning where they rose since the reading before."""
    facts = examination.pcie_errors
    if not ends(examination):
        return passed(Evidence(DEVICES, "no GPU and no RDMA NIC here"))
    if isinstance(facts, Unknown):
        return unread([facts])
    earlier = examination.earlier_pcie_errors
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    risen = counted = 0
    for bdf, errors in facts.functions.items():
        counts = errors.correctable
        path = f"{DEVICES}/{bdf}/aer_dev_correctable"
        if isinstance(counts, Unknown):
            if counts.reason is not Reason.NOT_THERE:
                unknown.append(counts)
            continue
        counted += 1
        if not counts.total:
            continue
        before = _before(earlier, bdf)
        told = f"{_words(counts)}: {_name(examination, bdf)}"
        if before is not None and counts.total > before:
            risen += 1
            told = f"+{counts.total - before} since the reading before, {told}"
        bad.append(Evidence(path, told))
        devices.append(bdf)
    if not counted and not unknown and facts.functions:
        return unsure(_NO_AER)
    if bad:
        bad.sort(key=lambda one: not one.value.startswith("+"))
        cause = (
            "errors rise now: a link is bad, and each of its errors costs a retransmission"
            if risen
            else "a link had errors since the node started, which were made good; whether they "
            "still rise takes "
            "two readings"
        )
        severity = Severity.WARNING if risen else None
        return found(cause, *few(bad, LIKE_THESE), fix=_LOOK, severity=severity, devices=tuple(devices))
    if unknown:
        return unread(unknown)
    return passed(Evidence(f"{DEVICES}/*/aer_dev_correctable", f"0 in {counted} functions"))


def _before(earlier: Maybe[PcieErrorFacts] | None, bdf: str) -> int | None:
    if earlier is None or isinstance(earlier, Unknown) or bdf not in earlier.functions:
        return None
    counts = earlier.functions[bdf].correctable
    return None if isinstance(counts, Unknown) else counts.total


@AREA.check(
    "pcie-error-unreported",
    Severity.NOTE,
    "a function remembers a fatal PCIe error that the kernel did not count",
    "PCI Express Base Specification, Device Status Register, Fatal Error Detected",
)
def pcie_error_unreported(examination: Examination) -> Outcome:
    """Device Status (DevSta: FatalErr) against the kernel's count of fatal errors."""
    spaces, counts = examination.config_space, examination.pcie_errors
    if isinstance(spaces, Unknown):
        return unread([spaces])
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    for bdf, space in spaces.functions.items():
        if isinstance(space, Unknown):
            unknown.append(space)
            continue
        express = space.express
        if isinstance(express, Unknown):
            if express.reason is not Reason.NOT_THERE:  # a conventional PCI function has no such register
                unknown.append(express)
            continue
        if "fatal" not in express.detected:
            continue
        errors = None if isinstance(counts, Unknown) else counts.functions.get(bdf)
        fatal = 0 if errors is None or isinstance(errors.fatal, Unknown) else errors.fatal.total
        if not fatal:
            bad.append(Evidence(f"lspci -vvv -s {bdf}", f"DevSta: FatalErr+: {_name(examination, bdf)}"))
            devices.append(bdf)
    return judged(
        "the error was seen by the function and reported to nobody, or before the kernel listened",
        bad,
        unknown,
        Evidence("lspci -vvv", "no function remembers a fatal error"),
        _LOOK,
        devices,
    )


@AREA.check(
    "pcie-config-unreachable",
    Severity.NOTE,
    "PCI configuration beyond its first part cannot be read, not even by root",
    "Linux drivers/pci/pci-sysfs.c, pci_read_config; Documentation/PCI/sysfs-pci.rst",
)
def pcie_config_unreachable(examination: Examination) -> Outcome:
    """Where the extended configuration space (ACS, ATS) is out of reach."""
    spaces = examination.config_space
    if isinstance(spaces, Unknown):
        return unread([spaces])
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    for bdf, space in spaces.functions.items():
        fact = space if isinstance(space, Unknown) else space.acs
        if not isinstance(fact, Unknown) or (fact is not space and fact.reason is Reason.NOT_THERE):
            continue  # read, or read and without ACS
        if fact.reason is Reason.DRIVER_ERROR:
            continue  # pcie-function-gone says it
        if fact.reason is Reason.IO_ERROR:
            bad.append(Evidence(f"{DEVICES}/{bdf}/config", fact.detail or str(fact)))
            devices.append(bdf)
        else:
            unknown.append(fact)
    return judged(
        "whether ACS redirects on the way between GPU and NIC stays unknown: the memory-mapped configuration "
        "(MMCONFIG) is off or broken, or this container lacks CAP_SYS_ADMIN",
        bad,
        unknown,
        Evidence(f"{DEVICES}/*/config", f"read in whole of {len(spaces.functions)} functions"),
        Plan(
            "Make the configuration readable",
            (
                instruction("in a container: run gdrtop on the host, or with CAP_SYS_ADMIN"),
                instruction("on the host: look for pci=nommconf on the kernel command line, and in the BIOS"),
            ),
        ),
        devices,
    )


@AREA.check(
    "pcie-function-gone",
    Severity.CRITICAL,
    "a GPU, a NIC or a port above them does not answer on the PCIe bus",
    "Linux include/linux/pci.h, PCI_ERROR_RESPONSE; NVIDIA XID errors, 79, "
    "https://docs.nvidia.com/deploy/xid-errors/",
)
def pcie_function_gone(examination: Examination) -> Outcome:
    """Functions whose configuration reads as ones; the first 64 bytes are readable by everyone."""
    spaces = examination.config_space
    if isinstance(spaces, Unknown):
        return unread([spaces])
    bad: list[Evidence] = []
    devices: list[str] = []
    unknown: list[Unknown] = []
    for bdf, space in spaces.functions.items():
        if not isinstance(space, Unknown):
            continue
        if space.reason in (Reason.NOT_THERE, Reason.TIMED_OUT, Reason.MALFORMED):
            unknown.append(space)  # where more is needed than 64 bytes, those were read and are no ones
        if space.reason is Reason.DRIVER_ERROR:
            bad.append(Evidence(f"setpci -s {bdf} VENDOR_ID", f"ffff: {_name(examination, bdf)}"))
            devices.append(bdf)
    outcome = judged(
        "it has lost its link or its power, or hangs: nothing that uses it works until it comes back",
        bad,
        unknown,
        Evidence(f"{DEVICES}/*/config", f"{len(spaces.functions)} functions asked, none reads as ones"),
        Plan(
            "Bring it back",
            (
                instruction("read the kernel log around the moment: Xid 79, 'link down', AER"),
                instruction("take the power from the node and give it again; then seat or replace the card"),
            ),
            needs_reboot=True,
            disturbs="the node has to be taken out of service",
        ),
        devices,
    )
    if outcome.status is Status.FOUND and not _cuts_off_a_gpu(examination, set(devices)):
        return replace(outcome, severity=Severity.WARNING)
    return outcome


def _cuts_off_a_gpu(examination: Examination, gone: set[str]) -> bool:
    """Whether a GPU is gone, or a port above it, or every NIC that is near it."""
    functions = functions_of(examination)
    nics = {nic.id: known(nic.bdf, "") for nic in examination.topology.nics}

    def lost(bdf: str) -> bool:
        return bdf in functions and not gone.isdisjoint(functions[bdf].chain)

    near: dict[str, list[bool]] = {}
    for path in near_paths(examination):
        near.setdefault(path.a, []).append(lost(nics[path.b]))
    return any(lost(gpu.id) for gpu in examination.topology.gpus) or any(map(all, near.values()))
