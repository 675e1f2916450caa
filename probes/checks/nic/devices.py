"""Checks of NICs as devices: driver, RDMA device, firmware, and what the kernel log says of them."""

from __future__ import annotations

from probes.base.evidence import Evidence, Severity, first_n
from probes.base.grouping import grouped
from probes.base.plan import Step, make_plan
from probes.base.text import join_limited
from probes.base.unknown import Unknown, first_unread, is_there, known
from probes.checks.nic.port_rates import is_bond
from probes.facts.kernel.log import KernelMessage, LogKind, may_be_unused_port
from probes.facts.pci.functions import PciFunction, PciKind, is_for_guests
from probes.facts.pci.nic_families import CONNECTX, CONNECTX_3, RDMA_MODULE_OF
from probes.facts.rdma.devices import NAMESPACE_ARGV, RdmaDevice
from probes.plans.load_modules import bind_steps, load_step
from probes.plans.ports import update_firmware
from probes.queries.finding import NEEDS_NAMESPACE, PCI_FUNCTIONS, Area, Outcome, found, need, passed, unknown
from probes.queries.kernel_log import Filter, bdfs_in, found_in_log, log_messages, meaning_of, switched_off
from probes.queries.modules import driver_evidence, nics_of
from probes.queries.ports import LINK_CAUSES, NO_PORTS, cost_of_loss, need_devices, ports_of, severity_without
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
KERNEL_LOG = Area("nic", __package__)
_BOUND = "bound to mlx5_ib.rdma, without an RDMA device in this network namespace"
_NO_NIC = Evidence("/sys/bus/pci/devices", "no NVIDIA (Mellanox) NIC here")


def _functions(examination: Examination) -> list[PciFunction]:
    """Return ConnectX and BlueField NICs, without virtual functions that this node may reserve for guests."""
    functions = need(examination.node.pci, PCI_FUNCTIONS).functions
    return [
        function
        for function in functions.values()
        if function.kind is PciKind.NIC
        and function.vendor_id == CONNECTX.vendor
        and function.physical_function not in functions  # in a guest, that is on the host
    ]


def _devices(examination: Examination) -> tuple[RdmaDevice, ...]:
    return tuple(device for device in need_devices(examination) if not isinstance(device.bdf, Unknown))


@AREA.warning("nic-without-driver", data_path=True, part_of=("mlx5-core-not-loaded", "mlx4-core-not-loaded"))
def nic_without_driver(examination: Examination) -> Outcome:
    """Find NICs without a bound kernel driver."""
    functions = _functions(examination)
    bare = [nic for nic in functions if is_there(nic.driver) is False]
    if bare:
        bdfs = [nic.bdf for nic in bare]
        older = known(nics_of(examination, CONNECTX_3), ())
        drivers = grouped(("mlx4_core" if bdf in older else "mlx5_core", bdf) for bdf in bdfs)
        return found(
            f"{join_limited(bdfs)}: {' or '.join(drivers)} is not loaded, was unbound, or failed to start.",
            *first_n(driver_evidence(nic) for nic in bare),
            fix=make_plan(
                "Bind the driver to the NIC",
                *(step for name, own in drivers.items() for step in bind_steps(examination, name, own)),
            ),
            severity=severity_without(examination, bdfs),
            devices=tuple(bdfs),
        )
    for nic in functions:
        need(nic.driver, "the NICs' drivers")
    return passed(*first_n(driver_evidence(nic) for nic in functions) or (_NO_NIC,))


@AREA.note("nic-without-driver-passed-through")
def nic_without_driver_passed_through(examination: Examination) -> Outcome:
    """Find NICs bound to vfio-pci or a similar driver."""
    functions = _functions(examination)
    away = [nic for nic in functions if is_for_guests(nic.driver) or nic.driver == "uio_pci_generic"]
    if away:
        return found(
            f"{join_limited(nic.bdf for nic in away)}: bound to a driver that passes the NIC to a virtual "
            "machine or to user space.",
            *first_n(driver_evidence(nic) for nic in away),
            devices=tuple(nic.bdf for nic in away),
        )
    return passed(*first_n(driver_evidence(nic) for nic in functions) or (_NO_NIC,))


@AREA.warning(
    "nic-without-rdma-device",
    data_path=True,
    part_of=("ib-core-not-loaded", "mlx5-ib-not-loaded", "mlx4-ib-not-loaded"),
)
def nic_without_rdma_device(examination: Examination) -> Outcome:
    """Find NICs with their driver and without an RDMA device; one in another namespace is not missing."""
    functions = _functions(examination)
    devices = _devices(examination)
    with_rdma = {device.bdf for device in devices}
    # The second port of a bond has no RDMA device of its own: the bond's is on the first.
    bonded = {known(device.bdf, "").rpartition(".")[0] for device in devices if is_bond(device)}
    bare = [
        nic
        for nic in functions
        if known(nic.driver, "") in RDMA_MODULE_OF
        and nic.bdf not in with_rdma
        and nic.bdf.rpartition(".")[0] not in bonded
    ]
    rdma = examination.node.rdma
    elsewhere = () if isinstance(rdma, Unknown) else rdma.devices_elsewhere
    moved = [nic.bdf for nic in bare if nic.bdf in elsewhere]
    bare = [nic for nic in bare if nic.bdf not in elsewhere]
    if bare:
        bdfs = [nic.bdf for nic in bare]
        modules = dict.fromkeys(RDMA_MODULE_OF[known(nic.driver, "")] for nic in bare)
        return found(
            f"{join_limited(bdfs)}: {' or '.join(modules)} is not loaded, RDMA is disabled for this device, "
            "or its RDMA device is in another network namespace.",
            *first_n(Evidence(f"/sys/bus/pci/devices/{bdf}/infiniband", "not found") for bdf in bdfs),
            fix=make_plan(
                "Bring up the RDMA device",
                *(load_step(examination, module) for module in modules),
                Step(
                    "Show whether RDMA is disabled",
                    ("devlink", "dev", "param", "show", f"pci/{bdfs[0]}", "name", "enable_rdma"),
                ),
                Step("Show whether RDMA devices can be in other network namespaces", NAMESPACE_ARGV, False),
            ),
            severity=severity_without(examination, bdfs),
            devices=tuple(bdfs),
        )
    if moved and not isinstance(rdma, Unknown):
        return unknown(
            NEEDS_NAMESPACE,
            *first_n(Evidence(f"/sys/bus/pci/devices/{bdf}", _BOUND) for bdf in moved),
            Evidence(" ".join(NAMESPACE_ARGV), f"netns {known(rdma.namespace_mode, 'mode unknown')}"),
        )
    shown = [f"{device.name} on {known(device.bdf, '?')}" for device in devices]
    return passed(*first_n(Evidence("/sys/class/infiniband", text) for text in shown) or (_NO_NIC,))


@AREA.warning("nic-firmware-mismatch")
def nic_firmware_mismatch(examination: Examination) -> Outcome:
    """Compare the firmware of NICs of one board (PSID)."""
    devices = _devices(examination)
    boards: dict[str, list[RdmaDevice]] = {}
    for device in devices:
        if not isinstance(device.board_id, Unknown) and not isinstance(device.firmware, Unknown):
            boards.setdefault(device.board_id, []).append(device)
    mixed = {board: nics for board, nics in boards.items() if len({nic.firmware for nic in nics}) > 1}
    if mixed:
        odd: list[RdmaDevice] = []
        for nics in mixed.values():
            versions = [known(nic.firmware, "") for nic in nics]
            usual = max(sorted(set(versions)), key=versions.count)
            odd += [nic for nic in nics if nic.firmware != usual]
        board = next(iter(mixed))
        return found(
            f"{join_limited(nic.name for nic in odd)}: firmware differs from most NICs with ID {board}.",
            *first_n(_firmware(nic) for nics in mixed.values() for nic in nics),
            fix=update_firmware(examination, "Install the same firmware on these NICs", odd),
            devices=tuple(device.name for device in odd),
        )
    need(first_unread(device.firmware for device in devices), "the NICs' firmware versions")
    return passed(*first_n(_firmware(device) for device in devices) or (NO_PORTS,))


def _firmware(device: RdmaDevice) -> Evidence:
    return Evidence(f"{device.sysfs_path}/fw_ver", known(device.firmware, "unknown"))


# Checks of kernel messages about NICs.

_BOOT_SECONDS = 300.0
_REFUSED_REGISTER = "ACCESS_REG"
_REFUSED_MODULE = ("query_mcia_reg failed", "cable type not recognized")  # of ethtool -m
_MONITORED = (_REFUSED_REGISTER, *_REFUSED_MODULE)
_REFUSED_REGION = ("reg mr failed", "register mr", "command REG_MR")  # mlx5, EFA
_OF_NVIDIA = ("mlx", "infiniband mlx")


def _said(messages: list[KernelMessage], cause: str) -> str:
    """Return what the latest message means if another maker's NIC logged it, else this cause."""
    meaning = None if messages[-1].text.startswith(_OF_NVIDIA) else meaning_of(messages[-1].text)
    return cause if meaning is None else meaning.cause or cause


@KERNEL_LOG.warning("nic-health-errors")
def nic_health_errors(examination: Examination) -> Outcome:
    """Find health reports of firmware: asserts, stalls, fatal errors, resets, recoveries."""
    messages = log_messages(examination, LogKind.NIC_HEALTH)
    steps = [
        Step(f"Show the health reports of {bdf}", ("devlink", "health", "show", f"pci/{bdf}"))
        for bdf in bdfs_in(messages)[:2]
    ]
    fix = make_plan(
        "Check health reports and update the firmware",
        *steps,
        "Update the firmware. Replace the NIC if the errors come back.",
    )
    return found_in_log(examination, messages, _said(messages, "the firmware reported a fault."), fix)


@KERNEL_LOG.warning("nic-power-or-heat")
def nic_power_or_heat(examination: Examination) -> Outcome:
    """Find alarms about power and temperature, of the card and of its optics."""
    messages = log_messages(examination, LogKind.NIC_POWER)
    meaning = meaning_of(messages[-1].text)
    advice = "Check the slot's power limit (BIOS), auxiliary power, fans and optics temperature"
    fix = make_plan("Check power and cooling", (meaning.fix if meaning else "") or advice)
    cause = (meaning.cause if meaning else "") or "the NIC reported insufficient power or high temperature."
    off, ports = switched_off(examination), ports_of(examination)
    lost = [] if isinstance(ports, Unknown) else [port for port in ports if port.facts.is_down]
    lost = [port for port in lost if known(port.device.bdf, "") in off]
    severity = (
        min(Severity.WARNING, cost_of_loss(examination, lost), key=list(Severity).index) if lost else None
    )
    return found_in_log(examination, messages, cause, fix, severity)


@KERNEL_LOG.note("link-flaps-log", part_of=(*LINK_CAUSES, "link-flaps", "link-flaps-carrier"))
def link_flaps_log(examination: Examination) -> Outcome:
    """Find messages of ports that went down, and of failed optics."""
    messages = log_messages(examination, LogKind.NIC_LINK, lambda message: not _is_unused_port(message))
    return found_in_log(examination, messages, "the link or its optics went down since boot.")


def _is_unused_port(message: KernelMessage) -> bool:
    """Say whether a port without a cable or module may have logged this when its driver started."""
    at = message.seconds
    return may_be_unused_port(message) and (isinstance(at, Unknown) or at < _BOOT_SECONDS)


def _is_about(*phrases: str) -> Filter:
    return lambda message: any(words in message.text for words in phrases)


@KERNEL_LOG.note("monitor-causes-log-flood")
def monitor_causes_log_flood(examination: Examination) -> Outcome:
    """Find registers that the firmware denies, as a reader of counters or modules asks for them."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, _is_about(*_MONITORED))
    cause = "the firmware denies this host access to some registers. Nothing else is wrong."
    if _REFUSED_REGISTER not in messages[-1].text and (meaning := meaning_of(messages[-1].text)):
        cause = meaning.cause
    return found_in_log(examination, messages, cause)


@KERNEL_LOG.warning("fw-resources-exhausted")
def fw_resources_exhausted(examination: Examination) -> Outcome:
    """Find registrations of memory that the firmware refused."""
    messages = log_messages(examination, LogKind.NIC_COMMAND, _is_about(*_REFUSED_REGION))
    return found_in_log(examination, messages, "the firmware refused to register memory.")


@KERNEL_LOG.warning("nic-firmware-command-failed")
def nic_firmware_command_failed(examination: Examination) -> Outcome:
    """Find all other commands that the firmware failed."""
    reported = _is_about(*_MONITORED, *_REFUSED_REGION)
    messages = log_messages(examination, LogKind.NIC_COMMAND, lambda message: not reported(message))
    of_nvidia = any(message.text.startswith(_OF_NVIDIA) for message in messages)
    fix = make_plan(
        "Update the firmware",
        *((Step("Show the firmware of all NICs", ("mlxfwmanager", "--query")),) if of_nvidia else ()),
        "Update the firmware. Power-cycle the node if commands keep timing out.",
        disturbs="every job that uses the NIC",
    )
    cause = _said(messages, "driver and firmware do not match, or the firmware is hung.")
    return found_in_log(examination, messages, cause, fix)
