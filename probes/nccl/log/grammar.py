"""The lines of NCCL 2.4 to 2.32 that gdrtop looks for, and those of PyTorch's watchdog.

Sources: NVIDIA/nccl src/init.cc, graph/{topo,paths}.cc, transport/{net,net_ib,coll_net,generic}.cc,
misc/{param,ibvwrap,socket}.cc and plugin/net.cc of 19 tags from 2.18.1 to 2.30.7, and transport/net.cc of
2.4.8, 2.6.4 and 2.31, and debug.cc of 2.32; pytorch ProcessGroupNCCL.cpp; ray's ray_logging/__init__.py.
Where versions differ, one pattern reads all forms.
"""

from __future__ import annotations

import re
from enum import Enum

from probes.base.frozen import frozen
from probes.nccl.variables.catalogue import is_newer

INTEREST = re.compile(
    rb"NCCL(?: (?:INFO (?:Channel \d(?:(?=[\d/]{0,12}( : [^\n]{1,400})\n)|)"
    rb"|CollNet \d|Ring \d\d : [^>\n]{1,30}> [\d\[\]a-f]{1,30} (?:\[|via)"
    rb"|NET/|GPU Direct RDMA|Connected all"
    rb"|Using network|DMA-BUF is|NCCL_"
    rb"|comm 0x|nccl\w{1,40} comm 0x|\[Rank \d{1,9}\] \w{1,40} comm 0x|NVLS multicast|Call to |ibv_"
    rb"|Failed to |Co(?:unt|uld) not |dlvsym failed|cuMem host |MNNVL |Plugin |P2P is |RAS decl|Unable to )"
    rb"|WARN |ATTN |DIAG |version \d|error in)|\.cpp|Utils\.|\(SeqNum=)"
)
"""What begins a line worth reading; a literal first, so that other lines cost next to nothing.

The group is what a channel's line says after the number of the channel, up to its end.
"""


LAST_ERROR = b"Last error:"
"""Behind PyTorch's exception: the next line is NCCL's last WARN, with any NCCL_DEBUG (ncclGetLastError)."""
OTHERS = (b"libibverbs: ", b"libfabric:", b"UCX  ", b"] ERROR ", b"RCCL version", LAST_ERROR)
"""What stands in lines of other libraries that say why a network does not start, of RCCL, and of PyTorch."""
OF_OTHERS = re.compile(
    rb"(?:libibverbs: (?:Warning|Fatal)|libfabric:\d|UCX  (?:ERROR|WARN|FATAL)|\] ERROR "
    rb"|RCCL version :? ?(?P<version>\d[\w.+-]{0,60})|Last error:\s{0,80}\n(?P<last>))[^\n]*"
)


class Kind(Enum):
    """What a line says."""

    CHANNEL = "channel"
    COLLNET = "collnet"
    CAPABILITY = "capability"
    DISTANCE = "distance"
    RINGS = "rings"
    NETWORK = "network"
    DMABUF = "dmabuf"
    SETTING = "setting"
    COMMUNICATOR = "communicator"
    INIT = "init"
    USING = "using"
    NO_DEVICE = "no-device"
    NO_VERBS = "no-verbs"
    PLUGIN = "plugin"
    NVLS = "nvls"
    VERSION = "version"
    QUEUE_PAIR = "queue-pair"
    WARNING = "warning"
    MESSAGE = "message"  # INFO that may say why something failed
    NOTICE = "notice"  # ATTN of 2.32, which is never an error
    DIAGNOSTIC = "diagnostic"  # DIAG of 2.31: a result of NCCL's diagnostics
    TORCH = "torch"


_NUMBER = r"(\d{1,9})"
_PEER = r"(\d{1,9})(?:\[[0-9a-fA-F]{1,16}\])?"
_ARROW = r"(?:->|-&gt;|-\\u003e)"  # as in HTML and JSON
# "Ring 00 : 1 -> 2" up to 2.6; %02d/%d since 2.12; bus ids in brackets up to 2.18.1, NVML numbers later.
CHANNEL = re.compile(
    rf"(?:Channel \d{{1,5}}(?:/\d{{1,5}})?|Ring \d\d) : {_PEER} {_ARROW} {_PEER} +(?:\[(send|receive)\] +)?"
    r"via +(.{0,400})"
)
COLLNET = re.compile(rf"CollNet \d{{1,5}}/\d{{1,5}} : {_NUMBER} \[(send|receive)\] via COLL(.{{0,400}})")
# Names of networks contain blanks. The number in parentheses is the rank whose NIC is used (PXN). Lines of
# receiving channels end with the kind of flush from 2.31 on.
NETWORK_PATH = re.compile(
    r"NET/([^/:\[]{1,64})/(\d{1,9})(?:\((\d{1,9})\))?(/GDRDMA)?(\(PCI\))?(/Shared)?(?:/flush=(\w{1,16}))?(.*)"
)
TORN_INIT = re.compile(
    r"NCCL INFO (?:\[Rank \d{1,9}\] )?(?:nccl\w{1,40} )?comm 0x(?!.*(?:START|COMPLETE|nRanks))"
)
"""A line of an initialization whose end is missing."""
REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\]")
"""What Ray adds to a line that stands for several, which are equal but for words with digits."""
_CAPABILITY = re.compile(
    r"NET/([^/]{1,64}?) : GPU Direct RDMA (?:\((?:nvidia-peermem|DMABUF)\) )?"  # nccl-rdma-sharp-plugins
    rf"(Enabled|enabled|Disabled) for HCA {_NUMBER} '([^']{{1,200}})"  # the plugin does not close the quote
)
_DISTANCE = re.compile(
    r"(?:NET/\w{1,16} : )?GPU Direct RDMA (Enabled|Disabled) for "  # NET/IB up to 2.4
    r"(?:GPU ([0-9a-fA-F]{1,16})(?:\[[0-9a-fA-F]{1,16}\])? / HCA ([0-9a-fA-F]{1,16}) \(|"  # up to 2.28
    r"GPU/([0-9a-fA-F-]{1,40}) \(rank \d{1,9}\) - NET/([0-9a-fA-F-]{1,40}) \([^()]{0,80}?)"  # 2.29
    r"distance (\d{1,3}) (?:<=?|>=?) (\d{1,3})\)?(?:, read ([01]))?"  # >= and < up to 2.4
)
_RINGS = re.compile(r"Connected all rings(?:, use ring PXN ([01]) GDR ([01]))?")
_NETWORK = re.compile(r"Using network (.{1,64})")
_DMABUF = re.compile(r"DMA-BUF is available on GPU device \d{1,5}")
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to (.{0,300})")
_COMMUNICATOR = re.compile(r"comm 0x[0-9a-f]{1,16} rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9})\b")
_INIT = re.compile(
    r"(?:\[Rank \d{1,9}\] )?(?:\w{1,40} )?comm 0x[0-9a-f]{1,16} rank (\d{1,9}) nranks (\d{1,9}) cudaDev"
    r" \d{1,5}.{0,300}?- ?Init (START|COMPLETE)"
)
_USING = re.compile(r"NET/(IB|Socket) : Using ?(.{1,1500})")
_NO_DEVICE = re.compile(r"NET/IB : No device found")
_PLUGIN = re.compile(r"NET/Plugin ?: ?(.{1,300})")
_OFI = re.compile(r"NET/(OFI .{1,200})")
_NO_VERBS = re.compile(r"(?:Failed to open libibverbs\.so\[\.1\]|Co(?:unt|uld) not open libibverbs\.so\.1)")
_NVLS = re.compile(r"(NVLS multicast .{1,200})")
_QUEUE_PAIR = re.compile(r"NET/IB ?: .{0,120}? q(?:pn|p_num) \d{1,10} mtu (\d)\b")
_ASKED = (
    *("NET/", "Call to ", "ibv_", "Failed to ", "dlvsym ", "cuMem host ", "MNNVL ", "Plugin "),
    *("P2P is ", "RAS decl", "Unable to ", "Could not "),
)  # begins of messages that the catalogue may know
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,60})")

_INFO: tuple[tuple[str, Kind, re.Pattern[str]], ...] = (
    ("Channel", Kind.CHANNEL, CHANNEL),
    ("Ring", Kind.CHANNEL, CHANNEL),
    ("CollNet", Kind.COLLNET, COLLNET),
    ("NET/", Kind.CAPABILITY, _CAPABILITY),
    ("NET/", Kind.DISTANCE, _DISTANCE),
    ("NET/", Kind.USING, _USING),
    ("NET/", Kind.NO_DEVICE, _NO_DEVICE),
    ("NET/", Kind.QUEUE_PAIR, _QUEUE_PAIR),
    ("NET/", Kind.PLUGIN, _PLUGIN),
    ("NET/", Kind.PLUGIN, _OFI),
    ("GPU Direct", Kind.DISTANCE, _DISTANCE),
    ("Connected all r", Kind.RINGS, _RINGS),
    ("Using", Kind.NETWORK, _NETWORK),
    ("DMA-BUF", Kind.DMABUF, _DMABUF),
    ("NCCL_", Kind.SETTING, _SETTING),
    ("comm", Kind.COMMUNICATOR, _COMMUNICATOR),
    ("", Kind.INIT, _INIT),
    ("NVLS", Kind.NVLS, _NVLS),
    ("Failed to open", Kind.NO_VERBS, _NO_VERBS),
    ("Count not open", Kind.NO_VERBS, _NO_VERBS),
)
_ANY = re.compile(r"(.{0,1500})")
_WORDS = {"NCCL WARN ": Kind.WARNING, "NCCL ATTN ": Kind.NOTICE, "NCCL DIAG ": Kind.DIAGNOSTIC}


def parse(text: str) -> tuple[Kind, re.Match[str]] | None:
    """Return what a line says, from its word "NCCL" on; None if it is cut off or says something else."""
    if text.startswith("NCCL INFO "):
        message = text[10:]
        for start, kind, pattern in _INFO:
            if message.startswith(start) and (match := pattern.match(message)):
                return kind, match
        asked = _ANY.match(message) if message.startswith(_ASKED) else None
        return None if asked is None else (Kind.MESSAGE, asked)
    said = _WORDS.get(text[:10])
    if said is Kind.WARNING and (match := _NO_VERBS.match(text, 10)):
        return Kind.NO_VERBS, match
    if said is not None and (match := _ANY.match(text, 10)):
        return said, match
    if match := _VERSION.match(text):
        return Kind.VERSION, match
    match = _ANY.match(text)
    return None if match is None else (Kind.TORCH, match)


_DEVICE = re.compile(r"\[(\d{1,4})\](?:=\{([^{}]{1,400})\}|([^\s\[\]]{1,80}))")
_MEMBER = re.compile(r"\[\d{1,4}\] ?([^\s\[\],]{1,80})")


def devices_in(using: str) -> list[str]:
    """Return the devices of `Using [0]mlx5_0:1/RoCE [1]={[1] mlx5_1:1/RoCE, [2] mlx5_2:1/RoCE}`."""
    listed = using.partition(";")[0]
    return [
        f"[{number}] {name or '+'.join(_MEMBER.findall(merged))}"
        for number, merged, name in _DEVICE.findall(listed)
    ]


# NCCL's words for distances, which were renumbered again and again: src/graph/topo.cc topoPathTypeStr and
# src/include/graph.h of these versions.
_ORDERS: tuple[tuple[tuple[int, int, int], str], ...] = (
    ((2, 6, 0), "LOC NVL PIX PXB PHB SYS NET"),
    ((2, 8, 0), "LOC NVL NVB PIX PXB PHB SYS NET"),
    ((2, 12, 0), "LOC NVL NVB PIX PXB PXN PHB SYS NET DIS"),
    ((2, 26, 0), "LOC NVL NVB C2C PIX PXB PXN PHB SYS NET DIS"),
    ((2, 27, 0), "LOC NVL NVB C2C PIX PXB PXN P2C PHB SYS NET DIS"),
    ((2, 27, 5), "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS NET DIS"),
)


def distance_word(version: tuple[int, ...], distance: int) -> str | None:
    """Return the word for a number in a line of this version; None if it has none, or may have others."""
    if is_newer(version):
        return None
    words: list[str] = []
    for since, order in _ORDERS:
        if version >= since:
            words = order.split()
    return words[distance] if 0 <= distance < len(words) else None


# Undo what launchers and terminals add to a line: tags, colors, CRLF, glued and endless lines.
#
# NCCL itself begins a line with `host:pid:tid [device] ` and, for warnings, `file:line ` (debug.cc). From
# 2.26 on a time may stand before that. Launchers put their own tags before: `[1,0]<stdout>:` (mpirun),
# `[default0]:` (torchrun), `0: ` (srun), `[pod/name/container] ` (kubectl). Docker's json-file driver writes
# `{"log":"…\n","stream":"stdout",…}` (moby daemon/logger/jsonfilelog).

MAX_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 512  # what is searched before "NCCL" for its prefix
CUT_MARK = b"\x7f"  # ends a line of which a part was dropped

# Escape sequences never reach over a line end here.
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9:;<=>?]{0,64}[ -/]{0,8}[@-~]"
    rb"|\][^\x07\x1b\r\n]{0,1024}(?:\x07|\x1b\\)|[ -/]{0,4}[0-Z\\^-~])"
)
_DOCKER = re.compile(rb'(?<![^\r\n])\{"log":"([^"\\\r\n]*(?:\\.[^"\\\r\n]*)*)","stream":"[^\r\n]*')
_JSON_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_HOST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_MOST_HOST = 255
_HEADER_END = re.compile(rb" \[(-?\d{1,5})\] (?:([^\[\]\r\n]{1,200}) )?$")
_IDS = re.compile(rb":(\d{1,10}):\d{1,10}$")
_NEXT_HEADER = re.compile(r":\d{1,10}:\d{1,10} \[-?\d{1,5}\] ")


@frozen
class Header:
    """Who wrote a line."""

    host: str
    pid: int
    device: int
    source: str = ""  # line of NCCL's source, of a warning: "transport/nvls.cc:254"
    is_glued: bool = False  # another line stands before it, and its end may be taken for the host's begin


def clean(block: bytes) -> bytes:
    """Return whole lines without escape sequences and without the end of endless lines.

    All newlines stay, so lines can still be counted.
    """
    if _may_have_long_line(block):
        block = b"".join(map(_shortened, block.splitlines(keepends=True)))
    if b'{"log":"' in block:
        block = _DOCKER.sub(_docker_text, block)
    if b"\x1b" in block:
        block = _ESCAPES.sub(b"", block)
    return block


def _shortened(line: bytes) -> bytes:
    if len(line) <= MAX_LINE_BYTES:
        return line
    text = line.rstrip(b"\r\n")
    return line if len(text) <= MAX_LINE_BYTES else text[:MAX_LINE_BYTES] + CUT_MARK + line[len(text) :]


def _docker_text(line: re.Match[bytes]) -> bytes:
    """Return the text of a line of Docker, which divides long lines; only the last part has a newline."""
    if b"NCCL" not in line[1]:
        return line[0]
    text = _JSON_ESCAPE.sub(_character, line[1])
    return text if line[1].endswith(b"\\n") else text + CUT_MARK


def _character(escape: re.Match[bytes]) -> bytes:
    if escape[1]:
        code = int(escape[1], 16)
        return b"" if code == 10 else chr(code).encode("utf-8", "replace")
    return {b"n": b"", b"r": b"\r", b"t": b"\t"}.get(escape[2], escape[2])


def _may_have_long_line(block: bytes) -> bool:
    step = MAX_LINE_BYTES // 2
    return any(
        block.find(b"\n", start, start + step) < 0 and block.find(b"\r", start, start + step) < 0
        for start in range(0, len(block) - step, step)
    )


def header_before(block: bytes, start: int, line_start: int) -> Header | None:
    """Return the prefix that ends at `start`, where "NCCL" begins; None if it was cut off."""
    window = block[max(line_start, start - _WINDOW_BYTES) : start]
    bracket = window.rfind(b" [")
    device = _HEADER_END.match(window, bracket) if bracket >= 0 else None
    ids = _IDS.search(window, max(0, bracket - 22), bracket) if device else None
    if device is None or ids is None:
        return None
    before = window[: ids.start()]
    host = before[len(before.rstrip(_HOST)) :][-_MOST_HOST:]
    if not host:
        return None
    is_glued = block.find(b"NCCL ", line_start, start) >= 0
    source = (device[2] or b"").decode("utf-8", "replace")
    return Header(host.decode("ascii"), int(ids[1]), int(device[1]), source, is_glued)


def writer_of(prefix: bytes) -> bytes:
    """Return the part of a line's prefix that decides its header, unless another line is glued to it."""
    if prefix.count(b" ") <= 2:
        return prefix
    return prefix[prefix.rfind(b" ", 0, max(0, prefix.rfind(b" ["))) + 1 :]


def before_next_header(message: str) -> str:
    """Return a message without another one that was glued to it."""
    match = _NEXT_HEADER.search(message)
    return message if match is None else message[: match.start()].rstrip(_HOST.decode("ascii"))
