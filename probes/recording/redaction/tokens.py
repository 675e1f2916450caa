"""Text that consists of known words, numbers and tokens only.

A word is kept if it is in the vocabulary (words.txt), has a form that identifies nothing ("mlx5_0", "6.8.0",
"16.0"), or is a short number. Every other word is replaced by a token, the same one everywhere; addresses,
GUIDs and UUIDs get tokens of the same shape.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache

from probes.base.data_files import read_text
from probes.base.text import REDACTED
from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.pci.nic_families import PROVIDERS
from probes.facts.rdma.partition_keys import DEFAULT_KEY, FULL_MEMBER
from probes.facts.rdma.port_health import PORT_COUNTERS
from probes.facts.system.services import SERVICES
from probes.facts.system.tools import TOOLS

# Words and forms of words that a redacted recording keeps, because they identify no site.
#
# Words that checks and screens look for must be in words.txt;
# tests/probes/recording/test_redaction_checks.py names missing ones. Tools, services, modules and port
# counters come from their own tables.


def _read_sections() -> dict[str, frozenset[str]]:
    words: set[str] = set()
    sections: dict[str, set[str]] = {}
    for line in read_text(__package__, "words.txt").splitlines():
        if line.startswith("["):
            words = sections.setdefault(line.strip("[]"), set())
        elif not line.startswith("#"):
            words.update(line.split())
    return {name: frozenset(words) for name, words in sections.items()}


def _read_forms() -> list[str]:
    lines = read_text(__package__, "forms.txt").splitlines()
    return [line.replace("{providers}", "|".join(PROVIDERS)) for line in lines if not line.startswith("#")]


_SECTIONS = _read_sections()
PROGRAMS = _SECTIONS["programs"] | frozenset(TOOLS)
RAS_WORDS = _SECTIONS.pop("ras")
"""Words of the reports and events of NCCL's RAS service, which are plain English."""
SYMBOLS = _SECTIONS["symbols"]
"""Symbols of kernel modules whose providers matter."""
VARIABLES = _SECTIONS["variables"]
"""Variables of NCCL, UCX, libfabric and NVSHMEM; other names are user-defined."""
OWN_WORDS = _SECTIONS["sentences"]
"""Words of sentences that gdrtop writes itself. A name on a node can be plain English too: these are kept in
gdrtop's text only."""
VOCABULARY = (
    frozenset(
        word.lower()
        for words in (
            *(words for name, words in _SECTIONS.items() if name != "sentences"),
            *(PROGRAMS, TOOLS, SERVICES, CORE_LADDER, COMPANIONS),
            (counter.name for counter in PORT_COUNTERS),
        )
        for word in words
    )
    | {f"{service}.service" for service in SERVICES}
    | {
        f"{module.replace('_', dash)}{suffix}"
        for module in _SECTIONS["modules"]
        for dash in ("_", "-")
        for suffix in ("", ".ko", ".ko.gz", ".ko.xz", ".ko.zst")
    }
)

_FORMS = re.compile("|".join(_read_forms()))
_PART = re.compile(r"[-_.+~]")
VERSION = re.compile(r"v?\d{1,8}(?:\.\d{1,8})+")
_OCTET = r"(?:25[0-5]|2[0-4]\d|[01]?\d?\d)"
IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)")
_TOML = ".toml"
_SUFFIXES = (
    *(".conf", ".service", ".target", ".socket", ".timer", ".mount", ".slice", ".scope", ".wants"),
    *(".requires", ".d", ".rules", ".ko", ".ko.gz", ".ko.xz", ".ko.zst", ".so", ".xml", ".log"),
)


@lru_cache(maxsize=8192)
def is_known(word: str) -> bool:
    """Return whether a word does not identify anyone."""
    return word.lower() in VOCABULARY or _FORMS.fullmatch(word) is not None or _is_version(word)


def _is_version(word: str) -> bool:
    match = VERSION.match(word)
    if match is None or IPV4.match(word):
        return False
    rest = word[match.end() :]
    return not rest or (rest[0] in "-_.+~" and all(map(_is_version_part, _PART.split(rest))))


def _is_version_part(part: str) -> bool:
    is_short = part.isdecimal() and len(part) < 9
    return not part or is_short or part.lower() in VOCABULARY or _FORMS.fullmatch(part) is not None


HOST, USER, GUID, UUID = "host name", "user name", "GUID", "UUID"
SERIAL, IP, MAC = "serial number", "IP address", "MAC address"
ARGUMENT, CONTAINER, PROGRAM = "command-line argument", "container id", "program name"
UID, JOB, VARIABLE, OTHER = "user id", "job id", "variable", "other word"
COMMUNICATOR, PARTITION = "communicator", "partition"

_TOKENS = {
    HOST: "host-{}",
    USER: "user-{}",
    SERIAL: "serial-{}",
    ARGUMENT: "argument-{}",
    PROGRAM: "program-{}",
    COMMUNICATOR: "communicator-{}",
    OTHER: f"{REDACTED}{{}}",
}
FIRST_UID = 1_000_000  # real user ids become larger ones; root stays 0

_SEPARATORS = r" \t\n\r\f\v\"'()\[\]{}<>=,;|*&#!?$^~`\\/:"
_HEX2, _HEX4, _HEX = "[0-9A-Fa-f]{2}", "[0-9A-Fa-f]{4}", "[0-9A-Fa-f]"
# A shape ends at a separator or at the period of a sentence; ":" is part of some shapes.
_END = rf"(?!\.?[^{_SEPARATORS}.])"
_ENDS = rf"{_END}(?!::?{_HEX})"
_SHAPES = {
    "userid": rf"(?<=uid[=:])[0-9]{{1,10}}{_END}",
    "home": rf"(?<=/home/)[^{_SEPARATORS}]+",
    "uuid": rf"(?:(?:GPU|MIG)-)?{_HEX}{{8}}(?:-{_HEX4}){{3}}-{_HEX}{{12}}{_END}",
    "gid": rf"{_HEX4}(?::{_HEX4}){{7}}{_ENDS}",
    "guid": rf"{_HEX4}(?::{_HEX4}){{3}}{_ENDS}",
    "hexguid": rf"0x{_HEX}{{16}}{_END}",
    "ipoib": rf"{_HEX2}(?::{_HEX2}){{19}}{_ENDS}",
    "mac": rf"{_HEX2}(?P<sep>[:-])(?:{_HEX2}(?P=sep)){{4}}{_HEX2}(?:(?P=sep){_HEX2}){{0,2}}{_ENDS}",
    "dotted": rf"{_HEX4}\.{_HEX4}\.{_HEX4}{_END}",
    "bare": rf"(?:{_HEX}{{12}}|{_HEX}{{16}}|[0-9a-f]{{32}}|[0-9a-f]{{64}}){_END}",
    "bus": rf"pci{_HEX}{{4,8}}:{_HEX2}{_ENDS}",
    "pair": rf"(?<==){_HEX4}:{_HEX4}(?=\s|$)",
    "bdf": rf"(?:{_HEX}{{4,8}}:{_HEX2}:{_HEX2}(?:\.[0-7])?|{_HEX2}:{_HEX2}\.[0-7]){_ENDS}",
    "ipv4": rf"[0-9]{{1,3}}(?:\.[0-9]{{1,3}}){{3}}{_END}",
    "ipv6": rf"(?<![0-9A-Za-z:.]){_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{2,7}}(?:%\w+)?{_END}",
    "groups": rf"{_HEX}{{1,4}}(?:[:-]{_HEX}{{1,4}}){{4,}}{_END}",
    "inspector": rf"(?:[^{_SEPARATORS}]{{1,255}}-pid[0-9]{{1,10}}\.log|nccl-inspector-[0-9]{{1,10}}"
    rf"|nccl_inspector_metrics_[^{_SEPARATORS}]{{1,64}}\.prom){_END}",
    "number": rf"[+-]?(?:[0-9]+(?:\.[0-9]{{1,9}})?%?|0x{_HEX}{{1,8}}){_END}",
    "word": rf"[^{_SEPARATORS}]+",
}
_PATTERN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _SHAPES.items()))
_METRICS = "nccl_inspector_metrics_"
_KEPT_DIGITS = 9
_CACHED_WORDS = 65536


class Tokens:
    """The values found so far with their tokens, and text in which they are replaced."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, int]] = {}
        self._words: dict[str, str] = {}
        self._is_own_text = False  # what is redacted now was written by gdrtop
        self._replacements: dict[str, Callable[[str], str]] = {
            "userid": self.user_id,
            "home": lambda text: self.name(USER, text),
            "uuid": self._uuid,
            "gid": self._gid,
            "guid": self._guid,
            "hexguid": self._hex_guid,
            # Four bytes of flags and queue pair, then a GID.
            "ipoib": lambda text: _grouped(f"{self.number(MAC, text.lower()):040x}", 2),
            "mac": self._mac,
            "dotted": lambda text: _grouped(
                f"02{self.number(MAC, text.lower().replace('.', '')):010x}", 4, "."
            ),
            "bare": self._bare,
            **dict.fromkeys(("bus", "pair", "bdf"), str),  # kept as they are
            "ipv4": self._ipv4,
            "ipv6": self._ipv6,
            "groups": self._word,
            "inspector": self._inspector_name,
            "number": self._short_number,
            "word": self._word,
        }

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of different values by kind."""
        return {kind: len(values) for kind, values in sorted(self._values.items()) if values}

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the known names of hosts; the first is this one's."""
        return tuple(self._values.get(HOST, ()))

    @property
    def replaced(self) -> tuple[str, ...]:
        """Return the words that were replaced because they are unknown."""
        return tuple(self._values.get(OTHER, ()))

    def text(self, text: str) -> str:
        """Return text with every unknown word replaced."""
        return _PATTERN.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        assert found.lastgroup is not None
        return self._replacements[found.lastgroup](found.group())

    def keeps(self, text: str) -> bool:
        """Return whether a text would be kept unchanged."""
        counts = {kind: len(values) for kind, values in self._values.items()}
        is_kept = self.text(text) == text
        for kind, values in self._values.items():  # values that were only checked do not count
            for value in list(values)[counts.get(kind, 0) :]:
                del values[value]
                self._words.pop(value, None)
        return is_kept

    def name(self, kind: str, value: str) -> str:
        """Return the token of a value known to be a name; the same word gets it everywhere from now on."""
        if value.lower() in NOBODY:
            return value
        token = self._words.get(value.lower(), "")
        if not token or token == value.lower():
            token = self.token(kind, value.lower())
            if not is_known(value):
                self._words[value.lower()] = token
        return token

    def token(self, kind: str, value: str) -> str:
        """Return the token of a value in this place, whatever it means elsewhere."""
        return _TOKENS.get(kind, _TOKENS[OTHER]).format(self.number(kind, value))

    def number(self, kind: str, value: str) -> int:
        """Return the number of a value among those of its kind, starting at 1."""
        values = self._values.setdefault(kind, {})
        return values.setdefault(value, len(values) + 1)

    def user_id(self, text: str) -> str:
        """Return the token of a numeric user id; 0 and -1 stay."""
        if not text.isdecimal():
            return self._word(text)
        if int(text) in (0, 0xFFFF_FFFE, 0xFFFF_FFFF):
            return text
        return str(FIRST_UID + self.number(UID, text))

    def partition_key(self, key: int) -> int:
        """Return the token of a partition key, which may name a tenant; the default ones stay."""
        partition = key & ~FULL_MEMBER
        if partition not in (0, DEFAULT_KEY & ~FULL_MEMBER):
            partition = self.number(PARTITION, f"{partition:x}") & ~FULL_MEMBER
        return key & FULL_MEMBER | partition

    # Words and numbers

    def _word(self, word: str) -> str:
        bare = word.rstrip(".…")
        if not bare or is_known(bare) or (self._is_own_text and self._is_own_word(bare)):
            return word
        if bare.endswith(_TOML):  # a program has the same name without it
            return self._word(bare.removesuffix(_TOML)) + _TOML
        return self._unknown(bare) + ("." if len(bare) < len(word) else "")

    def _is_own_word(self, word: str) -> bool:
        """Return whether gdrtop's sentences have this word, and no host, user or job is known by it."""
        key = word.lower()
        return key in OWN_WORDS and self._words.get(key, REDACTED).startswith(REDACTED)

    def _unknown(self, word: str) -> str:
        key = word.lower()
        token = self._words.get(key)
        if token is None:
            token = self._of_known_host(word) or self._unknown_version(word)
            suffix = next((suffix for suffix in _SUFFIXES if word.endswith(suffix)), "")
            token = token or self.token(OTHER, key) + suffix
            if len(self._words) < _CACHED_WORDS:
                self._words[key] = token
        return token

    def _of_known_host(self, word: str) -> str:
        """Return the token of a full name that starts with a known host name; "" otherwise."""
        short, _, domain = word.partition(".")
        token = self._words.get(short.lower(), "")
        return f"{token}.{self.name(HOST, domain)}" if domain and token.startswith("host-") else ""

    def _unknown_version(self, word: str) -> str:
        """Keep the number of a version with an unknown suffix, "5.15.0-acme"."""
        match = None if IPV4.match(word) else VERSION.match(word)
        return f"{match[0]}-{self.token(OTHER, word.lower())}" if match else ""

    def _short_number(self, text: str) -> str:
        digits = text.strip("+-%").partition(".")[0]
        return text if len(digits) <= _KEPT_DIGITS or digits.startswith("0x") else self._word(text)

    # Shapes

    def _inspector_name(self, text: str) -> str:
        """Replace the host, job or GPU in the name of a file or directory of NCCL's inspector."""
        if text.startswith("nccl-inspector-"):
            return f"nccl-inspector-{self.number(JOB, text.rpartition('-')[2])}"
        if text.startswith(_METRICS):
            return f"{_METRICS}{self.text(text.removeprefix(_METRICS).removesuffix('.prom'))}.prom"
        host, pid, rest = text.rpartition("-pid")
        return f"{self.name(HOST, host)}{pid}{rest}"

    def _uuid(self, text: str) -> str:
        prefix = text[:4] if text[:4] in ("GPU-", "MIG-") else ""
        key = text[len(prefix) :].lower()
        if not key.strip("0-"):
            return text
        return f"{prefix}{self.number(UUID, key.replace('-', '')):08x}-0000-0000-0000-000000000000"

    def _guid(self, text: str) -> str:
        key = text.lower().replace(":", "")
        return _grouped(f"{self.number(GUID, key):016x}", 4) if key.strip("0") else text

    def _hex_guid(self, text: str) -> str:
        key = text[2:].lower()
        return f"0x{self.number(GUID, key):016x}" if key.strip("0") else text

    def _bare(self, text: str) -> str:
        """Replace an identifier without separators, by its length: MAC, GUID, machine id, container id."""
        key = text.lower()
        if not key.strip("0"):
            return text
        if len(key) == 12:
            return f"02{self.number(MAC, key):010x}"
        kind = {16: GUID, 32: UUID, 64: CONTAINER}[len(key)]
        number = self.number(kind, key)
        # Container ids are shown by their first digits.
        return f"{number:012x}{'0' * 52}" if kind == CONTAINER else f"{number:0{len(key)}x}"

    def _gid(self, text: str) -> str:
        """Replace a subnet prefix with a port's GUID, or an IP address."""
        groups = text.lower().split(":")
        if not any(group.strip("0") for group in groups):
            return text
        if groups[0] == "fe80":
            return f"fe80{':0000' * 3}:{self._guid(text[20:])}"
        if groups[:6] == ["0000"] * 5 + ["ffff"]:
            mapped = ipaddress.IPv4Address(int(groups[6] + groups[7], 16))
            token = int(ipaddress.IPv4Address(self._ipv4(str(mapped))))
            return f"{text[:30]}{token >> 16:04x}:{token & 0xFFFF:04x}"
        return ipaddress.IPv6Address(self._ipv6(text)).exploded

    def _mac(self, text: str) -> str:
        separator = text[2]
        key = text.lower().replace(separator, "")
        if not key.strip("0") or not key.strip("f"):
            return text
        return _grouped(f"02{self.number(MAC, key):0{len(key) - 2}x}", 2, separator)

    def _ipv4(self, text: str) -> str:
        parts = [int(part) for part in text.split(".")]
        if any(part > 255 for part in parts):
            return self._unknown(text)
        if parts[0] in (0, 127, 255):
            return text
        # 198.18.0.0/15 is reserved for benchmarks (RFC 2544), so no host has such an address.
        number = self.number(IP, text)
        return f"198.{18 + (number >> 16) % 2}.{(number >> 8) & 255}.{number & 255}"

    def _ipv6(self, text: str) -> str:
        bare, percent, zone = text.partition("%")
        try:
            address = ipaddress.IPv6Address(bare)
        except ValueError:
            # "12:34:56" is a time; other text of that form is taken apart.
            return ":".join(self.text(part) for part in text.split(":"))
        if int(address) < 2:  # "::" and "::1"
            return text
        number = self.number(IP, address.compressed)
        prefix = 0xFE80 << 112 if address.is_link_local else 0x20010DB8 << 96
        return f"{ipaddress.IPv6Address(prefix + number).compressed}{percent}{self.text(zone)}"

    def address(self, value: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
        """Return the token of an address, the same as in any text."""
        return self._ipv4(str(value)) if value.version == 4 else self._ipv6(value.compressed)


# Names that do not identify anyone.
NOBODY = frozenset(
    ("", "root", "nobody", "localhost", "localdomain", "localhost.localdomain", "(none)", "none", *"?-*")
)


def _grouped(digits: str, size: int, separator: str = ":") -> str:
    return separator.join(digits[at : at + size] for at in range(0, len(digits), size))
