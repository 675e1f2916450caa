"""What the packages of an upgrade mean for GPUDirect RDMA: kernels, headers, drivers, libraries.

Names: packages.debian.org, packages.ubuntu.com, NVIDIA's Driver Installation Guide (since 590 without the
branch), DOCA-Host (mlnx-ofed-kernel on Debian, mlnx-ofa_kernel on Red Hat), SUSE's kernel-FLAVOR.
"""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache

from probes.base.data_files import read_toml
from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.kernel.release import is_release
from probes.host.protocol import CommandOutput

# The packages that an upgrade would change, as apt-get, dnf and zypper print them.
#
# `apt-get --simulate` prints a line per package: "Inst NAME [OLD] (NEW ORIGIN [ARCH])", "Remv NAME [OLD]".
# dnf(8) prints a table with a heading per kind of change; on a terminal, a cell that does not fit continues
# on the next line. zypper(8) is read as XML, `--xmlout`: <to-upgrade> and others around a <solvable/> per
# package.

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
    **dict.fromkeys(("Reinstalling", "Upgrading", "Downgrading", "Updating"), ChangeKind.CHANGED),
    **dict.fromkeys(("Removing", "Obsoleting"), ChangeKind.REMOVED),
}
_SECTIONS = {
    "to-install": ChangeKind.NEW,
    **dict.fromkeys(("to-upgrade", "to-downgrade", "to-reinstall"), ChangeKind.CHANGED),
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
            if line[1:2] not in (" ", "\t"):
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
        chosen.setdefault((change.name, change.new), change)
    kept = {name for name, new in chosen if new}
    return tuple(change for (name, new), change in chosen.items() if new or name not in kept)[:MAX_PACKAGES]


KERNEL, HEADERS = "kernel", "kernel headers"
GPU_MODULES, GPU_LIBRARIES, MANAGER = "GPU driver", "GPU driver libraries", "Fabric Manager"
NIC_MODULES = "NIC driver"
_NIC_FILES = re.compile(
    r"mlnx-ofed-kernel-(?:dkms|modules).*|(?:kmod-)?mlnx-ofa_kernel(?!-(?:devel|source)).*"
)
_DEBIAN_KERNEL = re.compile(r"linux-(?:image(?:-unsigned)?|headers)-(\d[\w.+~-]*)")
_NOT_KERNELS = ("-dbg", "-dbgsym", "-common", "-unsigned")
_FLAVORS = re.compile(r"kernel-(64k|rt|default|azure|64kb|uek)\b")
_SUSE = ("default", "azure", "64kb")
_DRIVER_VERSION = re.compile(r"(?:\d+:)?(\d{3}\.\d{1,4}(?:\.\d{1,4})?)(?![\d.])")
_PREBUILT = re.compile(r"linux-(?:modules|objects)-nvidia-.*")


@frozen
class Upgrade:
    """An upgrade that is planned."""

    command: str  # as the admin typed it; "" if its output was given
    changes: tuple[PackageChange, ...]

    @property
    def relevant(self) -> tuple[tuple[str, PackageChange], ...]:
        """Return the packages that concern GPUDirect RDMA with their subjects, in the order of these."""
        order = [*_subjects()]
        found = [(subject, change) for change in self.changes if (subject := subject_of(change.name))]
        return tuple(sorted(found, key=lambda row: order.index(row[0])))

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the releases of the kernels that it installs, in the order of its packages."""
        return tuple(dict.fromkeys(self._releases(KERNEL)))

    def has_headers(self, release: str) -> bool:
        """Return whether it installs the headers of a kernel."""
        return release in self._releases(HEADERS)

    def has_prebuilt_driver(self, release: str) -> bool:
        """Return whether it installs GPU modules that were built for this kernel."""
        version = release.rpartition(".")[0] or release
        endings = (f"-{release}", f"-{version}")
        return any(change.name.endswith(endings) for change in self._installed(GPU_MODULES))

    @property
    def driver_version(self) -> str:
        """Return the version that the GPU's modules will have; "" if they stay as they are."""
        rows = [change for change in self._installed(GPU_MODULES) if not _PREBUILT.fullmatch(change.name)]
        if not rows and any(_PREBUILT.fullmatch(change.name) for change in self._installed(GPU_MODULES)):
            return self.library_version
        return _version_of(rows)

    @property
    def library_version(self) -> str:
        """Return the version that libcuda will have; "" if it stays as it is."""
        return _version_of(self._installed(GPU_LIBRARIES))

    @property
    def manager_version(self) -> str:
        """Return the version that Fabric Manager will have; "" if it stays as it is."""
        return _version_of(self._installed(MANAGER))

    @property
    def new_flavor(self) -> bool | None:
        """Return whether GPU modules that it newly installs are open ones; None: it installs no others."""
        new = [change.name for change in self._installed(GPU_MODULES) if change.kind is ChangeKind.NEW]
        kinds = {"open" in name for name in new if not _PREBUILT.fullmatch(name) or "-nvidia-" in name}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def nic_modules(self) -> tuple[PackageChange, ...]:
        """Return the packages with modules of OFED that it installs or removes."""
        return tuple(change for change in self.changes if _NIC_FILES.fullmatch(change.name))

    def removes(self, subject: str) -> bool:
        """Return whether it removes the packages of a subject that has modules, and installs no others."""
        own = tuple(change for change in self.changes if subject_of(change.name) == subject)
        rows = self.nic_modules if subject == NIC_MODULES else own
        return bool(rows) and all(change.kind is ChangeKind.REMOVED for change in rows)

    def _installed(self, subject: str) -> list[PackageChange]:
        return [change for change in self.changes if change.new and subject_of(change.name) == subject]

    def _releases(self, subject: str) -> list[str]:
        return [release for change in self._installed(subject) if (release := release_of(change))]


@cache
def _subjects() -> dict[str, str]:
    """Return the patterns of package names by subject."""
    return read_toml(__package__, "packages.toml")


def subject_of(name: str) -> str:
    """Return what a package belongs to: "kernel", "GPU driver"; "": nothing that GPUDirect RDMA uses."""
    return next((subject for subject, pattern in _subjects().items() if re.fullmatch(pattern, name)), "")


def release_of(change: PackageChange) -> str:
    """Return the release, as `uname -r` prints it, of a kernel or its headers; "" if it has none.

    Debian's packages have it in their names. Red Hat's is VERSION-RELEASE.ARCH with "+64k" or "+rt" for
    those kernels; SUSE's is the version without the last number, the rebuild, and the flavor.
    """
    match = _DEBIAN_KERNEL.fullmatch(change.name)
    if match is not None:
        return "" if match[1].endswith(_NOT_KERNELS) else _checked(match[1])
    version = change.new.partition(":")[2] or change.new
    flavor = (_FLAVORS.match(change.name) or [""])[0].removeprefix("kernel-")
    if flavor in _SUSE:
        return _checked(f"{version.rpartition('.')[0]}-{flavor}")
    suffix = f"+{flavor}" if flavor in ("64k", "rt") else ""
    return _checked(f"{version}.{change.architecture}{suffix}") if change.architecture != "noarch" else ""


def _checked(release: str) -> str:
    return release if is_release(release) else ""


def _version_of(rows: Sequence[PackageChange]) -> str:
    matches = (_DRIVER_VERSION.match(change.new) for change in rows)
    return next((match[1] for match in matches if match), "")


# The read-only form of a command that upgrades packages: what the package manager itself says it would do.
#
# Nothing is downloaded, installed, locked or cached: apt-get(8) --simulate, with its caches disabled
# (apt.conf(5), Dir::Cache::pkgcache); dnf(8) --assumeno --cacheonly; zypper(8) --no-refresh and --dry-run.
# The answer follows from the package lists that the node already has.

_SIMULATE = (
    *("apt-get", "--simulate", "-o", "Debug::NoLocking=true"),
    *("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="),
)
_APT_COMMANDS = ("upgrade", "dist-upgrade", "full-upgrade", "install", "remove", "autoremove")
_DNF = ("upgrade", "update", "upgrade-minimal", "distro-sync", "install", "remove", "autoremove", "downgrade")
_ZYPPER = ("update", "up", "dist-upgrade", "dup", "patch", "install", "in", "remove", "rm")
_PACKAGE = re.compile(r"[A-Za-z0-9@][A-Za-z0-9.+:_~=*^@/-]{0,200}")
_ANSWERS = ("-y", "--yes", "--assume-yes", "--assumeyes", "-q", "--quiet", "-n", "--non-interactive", "-qq")
"""Options that only answer questions or print less: left out."""
_OPTIONS = re.compile(
    r"--(?:with-new-pkgs|no-install-recommends|allow-downgrades|only-upgrade|target-release=[\w./:-]{1,64}"
    r"|enablerepo=[\w*,.-]{1,128}|disablerepo=[\w*,.-]{1,128}|exclude=[\w*,.+-]{1,256}|releasever=[\w.-]{1,32}"
    r"|nobest|best|allowerasing|security|skip-broken|no-recommends|allow-vendor-change|no-allow-vendor-change"
    r"|from=[\w.:-]{1,64}|force-resolution)"
)
_MOST_WORDS = 64


class NoUpgradeCommand(ValueError):
    """The text is not a command whose effect can be asked for; the message says why."""


def simulated(command: str) -> tuple[str, ...]:
    """Return the argv that prints what `command` would change.

    Raises:
        NoUpgradeCommand: it is no upgrade by apt-get, dnf or zypper, or has an option that is not known here.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise NoUpgradeCommand(f"the command cannot be read: {error}") from error
    words = words[1:] if words[:1] == ["sudo"] else words
    if len(words) > _MOST_WORDS:
        raise NoUpgradeCommand(f"more than {_MOST_WORDS} words")
    tool = words[0] if words else ""
    rest = [word for word in words[1:] if word not in _ANSWERS]
    options = [word for word in rest if word.startswith("-")]
    for option in options:
        if _OPTIONS.fullmatch(option) is None:
            raise NoUpgradeCommand(f"the option {option} is not known here; leave it out")
    action, *packages = [word for word in rest if not word.startswith("-")] or [""]
    for package in packages:
        if _PACKAGE.fullmatch(package) is None or "//" in package:
            raise NoUpgradeCommand(f"{package!r} is no package name; give one command, without && or ;")
    if tool in ("apt-get", "apt") and action in _APT_COMMANDS:
        more = ["--with-new-pkgs"] if tool == "apt" and action == "upgrade" else []
        action = action.replace("full-", "dist-")
        return (*_SIMULATE, *more, *options, action, *packages)
    if tool in ("dnf", "yum") and action in _DNF:
        return (tool, "--cacheonly", "--assumeno", *options, action, *packages)
    if tool == "zypper" and action in _ZYPPER:
        known = ("--xmlout", "--non-interactive", "--no-refresh")
        return (tool, *known, action, "--dry-run", *options, *packages)
    raise NoUpgradeCommand(
        "only upgrade, install and remove of apt-get, apt, dnf, yum and zypper can be simulated"
    )
