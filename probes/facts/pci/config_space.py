"""PCI configuration space of selected functions, for what only capabilities show, and their error counts.

Every user can read 64 bytes of the file `config`; the rest needs CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c,
pci_read_config). Reading 4096 bytes takes about a millisecond, so it is not done every second.

Offsets and bits: include/uapi/linux/pci_regs.h. The parsers survive any bytes: a list that loops ends, and a
capability that extends beyond the bytes read is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field, fields

from probes.base.frozen import frozen
from probes.base.text import BDF, printable
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.pci.functions import DEVICES, PciFacts, PciKind, asleep
from probes.facts.pci.rdma_topo import is_dma_function
from probes.host.protocol import Host
from probes.host.values import read_integer

HEADER_BYTES = 64  # PCI_STD_HEADER_SIZEOF: readable by every user
CONVENTIONAL_BYTES = 256  # PCI_CFG_SPACE_SIZE
WHOLE_BYTES = 4096  # PCI_CFG_SPACE_EXP_SIZE
MAX_FUNCTIONS = 512


@frozen
class AcsFlags:
    """One bit per service of Access Control Services, in register order (PCI_ACS_SV …)."""

    source_validation: bool
    translation_blocking: bool
    request_redirect: bool
    completion_redirect: bool
    upstream_forwarding: bool
    egress_control: bool
    direct_translated: bool

    @property
    def redirects(self) -> bool:
        """Whether peer-to-peer traffic is sent up to the root complex: RR, CR or UF."""
        return self.request_redirect or self.completion_redirect or self.upstream_forwarding

    def __str__(self) -> str:
        signs = ("+" if getattr(self, field.name) else "-" for field in fields(self))
        return " ".join(map("".join, zip(ACS_WORDS, signs, strict=True)))


@frozen
class Acs:
    """The ACS capability of one port: the enabled services."""

    offset: int  # of the capability; its control register is at +6
    on: AcsFlags
    control: int  # the control register, 16 bits


@frozen
class PciExpress:
    """The PCI Express capability: Device Control and Device Control 2."""

    offset: int
    max_payload_bytes: Maybe[int]
    max_read_request_bytes: Maybe[int]  # MRRS
    relaxed_ordering: bool  # the function may set the attribute; the driver decides
    extended_tags: bool
    ten_bit_tags: Maybe[bool]  # requester enable; NOT_THERE: capability of version 1
    aspm: Maybe[str]  # "off", "L0s", "L1", "L0s L1"; NOT_THERE: a function without a link
    # Of ERRORS, since they were last cleared; includes errors that never reached the kernel's AER.
    detected: tuple[str, ...]


@frozen
class ResizableBar:
    """One BAR with a selectable size."""

    index: int
    size_bytes: int
    largest_bytes: Maybe[int]  # the largest size that the function offers


@frozen
class ConfigSpace:
    """The configuration space of one function; NOT_THERE: it has no such capability."""

    bdf: str
    source: str  # the file
    express: Maybe[PciExpress]
    acs: Maybe[Acs]
    ats_enabled: Maybe[bool]
    resizable_bars: Maybe[tuple[ResizableBar, ...]]


ACS_WORDS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_STATUS, _CAPABILITY_LIST_BIT = 0x06, 0x10
_HEADER_TYPE, _CAPABILITY_POINTER = 0x0E, 0x34
_EXPRESS, _ACS, _ATS, _REBAR = 0x10, 0x0D, 0x0F, 0x15
_ATS_ENABLE = 0x8000
_MOST_CAPABILITIES = 48  # PCI_FIND_CAP_TTL
_MOST_EXTENDED = (WHOLE_BYTES - CONVENTIONAL_BYTES) // 8  # pci_find_next_ext_capability

# Types of functions without a link: integrated endpoints and event collectors of a root complex.
_WITHOUT_LINK = (0x9, 0xA)
_BEYOND = "PCI config beyond 64 bytes"
ERRORS = ("correctable", "non-fatal", "fatal", "unsupported request")
ASPM_STATES = ("off", "L0s", "L1", "L0s L1")


def is_gone(content: bytes) -> bool:
    """Return whether no device answered: it reads as all ones (PCI_ERROR_RESPONSE); no vendor is 0xffff."""
    return content[:4] == b"\xff\xff\xff\xff"


def parse_config(content: bytes, bdf: str = "", source: str = "config") -> Maybe[ConfigSpace]:
    """Parse a configuration space of 256 or 4096 bytes; it accepts any content."""
    if len(content) < HEADER_BYTES:
        return Unknown(Reason.MALFORMED, source, f"{len(content)} bytes are not a PCI header")
    if is_gone(content):
        return Unknown(Reason.DRIVER_ERROR, source, "all ones: the function does not respond (off the bus?)")
    standard = capabilities(content)
    express: Maybe[PciExpress] = Unknown(Reason.NOT_THERE, source, "no PCI Express capability")
    if _EXPRESS in standard:
        express = _express(content, standard[_EXPRESS], source)
    without: Unknown | None = None
    if len(content) <= CONVENTIONAL_BYTES and _EXPRESS in standard:
        # A PCIe function always has 4096 bytes; the kernel falls back to 256 if it cannot reach the rest.
        without = Unknown(Reason.IO_ERROR, source, "extended config space is not accessible (no MMCONFIG)")
    extended = extended_capabilities(content)

    def missing(name: str) -> Unknown:
        return Unknown(Reason.NOT_THERE, source, f"no {name} capability") if without is None else without

    def control(capability: int, name: str) -> Maybe[int]:
        """Return PCI_ACS_CTRL or PCI_ATS_CTRL, both at +6."""
        offset = extended.get(capability)
        if offset is None:
            return missing(name)
        return _word(content, offset + 6) if offset + 8 <= len(content) else _cut(source, offset)

    at = extended.get(_ACS, 0)
    return ConfigSpace(
        bdf=bdf,
        source=source,
        express=express,
        acs=map_known(control(_ACS, "ACS"), lambda bits: Acs(at, acs_flags(bits), bits)),
        ats_enabled=map_known(control(_ATS, "ATS"), lambda bits: bool(bits & _ATS_ENABLE)),
        resizable_bars=_rebar(content, extended[_REBAR]) if _REBAR in extended else missing("Resizable BAR"),
    )


def capabilities(content: bytes) -> dict[int, int]:
    """Return capability ID -> offset, from the list whose first offset is at 0x34; a loop ends it."""
    if len(content) <= HEADER_BYTES or not _word(content, _STATUS) & _CAPABILITY_LIST_BIT:
        return {}
    if content[_HEADER_TYPE] & 0x7F > 1:  # CardBus has its pointer elsewhere
        return {}
    found: dict[int, int] = {}
    offset = content[_CAPABILITY_POINTER] & 0xFC
    for _ in range(_MOST_CAPABILITIES):
        if offset < HEADER_BYTES or offset + 2 > len(content) or content[offset] == 0xFF:
            break
        found.setdefault(content[offset], offset)
        offset = content[offset + 1] & 0xFC
    return found


def extended_capabilities(content: bytes) -> dict[int, int]:
    """Return extended capability ID -> offset, from the list that begins at 0x100; a loop ends it."""
    found: dict[int, int] = {}
    offset = CONVENTIONAL_BYTES
    for _ in range(_MOST_EXTENDED):
        if offset < CONVENTIONAL_BYTES or offset + 4 > len(content):
            break
        header = _long(content, offset)
        if header in (0, 0xFFFF_FFFF):
            break
        found.setdefault(header & 0xFFFF, offset)
        offset = header >> 20 & 0xFFC
    return found


def _word(content: bytes, offset: int) -> int:
    return int.from_bytes(content[offset : offset + 2], "little")


def _long(content: bytes, offset: int) -> int:
    return int.from_bytes(content[offset : offset + 4], "little")


def _cut(source: str, offset: int) -> Unknown:
    return Unknown(Reason.MALFORMED, source, f"the capability at {offset:#x} extends beyond the bytes read")


def _bytes_of(code: int, source: str) -> Maybe[int]:
    """Return 128 << code; codes 6 and 7 are reserved."""
    return 128 << code if code < 6 else Unknown(Reason.MALFORMED, source, f"reserved size code {code}")


def _express(content: bytes, offset: int, source: str) -> Maybe[PciExpress]:
    """Parse flags at +2, DevCtl +8, DevSta +0xa, LnkCtl +0x10, DevCtl2 +0x28 (version 2)."""
    if offset + 0x14 > len(content):
        return _cut(source, offset)
    flags, control, status = (_word(content, offset + at) for at in (2, 8, 0xA))
    ten_bit_tags: Maybe[bool] = Unknown(Reason.NOT_THERE, source, "PCIe capability version 1")
    if flags & 0xF >= 2:
        whole = offset + 0x2A <= len(content)
        ten_bit_tags = bool(_word(content, offset + 0x28) & 0x1000) if whole else _cut(source, offset)
    aspm: Maybe[str] = ASPM_STATES[_word(content, offset + 0x10) & 3]
    if flags >> 4 & 0xF in _WITHOUT_LINK:
        aspm = Unknown(Reason.NOT_THERE, source, "no link")
    return PciExpress(
        offset=offset,
        max_payload_bytes=_bytes_of(control >> 5 & 7, source),
        max_read_request_bytes=_bytes_of(control >> 12 & 7, source),
        relaxed_ordering=bool(control & 0x0010),
        extended_tags=bool(control & 0x0100),
        ten_bit_tags=ten_bit_tags,
        aspm=aspm,
        detected=tuple(name for bit, name in enumerate(ERRORS) if status >> bit & 1),
    )


def acs_flags(register: int) -> AcsFlags:
    """Parse the seven bits of an ACS control register."""
    return AcsFlags(*(bool(register >> bit & 1) for bit in range(7)))


def _rebar(content: bytes, offset: int) -> tuple[ResizableBar, ...]:
    """Parse PCI_REBAR_CAP at +4, PCI_REBAR_CTRL at +8, and so on per BAR; bit 4 of the first means 1 MiB."""
    bars = []
    count = min(_long(content, offset + 8) >> 5 & 7, 6)
    for place in range(offset, offset + 8 * count, 8):
        if place + 12 > len(content):
            break
        sizes, control = _long(content, place + 4) >> 4, _long(content, place + 8)
        largest: Maybe[int] = Unknown(Reason.MALFORMED, "", "no size offered")
        if sizes:
            largest = 1 << (20 + sizes.bit_length() - 1)
        bars.append(ResizableBar(control & 7, 1 << (20 + (control >> 8 & 0x3F)), largest))
    return tuple(bars)


@frozen
class ConfigSpaceFacts:
    """BDF -> configuration space, for the requested functions."""

    functions: dict[str, Maybe[ConfigSpace]]
    aspm: dict[str, str] = field(default_factory=dict)  # of ASPM_STATES, where `config` is not readable


def probe(host: Host, bdfs: Iterable[str]) -> ConfigSpaceFacts:
    """Read `config` of at most 512 functions; a failure affects only its own function.

    Where only 64 bytes are readable, ASPM is read from `link`, which is there for the lower end of a link if
    both ends support ASPM and the kernel controls it (drivers/pci/pcie/aspm.c); reading it wakes no device.
    NEEDS_ROOT or NOT_RECORDED (a dump): only 64 bytes. NOT_THERE: the function sleeps or is gone from sysfs.
    DRIVER_ERROR: it does not answer on the bus.
    """
    chosen = list(dict.fromkeys(bdfs))[:MAX_FUNCTIONS]
    functions = {bdf: _function(host, bdf) for bdf in chosen}
    closed = [
        bdf for bdf, space in functions.items() if isinstance(space, Unknown) and _BEYOND in space.detail
    ]
    aspm = {bdf: _aspm(host, f"{DEVICES}/{bdf}/link") for bdf in closed}
    return ConfigSpaceFacts(functions, {bdf: state for bdf, state in aspm.items() if state})


def _aspm(host: Host, link: str) -> str:
    """Return one of ASPM_STATES; "" if the kernel does not say."""
    names = known(host.names(link), ())
    states = [name for name in ("l0s_aspm", "l1_aspm") if name in names]
    values = [read_integer(host, f"{link}/{name}") for name in states]
    if not states or any(isinstance(value, Unknown) for value in values):
        return ""
    on = (name.partition("_")[0].upper() for name, value in zip(states, values, strict=True) if value == 1)
    return " ".join(on).replace("L0S", "L0s") or ASPM_STATES[0]


def path_functions(pci: PciFacts) -> tuple[str, ...]:
    """Return the BDFs of GPUs, NICs, their DMA functions, NVSwitches, and every bridge above them.

    Virtual functions are left out: a node has hundreds, and only their ATS setting is their own.
    """
    found: set[str] = set()
    for function in pci.functions.values():
        if is_dma_function(function):
            found.update(function.chain)
        if function.kind in (PciKind.GPU, PciKind.NIC, PciKind.NVSWITCH) and not function.physical_function:
            found.update(function.chain)
    return tuple(bdf for bdf in pci.functions if bdf in found)


def _function(host: Host, bdf: str) -> Maybe[ConfigSpace]:
    if not BDF.fullmatch(bdf):
        return Unknown(Reason.MALFORMED, printable(bdf, 40), "not a BDF")
    if (sleeps := asleep(host, bdf)) is not None:
        return sleeps
    path = f"{DEVICES}/{bdf}/config"
    content = host.read_bytes(path, WHOLE_BYTES)
    if isinstance(content, Unknown):
        return content
    if len(content) == HEADER_BYTES and not is_gone(content):
        return _only_the_header(host, path)
    return parse_config(content, bdf, path)


def _only_the_header(host: Host, path: str) -> Unknown:
    if not host.origin.is_running:
        return Unknown(Reason.NOT_RECORDED, path, _BEYOND)
    if host.is_root():
        return Unknown(Reason.IO_ERROR, path, f"{_BEYOND} is denied even to root: CAP_SYS_ADMIN is missing")
    return Unknown(Reason.NEEDS_ROOT, path, _BEYOND)


# The kernel's PCIe error counts for each function (Advanced Error Reporting).
#
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats. Every user can read them, and reading does not
# access the function. A count of zero does not prove health: an error that no root port reports is not
# counted (config_space.py reads the sticky bits).

_MAX_NAMES = 64


@frozen
class ErrorCounts:
    """The counts of one severity."""

    total: int
    by_name: dict[str, int]  # "BadTLP", "RxErr", …; only counts above zero


@frozen
class PcieErrors:
    """The counts of one function since it was enumerated; NOT_THERE: no AER, or the firmware owns it."""

    bdf: str
    correctable: Maybe[ErrorCounts]
    nonfatal: Maybe[ErrorCounts]
    fatal: Maybe[ErrorCounts]


@frozen
class PcieErrorFacts:
    """BDF -> counts, for the requested functions."""

    functions: dict[str, PcieErrors]


def probe_aer(host: Host, bdfs: Iterable[str]) -> PcieErrorFacts:
    """Read aer_dev_* of at most 512 functions."""
    chosen = [bdf for bdf in dict.fromkeys(bdfs) if BDF.fullmatch(bdf)][:MAX_FUNCTIONS]
    return PcieErrorFacts({bdf: _aer_of(host, bdf) for bdf in chosen})


def _aer_of(host: Host, bdf: str) -> PcieErrors:
    def counts(severity: str) -> Maybe[ErrorCounts]:
        path = f"{DEVICES}/{bdf}/aer_dev_{severity}"
        return map_known(host.read(path), lambda text: parse_counts(text, path))

    return PcieErrors(bdf, counts("correctable"), counts("nonfatal"), counts("fatal"))


def parse_counts(text: str, path: str = "") -> Maybe[ErrorCounts]:
    """Parse the lines "RxErr 3" … "TOTAL_ERR_COR 3" of an aer_dev_ file."""
    total: int | None = None
    by_name: dict[str, int] = {}
    for line in text.split("\n")[:_MAX_NAMES]:
        name, _, number = line.strip().rpartition(" ")
        if not re.fullmatch(r"[0-9]{1,20}", number):
            continue
        if name.startswith("TOTAL_ERR_"):
            total = int(number)
        elif name and int(number):
            by_name[printable(name, 40)] = int(number)
    if total is None:
        return Unknown(Reason.MALFORMED, path, "no TOTAL_ERR_… line")
    return ErrorCounts(total, by_name)
