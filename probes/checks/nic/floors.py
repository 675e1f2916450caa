"""Firmware of NVIDIA NICs, and NVIDIA drivers, older than a fix: security bulletins, and floors of the site.

The floors of NVIDIA hold within a train of releases: 28.43.8002 is fixed, and 28.45.1020 is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timezone
from functools import cache
from typing import Any

from probes.base.data_files import read_toml
from probes.base.evidence import Evidence, Severity, first_n
from probes.base.grouping import grouped
from probes.base.site import TRAINS, Floor, site
from probes.base.text import join_limited, version_numbers
from probes.base.unknown import Maybe, Reason, Unknown, first_unread, is_there, known, map_known, parse_known
from probes.facts.gpudirect import parse_driver_version
from probes.facts.rdma.devices import RdmaDevice, has_own_firmware
from probes.plans.common import reboot_plan
from probes.plans.packages import in_driver_container
from probes.plans.ports import update_firmware
from probes.queries.finding import RDMA_DEVICES, Area, Outcome, found, need, passed
from probes.queries.pcie_paths import functions_of
from probes.snapshot.examination import Examination

AREA = Area("nic", __package__)
DRIVER = Area("gpu", __package__)
TABLE = "gdrtop help versions"
_NO_NIC = Evidence(
    "/sys/class/infiniband", "no ConnectX-4 or newer, except VFs, whose firmware is their host's"
)
_NO_DRIVER = Evidence("/sys/module/nvidia", "the driver is not loaded")
_VERSION_FILE = "/sys/module/nvidia/version"
_OLD_DAYS = 365


@cache
def shipped_floors() -> tuple[Floor, ...]:
    """Return the rows of floors.toml, the newest bulletin first."""
    rows: dict[str, dict[str, Any]] = read_toml(__package__, "floors.toml")
    lists = {name: {key: tuple(row[key]) for key in TRAINS if key in row} for name, row in rows.items()}
    return tuple(Floor(name, **{**row, **lists[name]}) for name, row in rows.items())


def age_of_table(at: float) -> str:
    """Return "as of 2026-11" of the shipped floors, and that they are old at a time in seconds since 1970."""
    read = max(floor.read or date.min for floor in shipped_floors())
    days = (at - datetime(read.year, read.month, read.day, tzinfo=timezone.utc).timestamp()) / 86400
    is_old = days > _OLD_DAYS
    return f"as of {read:%Y-%m}{'; the table is over a year old, so look for newer bulletins' * is_old}"


def _nics(examination: Examination) -> tuple[RdmaDevice, ...]:
    """Return the NICs of NVIDIA, also in pods, without virtual functions: the firmware is their host's."""
    rdma = examination.node.rdma
    devices = () if is_there(rdma) is False else need(rdma, RDMA_DEVICES).readable
    return tuple(
        device for device in devices if not isinstance(device.bdf, Unknown) and has_own_firmware(device)
    )


def _version(device: RdmaDevice) -> Maybe[str]:
    source = f"{device.sysfs_path}/fw_ver"
    malformed = Unknown(Reason.MALFORMED, source)
    return map_known(device.firmware, lambda text: text if len(version_numbers(text)) > 2 else malformed)


@AREA.note("firmware-below-floor")
def firmware_below_floor(examination: Examination) -> Outcome:
    """Compare the firmware of NICs with the fixed versions of its train; a warning where VFs exist."""
    nics = _nics(examination)
    below = [match for nic in nics for match in _matches(nic)]
    if not below:
        need(first_unread(map(_version, nics)), "the NICs' firmware versions")
        return passed(*_shown(nics) or (_NO_NIC,), Evidence(TABLE, age_of_table(examination.taken_at)))
    rows = tuple({floor.name: floor for _, floor, _ in below}.values())
    groups = grouped(((nic.board_id, nic.firmware, fixes), nic) for nic, _, fixes in below)
    texts = [_text(members, fixes) for (_, _, fixes), members in groups.items()]
    pci = examination.node.pci
    owners = {function.physical_function for function in functions_of(examination).values()}
    exposed = [nic.name for nic, floor, _ in below if floor.needs_vf and known(nic.bdf, "") in owners]
    if exposed:
        texts.append(f"VFs exist on {join_limited(exposed)}")
    elif any(floor.needs_vf for floor in rows):
        texts.append(f"VFs are unknown ({pci})" if isinstance(pci, Unknown) else "These NICs have no VFs now")
    is_of_site = any(floor.is_of_site for floor in rows)
    affected = tuple({nic.sysfs_path: nic for nic, _, _ in below}.values())
    return found(
        f"{'. '.join(texts)}.",
        *_shown(affected),
        *(Evidence(floor.source or floor.name, _named(floor)) for floor in rows),
        fix=update_firmware(examination, "Install firmware with the fix", affected),
        severity=Severity.WARNING if exposed or is_of_site else Severity.NOTE,
        devices=tuple(nic.name for nic in affected),
        impact=" ".join(dict.fromkeys(floor.reason for floor in rows)),
        title="NIC firmware is older than this site requires" if is_of_site else "",
    )


def _matches(nic: RdmaDevice) -> list[tuple[RdmaDevice, Floor, tuple[str, ...]]]:
    """Return the rows that a NIC is below, with their fixes: the site's, and the newest bulletin.

    The fix of a bulletin has those of all older ones.
    """
    version = known(_version(nic), "")
    own = [(nic, floor, floor.fixes(version)) for floor in site().floors if floor.board in ("", nic.board_id)]
    shipped = [(nic, floor, floor.fixes(version)) for floor in shipped_floors()]
    return [*(match for match in own if match[2]), *[match for match in shipped if match[2]][:1]]


def _shown(nics: Iterable[RdmaDevice]) -> tuple[Evidence, ...]:
    """Return where each version was read, once."""
    first = {nic.firmware: nic for nic in reversed(tuple(nics))}
    return first_n(Evidence(f"{nic.sysfs_path}/fw_ver", known(nic.firmware, "")) for nic in first.values())


def _text(nics: list[RdmaDevice], fixes: tuple[str, ...]) -> str:
    """Return "mlx5_0, mlx5_1 (board MT_0000000838): 28.43.2566, fixed in 28.43.8002"."""
    board, firmware = nics[0].board_id, known(nics[0].firmware, "")
    where = (
        f"{join_limited(nic.name for nic in nics)}{'' if isinstance(board, Unknown) else f' (board {board})'}"
    )
    train = version_numbers(firmware)[:2]
    if version_numbers(fixes[0])[:2] == train:
        return f"{where}: {firmware}, fixed in {fixes[0]}"
    return f"{where}: {firmware}. Its train {train[1]} has no fix: move to {' or '.join(fixes)}"


def _named(floor: Floor) -> str:
    """Return "NVIDIA bulletin 5699 of 2026-06-30, CVE-2025-23350, CVSS 9.0"; of a site's row, its place."""
    return f"{floor.name} of {floor.published}, {floor.cve}" if floor.published else floor.name


@DRIVER.note("driver-below-floor")
def driver_below_floor(examination: Examination) -> Outcome:
    """Compare the NVIDIA driver with the newest bulletin about its branch, and with the site's floors."""
    driver = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    version = need(driver, "the driver's version", absent=_NO_DRIVER)
    branch = need(parse_known(driver, parse_driver_version, _VERSION_FILE), "the driver's version")[0]
    loaded = Evidence(_VERSION_FILE, version)
    bulletins = [floor for floor in shipped_floors() if floor.driver]
    own = [(floor, fixes) for floor in site().floors if (fixes := floor.fixes(version, "driver"))]
    old = [(floor, fixes) for floor in bulletins if (fixes := floor.fixes(version, "driver"))]
    below = [*own, *old[:1]]
    if not below:
        named = {version_numbers(text)[0] for text in bulletins[0].driver}
        is_unnamed = branch not in named and branch < max(named)
        unnamed = (Evidence(bulletins[0].name, f"it names no fix of branch {branch}"),) * is_unnamed
        return passed(loaded, *unnamed, Evidence(TABLE, age_of_table(examination.taken_at)))
    fixed = " or ".join(dict.fromkeys(text for _, fixes in below for text in fixes))
    install = f"install {fixed} or a newer driver of its branch, and reboot"
    if in_driver_container(examination):
        install = f"set driver.version of the GPU Operator to {fixed}"
    return found(
        f"The driver is {version}, fixed in {fixed}.",
        loaded,
        *(Evidence(floor.source or floor.name, _named(floor)) for floor, _ in below),
        fix=reboot_plan("Install a driver with the fix", f"Drain the node, and {install}"),
        severity=Severity.WARNING if own else None,
        devices=("nvidia",),
        impact=" ".join(dict.fromkeys(floor.reason for floor, _ in below)),
        title="The NVIDIA driver is older than this site requires" if own else "",
    )
