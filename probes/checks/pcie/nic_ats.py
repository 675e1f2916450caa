"""Address translation (ATS) of NICs on bare metal, where nothing needs it."""

from __future__ import annotations

from probes.base.plan import Plan, Step, instruction
from probes.base.unknown import Reason, Unknown, map_known
from probes.facts.pci.functions import PciFunction, PciKind
from probes.queries.finding import Area, Evidence, Outcome, Severity, passed
from probes.queries.pcie_paths import (
    DEVICES,
    Tally,
    acs_of,
    config_of,
    gpus_and_nics,
    is_grace,
    labels,
    need_guest,
    passed_to_guests,
    unknown_devices,
)
from probes.snapshot.examination import Examination

AREA = Area("pcie", requires=(unknown_devices,))


@AREA.check(
    "nic-ats-on-bare-metal",
    Severity.NOTE,
    "ATS is enabled on a NIC of a bare-metal node",
    "NVIDIA Network Operator, NIC Configuration Operator, Configuration Details, gpuDirectOptimized, "
    "https://docs.nvidia.com/networking/display/kubernetes2670/nic-conf-operator/configuration-details.html",
    ok="ATS is disabled on the NICs, or something needs it",
    impact="The NIC asks the IOMMU for addresses that it could use directly. Measure before and after a "
    "change.",
)
def nic_ats_on_bare_metal(examination: Examination) -> Outcome:
    """Check ATSCtl of physical NICs; guests, hosts of guests, Grace and some ACS settings need ATS."""
    nics = [
        function
        for function in gpus_and_nics(examination).values()
        if function.kind is PciKind.NIC and function.physical_function is None
    ]
    if not nics:
        return passed(Evidence(DEVICES, "no RDMA NIC here"))
    if is_grace(examination):
        return passed(Evidence(DEVICES, "on Grace ATS belongs to the path"))
    guests = passed_to_guests(examination)
    if guests:
        source = f"{DEVICES}/{guests[0]}/driver"
        return passed(Evidence(source, "passed to a virtual machine, which needs ATS"))
    named = labels(examination)
    tally = Tally()
    for nic in nics:
        ats = map_known(config_of(examination, nic.bdf), lambda space: space.ats_enabled)
        if isinstance(ats, Unknown):
            if ats.reason is not Reason.NOT_THERE:
                tally.unknowns.append(ats)
        elif ats and not _is_relied_on(examination, nic):
            text = f"{named.get(nic.bdf, nic.bdf)}: ATSCtl: Enable+"
            tally.fault(Evidence(f"lspci -vvv -s {nic.bdf}", text), nic.bdf)
    if tally.devices and need_guest(examination):
        return passed(Evidence("/sys/class/dmi/id", "a virtual machine: its host decides about ATS"))
    return tally.outcome(
        "The NIC's firmware offers ATS, and the kernel enables it. NVIDIA turns it off for GPUDirect "
        "RDMA on bare metal.",
        Evidence("lspci -vvv", "ATS is disabled on the NICs"),
        _disable(list(dict.fromkeys(tally.devices))) if tally.devices else None,
    )


def _is_relied_on(examination: Examination, nic: PciFunction) -> bool:
    """Return whether a port above the NIC passes translated requests past its redirects."""
    ports = [acs_of(examination, bdf) for bdf in nic.chain[:-1]]
    return any(
        port is not None and not isinstance(port, Unknown) and port.on.direct_translated for port in ports
    )


def _disable(nics: list[str]) -> Plan:
    look = f"Look at the firmware setting first: `mlxconfig -d {nics[0]} q ATS_ENABLED`"
    steps = [
        Step(
            f"Disable ATS in the firmware of {nic}",
            ("mlxconfig", "-d", nic, "set", "ATS_ENABLED=false"),
            undo=("mlxconfig", "-d", nic, "set", "ATS_ENABLED=true"),
        )
        for nic in nics
    ]
    return Plan(
        "Disable ATS on the NICs",
        (
            instruction(f"{look}. False(0) is the default."),
            *steps,
            instruction("Reboot the host: the firmware applies the setting at power-on."),
        ),
        needs_reboot=True,
        disturbs="every job on this node",
        note="Keep ATS if this node also runs virtual machines with these NICs.",
    )
