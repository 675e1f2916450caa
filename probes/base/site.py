"""What this site has configured for a run: rows of versions, silences, clients, documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache

from probes.base.frozen import frozen
from probes.base.text import version_numbers

COMPONENTS = {
    **{"firmware": "firmware", "driver": "NVIDIA driver", "kernel": "Linux", "nccl": "NCCL"},
    "efa": "EFA driver",
}
_VERSION = r"[0-9][0-9A-Za-z._+-]{0,60}"
_FIXED = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6}){2}")
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


TRAINS = {"firmware": 2, "driver": 1}
"""How many numbers of a version name a train of NVIDIA's firmware, or a branch of its driver."""


@frozen
class Floor:
    """The first version of each train that has a fix. One train may be newer than another that has it."""

    name: str  # "NVIDIA bulletin 5699"; of the configuration: "/etc/gdrtop/config.toml:7"
    reason: str  # what can happen without the fix
    firmware: tuple[str, ...] = ()  # of NVIDIA NICs: "28.43.8002"
    driver: tuple[str, ...] = ()  # of NVIDIA: "580.159.03"
    board: str = ""  # board id (PSID) of a NIC; "": any
    source: str = ""
    cve: str = ""
    published: date | None = None
    read: date | None = None  # when the source was read; None: a row of the configuration
    needs_vf: bool = False  # only a user of a virtual function can do it

    @property
    def is_of_site(self) -> bool:
        """Whether it is a row of the configuration."""
        return self.read is None

    def fixes(self, version: str, component: str = "firmware") -> tuple[str, ...]:
        """Return the fixed versions to choose from; () if the version has the fix, or no row is about it.

        Of a branch of the driver that it does not name, a bulletin does not say whether it is affected.
        """
        numbers, depth = version_numbers(version), TRAINS[component]
        fixed = _numbered(getattr(self, component)) if numbers else []
        family = [row for row in fixed if row[0][: depth - 1] == numbers[: depth - 1]]
        own = [row for row in family if row[0][:depth] == numbers[:depth]]
        if not own and component == "driver" and not self.is_of_site:
            return ()
        return tuple(text for each, text in own or family if numbers < each)


@cache
def _numbered(versions: tuple[str, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Return the versions of a floor with their numbers, the lowest first."""
    return sorted((version_numbers(text), text) for text in versions)


def parse_fixed(value: object, component: str = "firmware") -> tuple[str, ...]:
    """Return the versions of a floor, one for each train; ValueError if they are none."""
    versions = tuple(map(str, value)) if isinstance(value, list) else ()
    trains = {version_numbers(text)[: TRAINS[component]] for text in versions}
    if not versions or len(trains) < len(versions) or not all(map(_FIXED.fullmatch, versions)):
        raise ValueError(value)
    return versions


# Findings that an admin has silenced until a date; all judgments of a run have the same silences.


@frozen
class Silence:
    """One entry of the configuration."""

    id: str  # of the check
    reason: str
    until: date  # the last day on which it is in force, in local time
    device: str = ""  # an RDMA device or PCI address; "", in JSON null: all that the finding names
    nodes: frozenset[str] = frozenset()  # names of hosts, also without their domain; none: every node
    origin: str = ""  # "/etc/gdrtop/config.toml:7"

    def covers_node(self, names: Iterable[str]) -> bool:
        """Return whether it is about the node with these names; one without a name is in no set."""
        short = {name.partition(".")[0] for name in names}
        return not self.nodes or bool(self.nodes & {*names, *short})

    def is_expired(self, at: float) -> bool:
        """Return whether it has ended at a time in seconds since 1970."""
        try:
            return date.fromtimestamp(at) > self.until
        except (OSError, OverflowError, ValueError):  # a recording may have any clock
            return True


# Where this site has the clients of its cluster; all commands of a run look there.


@frozen
class ClusterPlaces:
    """The [cluster] table of the configuration."""

    commands: str = ""  # the directory of sinfo, scontrol, kubectl; "": a usual one
    slurm_conf: str = ""  # the file for SLURM_CONF where the environment has none
    rdma_resources: str = ""  # of pods, with names that do not say so: "example.com/fast, example.com/nic-*"


@frozen
class Site:
    """What all judgments and commands of a run take from the configuration."""

    combinations: tuple[SiteCombination, ...] = ()
    silences: tuple[Silence, ...] = ()  # expired ones too
    places: ClusterPlaces = ClusterPlaces()
    floors: tuple[Floor, ...] = ()
    pages: str = ""  # where gdrtop's documentation is published; "": nowhere


_in_force = [Site()]


def set_site(configured: Site) -> None:
    """Put this in force: gdrtop does it once, when it has read its configuration."""
    _in_force[0] = configured


def site() -> Site:
    """Return what is in force."""
    return _in_force[0]


# The documentation has a page for each check, and for each message of a program.


def page_of(*names: str) -> str:
    """Return where a page is below the address of the documentation: "findings/acs-redirect-enabled/"."""
    return "".join(f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}/" for name in names)


def finding_page(check: str) -> str:
    """Return where the page of a check is."""
    return page_of("findings", check)


def address_of(page: str) -> str:
    """Return the address of a page where the documentation is published."""
    pages = site().pages.rstrip("/")
    # A browser shows the files of a directory that no server serves.
    return f"{pages}/{page}{'index.html' if pages.startswith('file:') else ''}"
