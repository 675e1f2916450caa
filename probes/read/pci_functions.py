"""PCI functions as lspci prints them, put where sysfs has them: config space, links, BARs and the tree.

With -vvv, root sees all that the checks of PCIe read. What a text does not show is left out: with
"access denied", or of a line that grep took, no capability is called missing.
Source: pciutils lspci.c, ls-caps.c, ls-ecaps.c and ls-tree.c.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes.base.text import join_limited, plural
from probes.facts.kernel.log import SHORT_BDF
from probes.facts.pci.config_space import (
    ACS_WORDS,
    ASPM_STATES,
    CONVENTIONAL_BYTES,
    ERRORS,
    HEADER_BYTES,
    WHOLE_BYTES,
)
from probes.facts.pci.functions import DEVICES
from probes.facts.pci.nic_families import CONNECTX
from probes.facts.system.platform import DMI
from probes.messages.message import Weight
from probes.nccl.log.facts import Place
from probes.read.findings import statement
from probes.read.pasted_host import PLACEHOLDER
from probes.read.reading import Parsed, Section, Statement

SIGN = (
    rf"\s*{SHORT_BDF} (?:[A-Z3][\w ,/().-]{{2,50}}(?: \[[0-9a-f]{{4}}\])?: "
    r"|[0-9a-f]{4}: [0-9a-f]{4}:[0-9a-f]{4})"
    r"|\s*ACSCtl:\s+SrcValid[+-]|\s*Lnk(?:Cap|Sta):\s+(?:Port #|Speed )"
)
TREE_SIGN = r"\s*(?:[-+\\|][-+ ]*|[├└│─┬][├└│─┬ ]*)?\[[0-9a-f]{4}:[0-9a-f]{2}(?:-[0-9a-f]{2})?\][-─]"
_CHECKS = frozenset(
    (
        *("acs-redirect-enabled", "acs-direct-translated-without-ats", "vm-without-p2p"),
        *("pcie-link-degraded-width", "pcie-link-degraded-speed", "pcie-link-limited-by-slot"),
        *("pcie-devctl-relaxed-ordering", "pcie-devctl-payload-differs", "pcie-devctl-extended-tags"),
        *("pcie-devctl-read-request", "pcie-devctl-read-request-differs", "pcie-devctl-ten-bit-tags-differ"),
        *("pcie-aspm-on", "bar1-too-small"),
    )
)
_DRIVER_CHECKS = frozenset(
    (
        *("gpu-without-driver", "gpu-without-driver-nouveau", "gpu-without-driver-passed-through"),
        *("nic-without-driver", "nic-without-driver-passed-through"),
    )
)
_HEAD = re.compile(
    rf"({SHORT_BDF}) \"?([A-Z3][^:\[\"]{{2,60}}?)\"?(?: \[([0-9a-f]{{4}})\])?(?:: | \")(.{{1,300}})$"
)
_NUMERIC = re.compile(
    rf"({SHORT_BDF}) (?:Class )?([0-9a-f]{{4}}): ([0-9a-f]{{4}}):([0-9a-f]{{4}})(?: \(rev .*)?$"
)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_CLASSES = {
    "VGA compatible controller": 0x0300,
    "3D controller": 0x0302,
    "Display controller": 0x0380,
    "Ethernet controller": 0x0200,
    "Infiniband controller": 0x0207,
    "InfiniBand controller": 0x0207,
    "Fabric controller": 0x0208,
    "Network controller": 0x0280,
    "Host bridge": 0x0600,
    "PCI bridge": 0x0604,
    "Bridge": 0x0680,
    "DMA controller": 0x0801,
    "Processing accelerators": 0x1200,
}
_VENDORS = {
    "NVIDIA": 0x10DE,
    "Mellanox": CONNECTX.vendor,
    "Broadcom / LSI": 0x1000,
    "Intel": 0x8086,
    "Advanced Micro Devices": 0x1022,
}
_VIRTUAL = re.compile(
    r"\b(?:QEMU|Red Hat|Virtio|VMware|Hyper-V|Microsoft Corporation|VirtualBox|Xen|Amazon\.com|Google)\b"
)
_TYPES = {
    "Endpoint": 0,
    "Legacy Endpoint": 1,
    "Root Port": 4,
    "Upstream Port": 5,
    "Downstream Port": 6,
    "PCI-Express to PCI/PCI-X Bridge": 7,
    "PCI/PCI-X to PCI-Express Bridge": 8,
    "Root Complex Integrated Endpoint": 9,
    "Root Complex Event Collector": 10,
}
_REDIRECTS = ("ReqRedir+", "CmpltRedir+", "UpstreamFwd+")
_SIZE = re.compile(r"(\d{1,6})([KMGT]?)B?")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_REGION = re.compile(
    r"Region ([0-5]): Memory at (?:\S{1,20}) \(\d\d-bit, (non-)?prefetchable\).*\[size=(\w{1,10})\]"
)
_EXPRESS = re.compile(
    r"Capabilities: \[\w+\] Express(?: \(v(\d)\))? ([A-Z][\w /-]+?)(?: \([\w+-]+\))?(?:,|$)"
)
_PAYLOAD = re.compile(r"MaxPayload (\d{3,4}) bytes, MaxReadReq (\d{3,4}) bytes")
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed (\d{1,3}(?:\.\d)?)GT/s(?: \(\w+\))?, Width x(\d{1,2})")
_RESIZABLE = re.compile(r"BAR (\d): current size: (\w{1,8}), supported: ([\w ]{1,200})")
_FLAG = re.compile(r"(\w{1,20})([+-])")
_DRIVER = re.compile(r"Kernel driver in use: (\S{1,40})")
_NUMA = re.compile(r"NUMA node: (\d{1,4})")
_MOST_FUNCTIONS = 20_000


@dataclass
class _Function:
    """One function, as far as the text shows it."""

    bdf: str
    class_code: int
    ids: tuple[int, int]
    name: str
    place: Place
    is_whole: bool = False  # with its registers, by root
    is_denied: bool = False
    is_gone: bool = False
    buses: tuple[int, int, int] | None = None
    express: tuple[int, int] | None = None  # version, type
    control: dict[str, bool] = field(default_factory=dict)
    sizes: tuple[int, int] | None = None  # MaxPayload, MaxReadReq
    status: set[str] = field(default_factory=set)
    best: tuple[str, str] | None = None
    now: tuple[str, str] | None = None
    aspm: int = 0
    ten_bit_tags: bool = False
    acs: int | None = None
    ats: bool | None = None
    bars: dict[int, tuple[int, bool]] = field(default_factory=dict)
    resizable: list[tuple[int, int, int]] = field(default_factory=list)
    driver: str = ""
    numa: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is an NVIDIA GPU."""
        return self.class_code >> 8 == 0x03 and self.ids[0] == _VENDORS["NVIDIA"]

    @property
    def is_nic(self) -> bool:
        """Whether it is a NIC with RDMA that gdrtop knows."""
        return self.class_code >> 8 == 0x02 and self.ids[0] == CONNECTX.vendor

    @property
    def short(self) -> str:
        """How a statement calls it."""
        name = re.sub(r"\s*\[[0-9a-f]{4}:[0-9a-f]{4}\]|\s*\(rev \w+\)|\s*\(prog-if.*", "", self.name)
        return f"{self.bdf} ({name[:60].strip()})"


def read_functions(section: Section) -> Parsed:
    """Read lspci, also with -n, -nn, -v to -vvv, and lines of it."""
    functions: dict[str, _Function] = {}
    function: _Function | None = None
    register = ""
    read = 0
    loose: list[tuple[int, str]] = []  # lines about registers of functions that the text does not name
    has_loose_links = 0
    for number, line in enumerate(section.lines):
        text = line.strip()
        if not text:
            continue
        started = _started(text, section, number)
        if started is not None and len(functions) < _MOST_FUNCTIONS:
            function = functions.setdefault(started.bdf, started)
            register = ""
        elif function is not None:
            register = _detail(function, text, register)
        elif text.startswith("ACSCtl:"):
            loose.append((number, text))
        elif text.startswith("Lnk"):
            has_loose_links += "downgraded" in text
        else:
            continue
        read += 1
    statements = list(_loose(loose, section))
    if has_loose_links:
        links = plural(has_loose_links, "link")
        statements.append(statement("links-with-fewer-lanes", section.place, links=links, weight=Weight.NOTE))
    tree = _Tree(functions)
    statements += _faults(functions, tree, section)
    answers = tree.answers() if functions else {}
    checks = _CHECKS if functions else frozenset()
    if any(each.driver for each in functions.values()):
        checks |= _DRIVER_CHECKS
    return Parsed(read, tuple(statements), answers, checks, tree.shows())


def _started(text: str, section: Section, number: int) -> _Function | None:
    """Return the function that a line begins."""
    match = _NUMERIC.match(text)
    place = section.at(number)
    if match:
        ids = int(match[3], 16), int(match[4], 16)
        return _Function(_bdf(match[1]), int(match[2], 16), ids, f"{match[3]}:{match[4]}", place)
    match = _HEAD.match(text)
    if match is None:
        return None
    name = match[4]
    numbers = _IDS.findall(name)
    vendor = next((number for word, number in _VENDORS.items() if name.startswith(word)), 0)
    ids = (int(numbers[-1][0], 16), int(numbers[-1][1], 16)) if numbers else (vendor, 0)
    if not numbers and (device := re.search(r" Device ([0-9a-f]{4})\b", name)):
        ids = vendor, int(device[1], 16)
    code = int(match[3], 16) if match[3] else _CLASSES.get(match[2].strip(), 0xFF00)
    is_gone = "(rev ff)" in name
    return _Function(_bdf(match[1]), code, ids, name, place, is_gone=is_gone)


def _bdf(text: str) -> str:
    address = text.lower()
    return address if address.count(":") == 2 else f"0000:{address}"


def _detail(function: _Function, text: str, register: str) -> str:
    """Take one line below a function; return the register that the next line may go on with."""
    word = text.partition(":")[0]
    if match := _BUSES.search(text):
        function.buses = int(match[1], 16), int(match[2], 16), int(match[3], 16)
    elif match := _REGION.search(text):
        function.bars[int(match[1])] = _bytes(match[3]), match[2] is None
    elif match := _EXPRESS.match(text):
        function.express = int(match[1] or 1), _TYPES.get(match[2].strip(), 0)
    elif match := _LINK.match(text):
        if match[1] == "Cap":
            function.best = match[2], match[3]
        else:
            function.now = match[2], match[3]
    elif word == "Control":
        function.is_whole = True
    elif "<access denied>" in text:
        function.is_denied = True
    elif text.startswith("!!! Unknown header type 7f"):
        function.is_gone = True
    elif word == "LnkCtl" and (match := re.search(r"ASPM ([L0s1 ]+?) ?Enabled", text)):
        function.aspm = ASPM_STATES.index(match[1]) if match[1] in ASPM_STATES else 0
    elif word == "DevSta":
        flags = dict(_FLAG.findall(text))
        names = zip(("CorrErr", "NonFatalErr", "FatalErr", "UnsupReq"), ERRORS, strict=True)
        function.status = {name for flag, name in names if flags.get(flag) == "+"}
    elif word == "ACSCtl":
        function.acs = _acs(text)
    elif word == "ATSCtl":
        function.ats = "Enable+" in text
    elif match := _RESIZABLE.match(text):
        sizes = [_bytes(size) for size in match[3].split()]
        function.resizable.append((int(match[1]), _bytes(match[2]), max(sizes, default=0)))
    elif match := _DRIVER.match(text):
        function.driver = match[1]
    elif match := _NUMA.match(text):
        function.numa = match[1]
    if word in ("DevCtl", "DevCtl2"):
        register = word
    elif re.match(r"[A-Z][A-Za-z0-9]+:", text):
        register = ""
    if register == "DevCtl":
        function.control.update((name, sign == "+") for name, sign in _FLAG.findall(text))
        if match := _PAYLOAD.search(text):
            function.sizes = int(match[1]), int(match[2])
    elif register == "DevCtl2" and "10BitTagReq+" in text:
        function.ten_bit_tags = True
    return register


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return int(match[1]) << _UNITS[match[2]] if match else 0


def _acs(text: str) -> int:
    flags = dict(_FLAG.findall(text))
    return sum(1 << bit for bit, name in enumerate(ACS_WORDS) if flags.get(name) == "+")


class _Tree:
    """The functions below the bridges whose buses the text shows."""

    def __init__(self, functions: Mapping[str, _Function]) -> None:
        self._functions = functions
        self._above = {
            (function.bdf[:-8], function.buses[1]): function.bdf
            for function in functions.values()
            if function.buses is not None
        }

    def chain(self, bdf: str) -> tuple[str, ...]:
        """Return the functions from the root port down to this one, as far as the text has them."""
        chain = [bdf]
        while len(chain) < 64:
            domain, bus = chain[-1][:-8], int(chain[-1][-7:-5], 16)
            above = self._above.get((domain, bus))
            if above is None or above in chain:
                break
            chain.append(above)
        return tuple(reversed(chain))

    def is_complete(self, bdf: str) -> bool:
        """Return whether the text has all bridges above a function, up to the root port."""
        chain = self.chain(bdf)
        top = self._functions[chain[0]]
        is_root_port = top.express is not None and top.express[1] == _TYPES["Root Port"]
        return is_root_port and (len(chain) > 1 or top.buses is not None)

    def path(self, bdf: str) -> str:
        """Return the directory in sysfs."""
        chain = self.chain(bdf)
        top = chain[0]
        return f"/sys/devices/pci{top[:-5]}/{'/'.join(chain)}"

    def near(self) -> dict[str, list[str]]:
        """Return the NICs that share a PCIe switch with each GPU; both are below a bridge of the text."""
        chains = {bdf: self.chain(bdf) for bdf, each in self._functions.items() if each.is_gpu or each.is_nic}
        below = {bdf: chain for bdf, chain in chains.items() if len(chain) > 1}
        by_top: dict[str, list[str]] = {}
        for bdf, chain in below.items():
            if self._functions[bdf].is_nic and len(chain) > 2:
                by_top.setdefault(chain[0], []).append(bdf)
        return {bdf: by_top.get(chain[0], []) for bdf, chain in below.items() if self._functions[bdf].is_gpu}

    def shows(self) -> str:
        """Return one sentence about what is there."""
        gpus = sum(each.is_gpu for each in self._functions.values())
        nics = sum(each.is_nic for each in self._functions.values())
        counts = ((gpus, "NVIDIA GPU"), (nics, "ConnectX function"))
        kinds = " and ".join(plural(count, noun) for count, noun in counts if count)
        near = self.near()
        if gpus and nics and len(near) == gpus:
            count = sum(map(bool, near.values()))
            return f"{kinds}: {count} of {gpus} GPUs share a PCIe switch with a NIC."
        return f"{kinds} in the list." if kinds else ""

    def answers(self) -> dict[tuple[str, ...], Any]:
        """Return the files of these functions."""
        answers: dict[tuple[str, ...], Any] = {}
        for bdf, function in self._functions.items():
            path = self.path(bdf)
            answers["link", f"{DEVICES}/{bdf}"] = f"../../..{path.removeprefix('/sys')}"
            for name, text in _files(function, self.is_complete(bdf)):
                answers["file", f"{path}/{name}"] = text
            if "Virtual Function" in function.name:
                answers["link", f"{path}/physfn"] = f"../{PLACEHOLDER}ff:1f.7"
            if (content := _config(function)) is not None:
                answers["file", f"{DEVICES}/{bdf}/config"] = content
        if any(_VIRTUAL.search(function.name) for function in self._functions.values()):
            answers["file", f"{DMI}/sys_vendor"], answers["file", f"{DMI}/product_name"] = b"QEMU", b"KVM"
        elif any(function.class_code == _CLASSES["Host bridge"] for function in self._functions.values()):
            # The whole list, without a device that only a hypervisor makes.
            answers["file", f"{DMI}/sys_vendor"] = answers["file", f"{DMI}/product_name"] = b"-"
        return answers


def _files(function: _Function, has_both_ends: bool) -> Iterator[tuple[str, bytes]]:
    vendor, device = function.ids
    event = [f"PCI_CLASS={function.class_code << 8:X}", f"PCI_ID={vendor:04X}:{device:04X}"]
    if function.driver:
        event.append(f"DRIVER={function.driver}")
    yield "uevent", ("\n".join(event) + "\n").encode()
    if function.numa:
        yield "numa_node", function.numa.encode()
    if has_both_ends:  # else what the slot supports is not known
        for names, link in (("current", function.now), ("max", function.best)):
            if link is not None:
                yield f"{names}_link_speed", f"{link[0]} GT/s PCIe".encode()
                yield f"{names}_link_width", link[1].encode()
    if function.bars:
        rows = []
        for index in range(6):
            size, is_prefetchable = function.bars.get(index, (0, False))
            flags = 0x2200 if is_prefetchable else 0x200
            rows.append(f"0x{1 << 40:x} 0x{(1 << 40) + size - 1:x} 0x{flags:x}" if size else "0x0 0x0 0x0")
        yield "resource", "\n".join(rows).encode()


def _config(function: _Function) -> bytes | None:
    """Return a configuration space with the registers that the text shows; None: it does not show them."""
    if function.is_gone:
        return b"\xff" * HEADER_BYTES
    if not function.is_whole or function.is_denied or function.express is None or not function.control:
        return None
    payload, request = function.sizes or (128, 128)
    control = 0x0010 * function.control.get("RlxdOrd", False) | 0x0100 * function.control.get("ExtTag", False)
    control |= _code(payload) << 5 | _code(request) << 12
    status = sum(1 << bit for bit, name in enumerate(ERRORS) if name in function.status)
    version, port_type = function.express
    content, express = bytearray(WHOLE_BYTES), HEADER_BYTES
    for offset, values in (
        (0, (*function.ids, 0, 0x10)),
        (0x34, (express,)),
        (express, (0x10, version | port_type << 4)),
        (express + 8, (control, status)),
        (express + 0x10, (function.aspm,)),
        (express + 0x28, (0x1000 * function.ten_bit_tags,)),
    ):
        struct.pack_into(f"<{len(values)}H", content, offset, *values)
    capabilities: list[tuple[int, bytes]] = []  # id, registers
    if function.acs is not None:
        capabilities.append((0x0D, struct.pack("<2H", 0, function.acs)))
    if function.ats is not None:
        capabilities.append((0x0F, struct.pack("<2H", 0, 0x8000 * function.ats)))
    if bars := function.resizable[:6]:
        capabilities.append((0x15, b"".join(_resizable(bar, len(bars)) for bar in bars)))
    offset = CONVENTIONAL_BYTES
    for more, (number, registers) in zip(range(len(capabilities))[::-1], capabilities, strict=True):
        following = offset + (4 + len(registers) + 7) // 8 * 8
        header = struct.pack("<I", number | 1 << 16 | (following << 20 if more else 0))
        content[offset:following] = (header + registers).ljust(following - offset, b"\0")
        offset = following
    return bytes(content)


def _resizable(bar: tuple[int, int, int], count: int) -> bytes:
    """Return capability and control of one of the resizable BARs."""
    index, size, largest = bar
    bits, most = (max(0, value.bit_length() - 21) for value in (size, largest))
    return struct.pack("<2I", 1 << 4 + min(most, 27), index & 7 | count << 5 | (bits & 0x3F) << 8)


def _code(size: int) -> int:
    """Return the code of a size in bytes: 0 is 128."""
    return max(0, min(5, size.bit_length() - 8))


# What the text says beside the checks.


def _loose(lines: list[tuple[int, str]], section: Section) -> Iterator[Statement]:
    """Judge ACSCtl lines whose functions the text does not name."""
    redirecting = [number for number, text in lines if any(word in text for word in _REDIRECTS)]
    if redirecting:
        ports, place = plural(len(redirecting), "port"), section.at(redirecting[0])
        yield statement("acs-redirect-enabled", place, ports=ports, all=len(lines), weight=Weight.WARNING)
    elif lines:
        yield statement("acs-without-redirects", section.place, lines=plural(len(lines), "line"))


_SLOT = (
    "Find what limits the link: Compare LnkCap of the port above (lspci -vvv -s <port>): a slot with fewer"
    " lanes limits every card; Check the slot's lanes (bifurcation) and speed in the BIOS; With the power"
    " off, reseat the card and its riser, or move it to a slot with all lanes."
)


def _faults(functions: Mapping[str, _Function], tree: _Tree, section: Section) -> Iterator[Statement]:
    """Say what the checks cannot: links whose other end is missing, and what root alone sees."""
    narrow: list[_Function] = []
    slow: list[_Function] = []
    for bdf, function in functions.items():
        is_end = function.is_gpu or function.is_nic
        if not (is_end and function.best and function.now) or tree.is_complete(bdf):
            continue
        if int(function.now[1]) < int(function.best[1]):
            narrow.append(function)
        elif (
            float(function.now[0]) < float(function.best[0]) and not function.is_gpu
        ):  # a GPU's link is slow when it idles
            slow.append(function)
    for name, found in (("pcie-link-degraded-width", narrow), ("pcie-link-degraded-speed", slow)):
        if found:
            texts = (f"{each.short}: {_words(each.now)} of {_words(each.best)}" for each in found)
            cause = (
                f"{'; '.join(list(texts)[:8])}. The slot, its port in the BIOS or a bad contact limits it."
            )
            yield statement(name, found[0].place, cause=cause, fix=_SLOT)
    if gone := [function for function in functions.values() if function.is_gone]:
        names = join_limited(each.short for each in gone)
        yield statement("pcie-function-gone", gone[0].place, functions=names)
    if denied := sum(function.is_denied for function in functions.values()):
        yield statement("lspci-needs-root", section.place, devices=plural(denied, "device"))


def _words(link: tuple[str, str] | None) -> str:
    return "" if link is None else f"{link[0]} GT/s x{link[1]}"


# lspci -t.

_LINE_END = re.compile(r"[-─]([0-9a-f]{2}\.[0-7])\s{1,3}(\S.{0,200})$")
_BRANCH = re.compile(r"[-─]?([0-9a-f]{2}\.[0-7])-\[")


def read_tree(section: Section) -> Parsed:
    """Read lspci -tv: which GPUs and NICs are below the same root port, by the columns of the lines."""
    read = 0
    tops: dict[str, dict[str, list[str]]] = {}  # root port -> kind -> names
    root = port = ""
    first = 0  # column of the functions of the root bus
    for line in section.lines:
        if not line.strip():
            continue
        read += 1
        if match := re.search(r"\[([0-9a-f]{4}:[0-9a-f]{2})(?:-[0-9a-f]{2})?\][-─]+", line):
            before = line[: match.start()]
            if not re.search(r"[0-9a-f]\.[0-7]-?$", before):
                root, first = match[1], match.end() + 1
        place = re.compile(r"[0-9a-f]{2}\.[0-7]").search(line)
        if place is not None and root and abs(place.start() - first) <= 1:
            port = f"{root}:{place[0]}"
        end = _LINE_END.search(line)
        if end is None or not port:
            continue
        name = end[2]
        kind = "GPU" if _is_gpu_name(name) else "NIC" if "Mellanox" in name else ""
        if kind:
            depth = len(_BRANCH.findall(line))
            tops.setdefault(port if depth or place != end else "", {}).setdefault(kind, []).append(name)
    gpus = sum(len(kinds.get("GPU", ())) for kinds in tops.values())
    nics = sum(len(kinds.get("NIC", ())) for kinds in tops.values())
    near = sum(len(kinds["GPU"]) for kinds in tops.values() if len(kinds) > 1)
    if not gpus or not nics:
        return Parsed(read, shows="")
    return Parsed(
        read, shows=f"{near} of {plural(gpus, 'GPU')} are below the same root port as a ConnectX NIC."
    )


def _is_gpu_name(name: str) -> bool:
    return name.startswith("NVIDIA Corporation") and not re.search(
        r"Audio|USB|UCSI|NVSwitch|Serial|Device 22a3|Device 1af1", name
    )
