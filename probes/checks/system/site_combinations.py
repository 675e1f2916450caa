"""The rows of a site's configuration, compared with the versions that gdrtop has read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.evidence import Evidence
from probes.base.site import SiteCombination, VersionRange
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.checks.nccl.library import versions_of
from probes.facts.rdma.devices import RdmaDevice
from probes.queries.jobs import jobs_of
from probes.snapshot.examination import Examination

_LINES = 2  # of evidence for each version that a row names


def seen_on_site(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    """Yield the versions that gdrtop has read if all that the row names is here.

    Nothing if one of them is not; why one is unknown if all others are here.
    """
    found: list[Evidence] = []
    unread: list[Unknown] = []
    for name, read in _READERS.items():
        if name not in row.versions and not (name == "firmware" and row.board):
            continue
        lines = list(read(row, examination))
        evidence = [line for line in lines if isinstance(line, Evidence)]
        if not lines:
            return
        found += evidence[:_LINES]
        unread += [] if evidence else [line for line in lines if isinstance(line, Unknown)]
    yield from unread or found


def devices_on_site(row: SiteCombination, examination: Examination) -> tuple[str, ...]:
    """Return the names of the NICs whose board and firmware a row names; none if it names neither."""
    if "firmware" not in row.versions and not row.board:
        return ()
    return tuple(device.name for device, is_here in _devices(row, examination) if is_here is True)


def _devices(row: SiteCombination, examination: Examination) -> Iterator[tuple[RdmaDevice, Maybe[bool]]]:
    """Yield each NIC, and whether the row names its board and firmware."""
    rdma, versions = examination.node.rdma, row.versions.get("firmware")
    for device in () if isinstance(rdma, Unknown) else rdma.devices:
        if isinstance(device.bdf, Unknown) and device.bdf.reason is Reason.NOT_THERE:
            continue  # a software device has no firmware
        board, firmware = device.board_id, device.firmware
        if row.board and isinstance(board, Unknown):
            # Only some drivers show a board id.
            yield device, False if board.reason is Reason.NOT_THERE else board
        elif row.board and board != row.board:
            yield device, False
        else:
            yield device, True if versions is None else map_known(firmware, versions.contains)


def _firmware(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    rdma = examination.node.rdma
    if isinstance(rdma, Unknown) and rdma.reason is not Reason.NOT_THERE:
        yield rdma
    board = f", board {row.board}" if row.board else ""
    for device, is_here in _devices(row, examination):
        if isinstance(is_here, Unknown):
            yield is_here
        elif is_here:
            yield Evidence(f"{device.sysfs_path}/fw_ver", f"{known(device.firmware, 'unknown')}{board}")


def _driver(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    if not isinstance(version, Unknown) or version.reason is not Reason.NOT_THERE:  # not loaded
        yield from _named("/proc/driver/nvidia/version", version, row.versions["driver"])


def _kernel(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    yield from _named("/proc/sys/kernel/osrelease", examination.node.kernel_release, row.versions["kernel"])


def _named(source: str, version: Maybe[str], versions: VersionRange) -> Iterator[Evidence | Unknown]:
    if isinstance(version, Unknown):
        yield version
    elif versions.contains(version):
        yield Evidence(source, version)


def _nccl(row: SiteCombination, examination: Examination) -> Iterator[Evidence | Unknown]:
    for process in jobs_of(examination).processes:
        if isinstance(process.libraries, Unknown):
            yield process.libraries
        for library, _version in versions_of(process, "libnccl"):
            if row.versions["nccl"].contains(str(library.version)):
                yield Evidence(f"/proc/{process.pid}/maps", f"NCCL {library.version}")


_Reader = Callable[[SiteCombination, Examination], Iterator["Evidence | Unknown"]]
_READERS: dict[str, _Reader] = {"firmware": _firmware, "driver": _driver, "kernel": _kernel, "nccl": _nccl}
