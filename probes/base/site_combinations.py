"""Rows that a site adds to the table of versions that do not work together; all judgments have them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from probes.base.frozen import frozen
from probes.base.text import version_numbers

COMPONENTS = {"firmware": "firmware", "driver": "NVIDIA driver", "kernel": "Linux", "nccl": "NCCL"}
_VERSION = r"[0-9][0-9A-Za-z._+-]{0,60}"
_RANGE = re.compile(rf"(before )?({_VERSION})(?: to ({_VERSION})| (or newer))?")


@frozen
class VersionRange:
    """Versions such as "28.39.1002", "before 28.43", "28.39 to 28.41" or "28.43 or newer"."""

    text: str
    first: tuple[int, ...]
    last: tuple[int, ...] | None  # None: no last one
    before: tuple[int, ...] | None = None

    def contains(self, version: str) -> bool:
        """Return whether a version is in the range; 28.39 includes 28.39.1002."""
        numbers = version_numbers(version)
        if self.before is not None:
            return () < numbers < self.before
        return self.first <= numbers and (self.last is None or numbers[: len(self.last)] <= self.last)


def parse_range(text: str) -> VersionRange:
    """Return the range that a text names; ValueError if it names none, or the last comes before the first."""
    text = text.strip()
    match = _RANGE.fullmatch(text)
    if match is None or (match[1] and (match[3] or match[4])):
        raise ValueError(text)
    version = version_numbers(match[2])
    if match[1]:
        return VersionRange(text, (), None, version)
    last = None if match[4] else version_numbers(match[3]) if match[3] else version
    if last is not None and last < version[: len(last)]:
        raise ValueError(text)
    return VersionRange(text, version, last)


@frozen
class SiteCombination:
    """One row of the configuration: all that it names must be there."""

    symptom: str
    cure: str
    versions: Mapping[str, VersionRange]  # by the keys of COMPONENTS
    board: str = ""  # board id (PSID) of a NIC; its firmware is the one that counts
    source: str = ""  # "ticket 4711"
    origin: str = ""  # "/etc/gdrtop/config.toml:7"


def components(row: SiteCombination) -> str:
    """Return what a row is about: "NIC MT_0000000838, firmware before 28.43, Linux 6.8"."""
    parts = [f"NIC {row.board}"] if row.board else []
    parts += [f"{COMPONENTS[name]} {versions.text}" for name, versions in row.versions.items()]
    return ", ".join(parts)


_in_force: list[SiteCombination] = []


def set_site_combinations(rows: Iterable[SiteCombination]) -> None:
    """Put these rows in force, and no others: gdrtop does it once, when it has read its configuration."""
    _in_force[:] = rows


def site_combinations() -> tuple[SiteCombination, ...]:
    """Return the rows in force."""
    return tuple(_in_force)
