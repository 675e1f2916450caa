"""The distribution, and the package that a file belongs to, from the databases of dpkg and rpm.

dpkg-query(1): --search prints "PACKAGE[:ARCH][, …]: FILE" for the files that it knows. rpm(8): --query --file
prints a line for each owner in the order of the files, or "… is not owned by any package". Both exit with a
nonzero status if a file has no owner.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown, is_there, map_known
from probes.facts.system.platform import parse_os_release_fields, read_os_release
from probes.host.protocol import CommandOutput, Host

_SECONDS = 3.0
_VERSION_LIMIT = 80
_OWNER = re.compile(r"(?P<package>[a-z0-9][a-z0-9+.-]{1,100})(?::[a-z0-9-]{1,20})?")
_SHOWN = re.compile(r"(?P<package>[a-z0-9][a-z0-9+.-]{1,100}) (?P<version>\S+)")
_RPM_FORMAT = "%{NAME} %{VERSION}-%{RELEASE}\\n"
_NO_DATABASE = Unknown(Reason.NOT_THERE, "dpkg-query, rpm", "neither dpkg nor rpm is installed")
_RPM_OWNED = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9+._-]{0,100}) (?P<version>\S+)")


@frozen
class Package:
    """One package of the system."""

    name: str  # "gdrcopy-tests"
    version: str  # "2.5-1", with the distribution's suffix


def packages_of(host: Host, paths: Sequence[str]) -> dict[str, Maybe[Package]]:
    """Return the package of each file, by dpkg, then by rpm: some systems have both; NOT_THERE: none."""
    found: dict[str, Maybe[Package]] = dict.fromkeys(paths, _NO_DATABASE)
    for ask in (_dpkg, _rpm):
        wanted = [path for path in paths if is_there(found[path]) is False]
        found |= ask(host, wanted) if wanted else {}
    return found


def owner_of(host: Host, paths: Sequence[str]) -> Maybe[Package]:
    """Return the package of the first of these files that has one; NOT_THERE: none has.

    dpkg knows a file in /lib as the one in /usr/lib if its package moved there (usrmerge), and no link of
    update-alternatives(1), such as Debian's /usr/bin/nvidia-smi.
    """
    targets = (host.resolve(path) for path in paths)
    asked = list(dict.fromkeys((*paths, *(path for path in targets if not isinstance(path, Unknown)))))
    if not asked:
        return Unknown(Reason.NOT_THERE, "dpkg-query, rpm", "no file to look up")
    answers = list(packages_of(host, asked).values())
    return next((answer for answer in answers if not isinstance(answer, Unknown)), answers[0])


def owner_of_module(host: Host, file: Maybe[str], program: str) -> Maybe[Package]:
    """Return the package of a module's file, else of its program: DKMS's files belong to no package."""
    paths = [file] if isinstance(file, str) and file.startswith("/") else []
    return owner_of(host, paths if isinstance(host.size(program), Unknown) else [*paths, program])


def _dpkg(host: Host, paths: Sequence[str]) -> dict[str, Maybe[Package]]:
    answer = host.run(("dpkg-query", "--search", *paths), _SECONDS)
    if isinstance(answer, Unknown):
        return {} if answer.reason is Reason.NOT_THERE else dict.fromkeys(paths, answer)
    owners = parse_dpkg_owners(answer.stdout)
    versions: Maybe[dict[str, str]] = {}
    names = sorted({owners[path] for path in paths if path in owners})
    if names:
        shown = host.run(("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", *names), _SECONDS)
        versions = shown if isinstance(shown, Unknown) else parse_dpkg_versions(shown.stdout)
    return {path: _of_dpkg(path, owners.get(path), versions) for path in paths}


def _of_dpkg(path: str, owner: str | None, versions: Maybe[dict[str, str]]) -> Maybe[Package]:
    if owner is None:
        return Unknown(Reason.NOT_THERE, path, "not owned by any package")
    if isinstance(versions, Unknown):
        return versions
    version = versions.get(owner)
    return Unknown(Reason.MALFORMED, owner, "no version") if version is None else Package(owner, version)


def parse_dpkg_owners(text: str) -> dict[str, str]:
    """Parse file → package from `dpkg-query --search`: the first of several packages, no diversions."""
    owners = {}
    for line in text.splitlines():
        packages, colon, path = line.rpartition(": ")
        match = _OWNER.fullmatch(packages.partition(", ")[0])
        if colon and match:
            owners[path] = match["package"]
    return owners


def parse_dpkg_versions(text: str) -> dict[str, str]:
    """Parse package → version from `dpkg-query --show`: the first of several architectures."""
    versions: dict[str, str] = {}
    for match in filter(None, map(_SHOWN.fullmatch, text.splitlines())):
        versions.setdefault(match["package"], printable(match["version"], _VERSION_LIMIT))
    return versions


def _rpm(host: Host, paths: Sequence[str]) -> dict[str, Maybe[Package]]:
    answer = host.run(("rpm", "--query", "--file", f"--queryformat={_RPM_FORMAT}", *paths), _SECONDS)
    if isinstance(answer, Unknown):
        return {} if answer.reason is Reason.NOT_THERE else dict.fromkeys(paths, answer)
    return parse_rpm(answer, paths)


def parse_rpm(answer: CommandOutput, paths: Sequence[str]) -> dict[str, Maybe[Package]]:
    """Parse file → package and version; malformed unless the output has one line per file."""
    lines = answer.stdout.splitlines()
    if len(lines) != len(paths):
        error = printable(" ".join(answer.stderr.split()), _VERSION_LIMIT) or f"{len(lines)} lines"
        return dict.fromkeys(paths, Unknown(Reason.MALFORMED, "rpm --query --file", error))
    found: dict[str, Maybe[Package]] = {}
    for line, path in zip(lines, paths, strict=True):
        match = _RPM_OWNED.fullmatch(line)
        found[path] = Unknown(Reason.NOT_THERE, path, "not owned by any package")
        if match:
            found[path] = Package(match["package"], printable(match["version"], _VERSION_LIMIT))
    return found


# The distribution and its package tool, from /etc/os-release (os-release(5)).


class Family(Enum):
    """Distributions that install packages and boot lines alike."""

    DEBIAN = "Debian"  # Debian, Ubuntu: apt, update-initramfs, update-grub
    RED_HAT = "Red Hat"  # RHEL, Rocky, Alma, Oracle, CentOS, Fedora, Amazon Linux: dnf, dracut, grubby
    SUSE = "SUSE"  # SLES, openSUSE: zypper, dracut, grub2-mkconfig
    COREOS = "CoreOS"  # RHCOS, Fedora CoreOS: changed by a MachineConfig, not on the node
    TALOS = "Talos"  # changed by a machine configuration only
    CONTAINER_OS = "container OS"  # COS, Bottlerocket, Flatcar: drivers come from containers
    AZURE_LINUX = "Azure Linux"  # tdnf, dracut
    OTHER = "other"


@frozen
class Distribution:
    """One line of os-release each; "" where it has none."""

    id: str  # "ubuntu"
    version: str  # "24.04", "9.4"; "" on a rolling release
    name: str  # "Ubuntu 24.04.1 LTS"
    family: Family


# os-release ID, or a word of ID_LIKE, -> family.
_FAMILIES = {
    **dict.fromkeys(("debian", "ubuntu"), Family.DEBIAN),
    **dict.fromkeys(("rhel", "rocky", "almalinux", "centos", "ol", "fedora", "amzn"), Family.RED_HAT),
    **dict.fromkeys(("sles", "suse", "opensuse"), Family.SUSE),
    **dict.fromkeys(("rhcos", "scos"), Family.COREOS),
    "talos": Family.TALOS,
    **dict.fromkeys(("cos", "bottlerocket", "flatcar"), Family.CONTAINER_OS),
    **dict.fromkeys(("azurelinux", "mariner"), Family.AZURE_LINUX),
}


def probe(host: Host) -> Maybe[Distribution]:
    """Read /etc/os-release, else /usr/lib/os-release."""
    return map_known(read_os_release(host), parse_distribution)


def parse_distribution(text: str) -> Distribution:
    """Parse an os-release(5) file; without ID the ID is "linux", as the manual page says."""
    fields = parse_os_release_fields(text)
    name = fields.get("PRETTY_NAME") or fields.get("NAME") or ""
    return Distribution(
        id=printable(fields.get("ID") or "linux", 64),
        version=printable(fields.get("VERSION_ID", ""), 64),
        name=printable(name, 128),
        family=_family(fields),
    )


def _family(fields: dict[str, str]) -> Family:
    # RHEL CoreOS 4.19 and later calls itself "rhel", Fedora CoreOS "fedora".
    if fields.get("VARIANT_ID") == "coreos":
        return Family.COREOS
    words = (fields.get("ID", ""), *fields.get("ID_LIKE", "").split()[:16])
    return next((_FAMILIES[word] for word in words if word in _FAMILIES), Family.OTHER)
