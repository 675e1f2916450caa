"""Identifiers in what a node answers: counted, and on request each replaced by a token.

The same value gets the same token wherever it stands, in questions as in answers, and a token has the shape
of what it stands for, so that the probes read a redacted recording as they read the node.

Of processes' environments only the variables that a probe keeps are recorded, with or without redaction: the
others hold passwords.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable
from typing import Any

from probes.processes import FAMILIES, SINGLES
from probes.recording import Moment
from probes.recording_format import Question
from probes.unknown import Maybe

HOST, USER, GUID, UUID = "host name", "user name", "GUID", "UUID"
SERIAL, IP, MAC = "serial number", "IP address", "MAC address"
ARGUMENT, CONTAINER, FILE = "command-line argument", "container id", "open file"

_HEX2, _HEX4 = "[0-9A-Fa-f]{2}", "[0-9A-Fa-f]{4}"
_BEFORE, _AFTER = "(?<![0-9A-Za-z:.])", "(?![0-9A-Za-z:])"
# Each alternative begins with what is rare, or is tried only where a word begins: megabytes go through here.
_PATTERN = re.compile(
    rf"(?P<home>(?<=/home/)[^/\s:,;'\"\0]+)"
    rf"|(?P<mail>\b[A-Za-z_][A-Za-z0-9_.+-]{{0,63}}@[A-Za-z0-9][A-Za-z0-9.-]{{0,252}})"
    rf"|(?P<serial>(?i:(?<=serial number: )|(?<=serialnumber: )|(?<=serial: )|(?<=serial=))[\w.-]+)"
    rf"|(?P<uuid>\b[0-9A-Fa-f]{{8}}(?:-{_HEX4}){{3}}-[0-9A-Fa-f]{{12}}\b)"
    rf"|(?P<parameters>(?<=ommand line: )[^\n]+)"
    rf"|(?P<id>\b[0-9a-f]{{32}}\b)"
    rf"|(?P<container>\b[0-9a-f]{{64}}\b)"
    rf"|(?P<gid>{_BEFORE}{_HEX4}(?::{_HEX4}){{7}}{_AFTER})"
    rf"|(?P<guid>{_BEFORE}{_HEX4}(?::{_HEX4}){{3}}{_AFTER})"
    rf"|(?P<hexguid>\b0x[0-9A-Fa-f]{{16}}\b)"
    rf"|(?P<ipoib>{_BEFORE}{_HEX2}(?::{_HEX2}){{19}}{_AFTER})"
    rf"|(?P<mac>{_BEFORE}{_HEX2}(?:(?::{_HEX2}){{5}}|(?::{_HEX2}){{7}}){_AFTER})"
    rf"|(?P<ipv4>(?<![\w.-])[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}(?![\w-]|\.[0-9]))"
    rf"|(?P<ipv6>{_BEFORE}[0-9A-Fa-f]{{0,4}}(?::[0-9A-Fa-f]{{0,4}}){{2,7}}(?:%\w+)?{_AFTER})"
)
# What no pattern can match, is not searched: most answers are short numbers and words.
_HINTS = re.compile(
    r"[:@]|\.[0-9]{1,3}\.|-[0-9A-Fa-f]{4}-|/home/|[0-9a-f]{32}|ommand line: |0x[0-9A-Fa-f]{16}|(?i:serial)"
)
# Files that come with the distribution and are the same on every node; only names are replaced in them.
_DISTRIBUTED = re.compile(r"(?:.*/)?pci\.ids|/(?:usr/)?lib/modules/[^/]+/modules\.[\w.]+|/boot/config-[^/]+")
# Compressed content (/proc/config.gz) is no text, and any change would break it.
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
_OPEN_FILE = re.compile(r"/proc/[^/]+/fd/[0-9]+")
_ENVIRONMENT = re.compile(r"/proc/.*/environ")
_KEPT_VARIABLE = re.compile(
    rb"(?:(?:%s)[A-Za-z0-9_]*|%s)=" % ("|".join(FAMILIES).encode(), "|".join(SINGLES).encode())
)
_SERIAL_FILE = re.compile(r"(?:.*_)?serial(?:_number)?|(?:.*_)?asset_tag|product_uuid|machine-id|vpd")
# Names that tell nobody apart. Replaced as words, they would take vendors, modules and distributions along.
_COMMON_NAMES = """
    root localhost localdomain localhost.localdomain (none) none nobody linux kernel gpu node host user admin
    administrator guest ubuntu debian centos rocky almalinux fedora redhat rhel suse opensuse oracle amazon
    ec2-user azureuser cloud google nvidia mellanox intel amd dell supermicro lenovo hpe broadcom kvm qemu xen
    vmware microsoft build builder buildd mockbuild pcie numa rdma infiniband roce vm ?
"""
NOBODY = frozenset(("", *_COMMON_NAMES.split()))
# The vendor GUID in the name of every UEFI variable that the specification itself defines.
_COMMON_UUIDS = frozenset(("8be4df61-93ca-11d2-aa0d-00e098032b8c", "00000000-0000-0000-0000-000000000000"))
_SHORTEST = {HOST: 2, USER: 3}
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
# Parameters of the kernel whose values a check reads, and which name nobody.
_PLAIN_PARAMETER = re.compile(
    r"(?:intel_|amd_)?iommu(?:\..*)?|pcie?(?:_.*)?|(?:.*[._])?blacklist|(?:default_)?hugepage.*|transparent_.*"
    r"|(?:nvidia|nouveau|mlx|ib_|rdma|module\.|iwl|efa|bnxt|vfio|kvm|intel_|amd_|processor\.|numa).*"
    r"|lockdown|lsm|security|selinux|apparmor|mitigations|isolcpus|nohz.*|rcu_.*|idle|tsc|clocksource|cgroup.*"
    r"|systemd\.unified.*|swiotlb|mem|memmap|crashkernel|panic|nmi_watchdog|audit|console|page_.*"
)


class Identifiers:
    """What identifies a node, its users and its devices in a recording; with `redact` replaced there."""

    def __init__(self, redact: bool = False) -> None:
        self.redact = redact
        self._tokens: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._names_pattern: re.Pattern[str] | None = None
        self._modules: set[str] = set()
        self._replacements: dict[str, Callable[[str], str]] = {
            "home": lambda text: self._name(USER, text),
            "mail": self._mail,
            "serial": lambda text: f"serial-{self._number(SERIAL, text)}",
            "uuid": self._uuid,
            "parameters": self._kernel_parameters,
            "id": lambda text: f"{self._number(UUID, text):032x}",
            "container": lambda text: f"{self._number(CONTAINER, text):064x}",
            "gid": self._gid,
            "guid": self._guid,
            "hexguid": self._hex_guid,
            "ipoib": self._ipoib,
            "mac": self._mac,
            "ipv4": self._ipv4,
            "ipv6": self._ipv6,
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many different values there are, by kind."""
        return {kind: len(values) for kind, values in sorted(self._tokens.items()) if values}

    def host(self, name: str) -> str:
        """A host's name as the recording tells it."""
        self._learn_host(name)
        return self.text(name)

    def text(self, text: str) -> str:
        """Any text as the recording tells it."""
        told = self._names_in(self._patterns_in(text))
        return told if self.redact else text

    def take(self, moment: Moment) -> Moment:
        """The moment as the recording tells it."""
        moment = _without_environments(moment)
        known = self._sure()
        # Names first, from the whole moment: they are replaced wherever they stand.
        self._learn(moment)
        answers = self._told(moment)
        if self.redact and self._sure() > known:
            answers = self._told(moment)  # one was met after answers that hold it too
        return dataclasses.replace(moment, answers=answers) if self.redact else moment

    def _sure(self) -> int:
        """How many values are known that are replaced only where they are known."""
        return len(self._names) + len(self._tokens.get(GUID, {}))

    def _told(self, moment: Moment) -> dict[Question, Maybe[Any]]:
        return {
            self._question(question): self._answer(question, answer)
            for question, answer in moment.answers.items()
        }

    # Names: learnt where they are sure to be names, then replaced as words everywhere

    def _learn(self, moment: Moment) -> None:
        for question in moment.answers:
            if question.of and question.of[0].startswith("/sys/module/"):
                self._modules.add(question.of[0].split("/")[3].lower())
        for question, answer in moment.answers.items():
            of = question.of[0] if question.of else ""
            if question.kind == "file" and of in _HOST_FILES and isinstance(answer, bytes):
                self._learn_host(answer.decode("utf-8", "replace").strip().partition("\n")[0])
            elif question.kind == "environment" and isinstance(answer, str):
                if of == "HOSTNAME":
                    self._learn_host(answer)
                elif of in _USER_VARIABLES:
                    self._name(USER, answer)

    def _learn_host(self, name: str) -> None:
        short, _, domain = name.partition(".")
        self._name(HOST, short)
        if domain and domain.lower() not in NOBODY:
            self._name(HOST, domain)

    def _name(self, kind: str, name: str) -> str:
        """The token of a name, which from now on is replaced everywhere."""
        key = name.lower()
        if key in NOBODY or key in self._modules:
            return name
        token = self._token(kind, name)
        # Shorter ones are met by chance in any text.
        if len(key) >= _SHORTEST[kind] and not {name, key} <= self._names.keys():
            self._names[name] = self._names[key] = token
            longest_first = sorted(self._names, key=len, reverse=True)
            words = "|".join(map(re.escape, longest_first))
            pattern = rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])"
            self._names_pattern = re.compile(pattern, re.IGNORECASE | re.ASCII)
        return token

    def _token(self, kind: str, name: str) -> str:
        if name.lower() in NOBODY:
            return name
        return f"{'host' if kind == HOST else 'user'}-{self._number(kind, name.lower())}"

    def _names_in(self, text: str) -> str:
        if self._names_pattern is None:
            return text
        return self._names_pattern.sub(lambda found: self._token_of(found.group()), text)

    def _token_of(self, name: str) -> str:
        return self._names.get(name) or self._names.get(name.lower(), "name")

    # Shapes

    def _number(self, kind: str, value: str) -> int:
        values = self._tokens.setdefault(kind, {})
        return values.setdefault(value, len(values) + 1)

    def _patterns_in(self, text: str) -> str:
        return _PATTERN.sub(self._replace, text) if _HINTS.search(text) else text

    def _replace(self, found: re.Match[str]) -> str:
        assert found.lastgroup is not None
        return self._replacements[found.lastgroup](found.group())

    def _mail(self, text: str) -> str:
        """As in /proc/version: who built the kernel, and where. Replaced here, but no name to look for."""
        user, _, host = text.partition("@")
        return f"{self._token(USER, user)}@{self._token(HOST, host)}"

    def _uuid(self, text: str) -> str:
        key = text.lower()
        if key in _COMMON_UUIDS:
            return text
        return f"00000000-0000-0000-0000-{self._number(UUID, key):012x}"

    def _guid(self, text: str) -> str:
        key = text.lower()
        if not key.strip("0:"):
            return text
        return _grouped(self._number(GUID, key), 4)

    def _hex_guid(self, text: str) -> str:
        """A GUID as some tools print it; other numbers look alike, so only one that was met as a GUID."""
        number = self._tokens.get(GUID, {}).get(_grouped(int(text, 16), 4))
        return text if number is None else f"0x{number:016x}"

    def _gid(self, text: str) -> str:
        """A subnet prefix and a port's GUID, or an IP address."""
        groups = text.lower().split(":")
        if not any(group.strip("0") for group in groups):
            return text
        if groups[0] == "fe80":
            return f"{text[:20]}{self._guid(text[20:])}"
        if groups[:6] == ["0000"] * 5 + ["ffff"]:
            mapped = ipaddress.IPv4Address(int(groups[6] + groups[7], 16))
            token = int(ipaddress.IPv4Address(self._ipv4(str(mapped))))
            return f"{text[:30]}{token >> 16:04x}:{token & 0xFFFF:04x}"
        return ipaddress.IPv6Address(self._ipv6(text)).exploded

    def _ipoib(self, text: str) -> str:
        """Four bytes of flags and queue pair, then a GID."""
        return f"{text[:12]}{_paired(self._number(MAC, text.lower()), 16)}"

    def _mac(self, text: str) -> str:
        key = text.lower()
        if not key.strip("0:") or not key.strip("f:"):
            return text
        return f"02:{_paired(self._number(MAC, key), len(key.split(':')) - 1)}"

    def _ipv4(self, text: str) -> str:
        parts = [int(part) for part in text.split(".")]
        if any(part > 255 for part in parts) or parts[0] in (0, 127, 255):
            return text
        # 198.18.0.0/15 is set aside for tests of equipment (RFC 2544) and is nobody's address.
        number = self._number(IP, text)
        return f"198.{18 + (number >> 16) % 2}.{(number >> 8) & 255}.{number & 255}"

    def _ipv6(self, text: str) -> str:
        bare, percent, zone = text.partition("%")
        try:
            address = ipaddress.IPv6Address(bare)
        except ValueError:
            return text
        if int(address) < 2:  # "::" and "::1"
            return text
        number = self._number(IP, address.compressed)
        prefix = 0xFE80 << 112 if address.is_link_local else 0x20010DB8 << 96
        return f"{ipaddress.IPv6Address(prefix + number).compressed}{percent}{zone}"

    # Questions and answers

    def _question(self, question: Question) -> Question:
        return question._replace(of=tuple(self.text(part) for part in question.of))

    def _answer(self, question: Question, answer: Maybe[Any]) -> Maybe[Any]:
        if isinstance(answer, bytes):
            return self._content(question.of[0], answer)
        if question.kind == "link" and isinstance(answer, str) and self._is_ones_file(question.of[0], answer):
            told = f"/file-{self._number(FILE, answer)}"
            return told if self.redact else answer
        told = self._value(answer)
        return tuple(sorted(told)) if question.kind == "names" and isinstance(told, tuple) else told

    def _is_ones_file(self, path: str, target: str) -> bool:
        """Whether a file that a process has open is somebody's, and not a device, a pipe or a socket."""
        return _OPEN_FILE.fullmatch(path) is not None and target.startswith("/") and target[:5] != "/dev/"

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple):
            return tuple(self._value(one) for one in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: self._value(getattr(value, one.name)) for one in dataclasses.fields(value)}
            return type(value)(**fields)
        return value

    def _content(self, path: str, content: bytes) -> bytes:
        if not content or content.startswith(_COMPRESSED):
            return content
        # Byte for byte, so that binary content stays what it is around a token.
        text = content.decode("utf-8", "surrogateescape")
        name = path.rpartition("/")[2]
        if _SERIAL_FILE.fullmatch(name):
            told = f"serial-{self._number(SERIAL, text.strip())}\n" if text.strip() else text
        elif path == "/proc/cmdline":
            told = f"{self._kernel_parameters(text)}\n"
        elif path.startswith("/proc/") and name == "cmdline":
            told = self._arguments(text)
        elif _DISTRIBUTED.fullmatch(path):
            told = self._names_in(text)
        else:
            told = self._names_in(self._patterns_in(text))
        return told.encode("utf-8", "surrogateescape") if self.redact else content

    def _kernel_parameters(self, text: str) -> str:
        """Names of all parameters, values of those that name nobody."""
        words = []
        for word in text.split():
            name, equals, value = word.partition("=")
            if equals and not _PLAIN_PARAMETER.fullmatch(name):
                value = f"argument-{self._number(ARGUMENT, value)}"
            words.append(f"{name}{equals}{value}")
        return self._names_in(self._patterns_in(" ".join(words)))

    def _arguments(self, text: str) -> str:
        """A process's program, and one token for all of its arguments."""
        program, _, rest = text.partition("\0")
        told = self._names_in(self._patterns_in(program))
        return f"{told}\0argument-{self._number(ARGUMENT, rest)}\0" if rest else told


def _without_environments(moment: Moment) -> Moment:
    """Of each process's environment no more than what a probe keeps of it."""
    answers = {
        question: _kept_variables(answer)
        for question, answer in moment.answers.items()
        if question.kind == "file" and isinstance(answer, bytes) and _ENVIRONMENT.fullmatch(question.of[0])
    }
    return dataclasses.replace(moment, answers={**moment.answers, **answers}) if answers else moment


def _kept_variables(content: bytes) -> bytes:
    pieces = (piece for piece in content.split(b"\0") if _KEPT_VARIABLE.match(piece))
    return b"".join(piece + b"\0" for piece in pieces)


def _grouped(number: int, groups: int) -> str:
    """As "0000:0000:0000:0001"."""
    digits = f"{number:0{4 * groups}x}"
    return ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _paired(number: int, pairs: int) -> str:
    """As "00:00:00:00:01"."""
    digits = f"{number:0{2 * pairs}x}"
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))
