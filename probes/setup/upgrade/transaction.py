"""The packages that an upgrade would change, as apt-get, dnf and zypper print them.

`apt-get --simulate` prints a line per package: "Inst NAME [OLD] (NEW ORIGIN [ARCH])", "Remv NAME [OLD]".
dnf(8) prints a table with a heading per kind of change; on a terminal, a cell that does not fit continues on
the next line.
zypper(8) is read as XML, `--xmlout`: <to-upgrade> and others around a <solvable/> per package.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.answers import CommandOutput

MAX_PACKAGES = 20_000
_MAX_NAME = 128
_APT = re.compile(
    r"(?P<action>Inst|Remv|Purg) (?P<name>[A-Za-z0-9][A-Za-z0-9+.:-]{0,127})"
    r"(?: \[(?P<old>[!-Z^-~]{1,128})\])?"
    r"(?: \((?P<new>[!-(*-~]{1,128})[^\[)]{0,512}(?:\[(?P<architecture>[a-z0-9-]{1,20})\])?)?"
)
_SOLVABLE = re.compile(r"<(?P<section>/?to-[a-z-]{1,30})>|<solvable (?P<fields>[^<>]{1,4096})>")
_FIELD = re.compile(r'([a-z-]{1,20})="([^"]{0,512})"')
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~^:_-]{0,127}")
_ARCHITECTURE = re.compile(r"[a-z][a-z0-9_]{2,15}")
_NOTHING = ("0 upgraded, 0 newly installed, 0 to remove", "Nothing to do")
_COLORS = re.compile(r"\x1b(?:\[[0-9;?]{0,16}[A-Za-z]|\([AB0])")
_REPLACING = "replacing"


class ChangeKind(Enum):
    """What happens to a package."""

    NEW = "new"  # also a further version beside the installed ones, as of kernels
    CHANGED = "changed"  # another version
    REMOVED = "removed"


@frozen
class PackageChange:
    """One package of an upgrade."""

    name: str
    kind: ChangeKind
    old: str = ""  # version; "": not installed, or not shown
    new: str = ""  # "": removed
    architecture: str = ""  # "x86_64", "amd64"; "": not shown


_HEADINGS = {
    "Installing": ChangeKind.NEW,
    "Reinstalling": ChangeKind.CHANGED,
    "Upgrading": ChangeKind.CHANGED,
    "Downgrading": ChangeKind.CHANGED,
    "Updating": ChangeKind.CHANGED,
    "Removing": ChangeKind.REMOVED,
    "Obsoleting": ChangeKind.REMOVED,
}
_SECTIONS = {
    "to-install": ChangeKind.NEW,
    "to-upgrade": ChangeKind.CHANGED,
    "to-downgrade": ChangeKind.CHANGED,
    "to-reinstall": ChangeKind.CHANGED,
    "to-remove": ChangeKind.REMOVED,
}


def changes_of(output: CommandOutput) -> Maybe[tuple[PackageChange, ...]]:
    """Return what a simulated upgrade would change; unknown if the package manager could not tell."""
    found = parse(output.stdout)
    if found or any(words in output.stdout for words in _NOTHING):
        return found
    name = printable(" ".join(output.argv), 160)
    errors = output.stderr.strip() or output.stdout.strip()
    last = next((line.strip() for line in reversed(errors.split("\n")) if line.strip(" </>stream")), "")
    error = _ERROR_TAG.sub("", last) or "no packages in its output"
    return Unknown(Reason.IO_ERROR, name, printable(html.unescape(error), 160))


_ERROR_TAG = re.compile(r"<[^<>]{0,200}>")


def parse(text: str) -> tuple[PackageChange, ...]:
    """Parse the output of one of the three package managers; () if it names no package.

    What was printed on a terminal may have colors.
    """
    text = _COLORS.sub("", text)
    if "<to-" in text:
        return parse_zypper(text)
    return parse_apt(text) or parse_dnf(text)


def parse_apt(text: str) -> tuple[PackageChange, ...]:
    """Parse the output of `apt-get --simulate`."""
    found = []
    for match in filter(None, map(_APT.match, text.split("\n")[: 3 * MAX_PACKAGES])):
        kind = ChangeKind.CHANGED if match["old"] else ChangeKind.NEW
        if match["action"] != "Inst":
            kind = ChangeKind.REMOVED
        new = "" if kind is ChangeKind.REMOVED else match["new"] or ""
        name = match["name"].partition(":")[0]
        found.append(PackageChange(name, kind, match["old"] or "", new, match["architecture"] or ""))
    return _distinct(found)


def parse_dnf(text: str) -> tuple[PackageChange, ...]:
    """Parse the table of dnf 4 and dnf 5.

    dnf 5 shows the old version in a line "replacing NAME ARCH VERSION"; in dnf 4 that is another package,
    which this one replaces: "replacing NAME.ARCH VERSION".
    """
    found: list[PackageChange] = []
    kind: ChangeKind | None = None
    words: list[str] = []
    for line in text.split("\n")[: 3 * MAX_PACKAGES]:
        heading = line.partition(":")[0].split(" ")[0] if line.rstrip().endswith(":") else ""
        if line[:1] not in (" ", "\t"):
            _add(found, kind, words)
            kind, words = _HEADINGS.get(heading), []
        elif kind is not None and line.split()[:1] == [_REPLACING]:
            _add(found, kind, words)
            words = []
            _replace(found, line.split()[1:])
        elif kind is not None:
            is_start = line[1:2] not in (" ", "\t")
            if is_start:
                _add(found, kind, words)
                words = []
            words += line.split()
    _add(found, kind, words)
    return _distinct(found)


def _add(found: list[PackageChange], kind: ChangeKind | None, words: list[str]) -> None:
    """Add the package of a row: name, architecture, version, repository, size."""
    if kind is None or len(words) < 4:
        return
    name, architecture, version = words[:3]
    if _ARCHITECTURE.fullmatch(architecture) is None or _VERSION.fullmatch(version) is None:
        return
    old, new = (version, "") if kind is ChangeKind.REMOVED else ("", version)
    found.append(PackageChange(printable(name, _MAX_NAME), kind, old, new, architecture))


def _replace(found: list[PackageChange], words: list[str]) -> None:
    """Note what the last package replaces: its own old version, or another package."""
    if len(words) == 2 and _VERSION.fullmatch(words[1]):
        name, _, architecture = words[0].rpartition(".")
        if name:
            shown = printable(name, _MAX_NAME)
            found.append(PackageChange(shown, ChangeKind.REMOVED, words[1], "", printable(architecture, 16)))
    elif len(words) > 2 and _VERSION.fullmatch(words[2]) and found:
        last = found[-1]
        if words[0] == last.name:
            found[-1] = PackageChange(last.name, last.kind, words[2], last.new, last.architecture)
        else:
            shown = printable(words[0], _MAX_NAME)
            found.append(PackageChange(shown, ChangeKind.REMOVED, words[2], "", printable(words[1], 16)))


def parse_zypper(text: str) -> tuple[PackageChange, ...]:
    """Parse the output of `zypper --xmlout`."""
    found: list[PackageChange] = []
    kind: ChangeKind | None = None
    for match in _SOLVABLE.finditer(text):
        if match["section"] is not None:
            kind = _SECTIONS.get(match["section"])
            continue
        fields = {key: html.unescape(value) for key, value in _FIELD.findall(match["fields"])}
        name, edition = fields.get("name", ""), fields.get("edition", "")
        if kind is None or fields.get("type") != "package" or not name or not _VERSION.fullmatch(edition):
            continue
        old = edition if kind is ChangeKind.REMOVED else printable(fields.get("edition-old", ""), 128)
        new = "" if kind is ChangeKind.REMOVED else edition
        architecture = printable(fields.get("arch", ""), 16)
        found.append(PackageChange(printable(name, _MAX_NAME), kind, old, new, architecture))
    return _distinct(found)


def _distinct(found: Iterable[PackageChange]) -> tuple[PackageChange, ...]:
    """Return the packages once each: apt-get names a package for each of its architectures.

    Of one that is removed and installed, the installation counts.
    """
    chosen: dict[tuple[str, str], PackageChange] = {}
    for change in found:
        key = (change.name, change.new)
        chosen.setdefault(key, change)
    kept = {name for name, new in chosen if new}
    rows = (change for (name, new), change in chosen.items() if new or name not in kept)
    return tuple(rows)[:MAX_PACKAGES]
