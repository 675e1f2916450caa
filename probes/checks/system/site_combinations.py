"""The rows of a site's configuration, compared with the versions that gdrtop has read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probes.base.site_combinations import SiteCombination, VersionRange
from probes.base.unknown import Unknown, known, map_known
from probes.checks.nccl.library import versions_of
from probes.queries.finding import Evidence
from probes.queries.jobs import jobs_of
from probes.snapshot.examination import Examination


def seen_on_site(row: SiteCombination, examination: Examination) -> Iterator[Evidence]:
    """Yield the versions that gdrtop has read; nothing unless all that the row names is here."""
    found: list[Evidence] = []
    for name, read in _READERS.items():
        versions = row.versions.get(name)
        if versions is None and not (name == "firmware" and row.board):
            continue
        evidence = read(row, versions, examination)
        if not evidence:
            return
        found.extend(evidence)
    yield from found


def _firmware(
    row: SiteCombination, versions: VersionRange | None, examination: Examination
) -> list[Evidence]:
    rdma = examination.node.rdma
    return [
        Evidence(f"{device.sysfs_path}/fw_ver", f"{known(device.firmware, 'unknown')}{board}")
        for device in (() if isinstance(rdma, Unknown) else rdma.devices)
        if not row.board or device.board_id == row.board
        if versions is None or versions.contains(known(device.firmware, ""))
        for board in [f", board {device.board_id}" if row.board else ""]
    ]


def _driver(_: SiteCombination, versions: VersionRange | None, examination: Examination) -> list[Evidence]:
    version = map_known(examination.node.gpus, lambda gpus: gpus.driver.version)
    return _named("/proc/driver/nvidia/version", known(version, ""), versions)


def _kernel(_: SiteCombination, versions: VersionRange | None, examination: Examination) -> list[Evidence]:
    return _named("/proc/sys/kernel/osrelease", known(examination.node.kernel_release, ""), versions)


def _named(source: str, version: str, versions: VersionRange | None) -> list[Evidence]:
    return [Evidence(source, version)] if versions is not None and versions.contains(version) else []


def _nccl(_: SiteCombination, versions: VersionRange | None, examination: Examination) -> list[Evidence]:
    return [
        Evidence(f"/proc/{settings.process.pid}/maps", f"NCCL {library.version}")
        for settings in jobs_of(examination).settings
        if settings.process is not None and versions is not None
        for library, _ in versions_of(settings.process, "libnccl")
        if versions.contains(str(library.version))
    ]


_Reader = Callable[[SiteCombination, VersionRange | None, Examination], list[Evidence]]
_READERS: dict[str, _Reader] = {"firmware": _firmware, "driver": _driver, "kernel": _kernel, "nccl": _nccl}
