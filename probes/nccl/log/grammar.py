"""The lines of NCCL 2.4 to 2.32 that gdrtop looks for, and those of PyTorch's watchdog.

Sources: NVIDIA/nccl src/init.cc, graph/{topo,paths}.cc, transport/{net,net_ib,coll_net,generic}.cc,
misc/{param,ibvwrap,socket}.cc and plugin/net.cc of 19 tags from 2.18.1 to 2.30.7, and transport/net.cc of
2.4.8, 2.6.4 and 2.31, and debug.cc of 2.32; pytorch ProcessGroupNCCL.cpp; ray's ray_logging/__init__.py.
Where versions differ, one pattern reads all forms.
"""

from __future__ import annotations

import re
from enum import Enum

INTEREST = re.compile(
    rb"NCCL(?: (?:INFO (?:Channel \d(?:(?=[\d/]{0,12}( : [^\n]{1,400})\n)|)"
    rb"|CollNet \d|Ring \d\d : [^>\n]{1,30}> [\d\[\]a-f]{1,30} (?:\[|via)"
    rb"|NET/|GPU Direct RDMA|Connected all"
    rb"|Using network|DMA-BUF is|NCCL_"
    rb"|comm 0x|nccl\w{1,40} comm 0x|\[Rank \d{1,9}\] \w{1,40} comm 0x|NVLS multicast|Call to |ibv_"
    rb"|Failed to open libibv|Count not open |dlvsym failed|cuMem host )"
    rb"|WARN |ATTN |DIAG |version \d|error in)|\.cpp|Utils\.)"
)
"""What begins a line worth reading; a literal first, so that other lines cost next to nothing.

The group is what a channel's line says after the number of the channel, up to its end.
"""


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
    WARNING = "warning"  # WARN, and INFO lines of failed calls
    NOTICE = "notice"  # ATTN of 2.32, which is never an error
    DIAGNOSTIC = "diagnostic"  # DIAG of 2.31: a result of NCCL's diagnostics
    TORCH = "torch"


_NUMBER = r"(\d{1,9})"
_PEER = r"(\d{1,9})(?:\[[0-9a-fA-F]{1,16}\])?"
_ARROW = r"(?:->|-&gt;|-\\u003e)"  # as in HTML and JSON
# "Ring 00 : 1 -> 2" up to 2.6; %02d/%d since 2.12; bus ids in brackets up to 2.18.1, NVML numbers later.
CHANNEL = re.compile(
    rf"(?:Channel \d{{1,5}}(?:/\d{{1,5}})?|Ring \d\d) : {_PEER} {_ARROW} {_PEER} (?:\[(send|receive)\] )?"
    r"via (.{0,400})"
)
COLLNET = re.compile(rf"CollNet \d{{1,5}}/\d{{1,5}} : {_NUMBER} \[(send|receive)\] via COLL(.{{0,400}})")
# Names of networks contain blanks. The number in parentheses is the rank whose NIC is used (PXN). Lines of
# receiving channels end with the kind of flush from 2.31 on.
NETWORK_PATH = re.compile(
    r"NET/([^/]{1,64})/(\d{1,9})(?:\((\d{1,9})\))?(/GDRDMA)?(\(PCI\))?(/Shared)?(?:/flush=(\w{1,16}))?(.*)"
)
TORN_INIT = re.compile(
    r"NCCL INFO (?:\[Rank \d{1,9}\] )?(?:nccl\w{1,40} )?comm 0x(?!.*(?:START|COMPLETE|nRanks))"
)
"""A line of an initialization whose end is missing."""
REPEATED = re.compile(r" \[repeated (\d{1,9})x across cluster\]")
"""What Ray adds to a line that stands for several, which are equal but for words with digits."""
_CAPABILITY = re.compile(
    rf"NET/([^/]{{1,64}}?) : GPU Direct RDMA (Enabled|Disabled) for HCA {_NUMBER} '([^']{{1,200}})'"
)
_DISTANCE = re.compile(
    r"GPU Direct RDMA (Enabled|Disabled) for "
    r"(?:GPU ([0-9a-fA-F]{1,16}) / HCA ([0-9a-fA-F]{1,16}) \(|"  # up to 2.28
    r"GPU/([0-9a-fA-F-]{1,40}) \(rank \d{1,9}\) - NET/([0-9a-fA-F-]{1,40}) \([^()]{0,80}?)"  # 2.29
    r"distance (\d{1,3}) (?:<=|>) (\d{1,3})\)?(?:, read ([01]))?"
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
_COMPLETION = re.compile(r"NET/IB(?:/GIN)? ?: .{0,80}Got completion")
_FAILED_CALL = re.compile(
    r"(?:Call to \S{1,60}|ibv_\w{1,40}\(\)|NET/MLX5: Call to \S{1,60}) failed(?!.*retrying \d)"
)
_NOTE = re.compile(
    r"dlvsym failed on mlx5dv_|cuMem host allocations do not|NET/IB : Failed to open mlx5dv symbols"
    r"|NET/OFI GDR support reported to NCCL but"
    r"|NET/IB: (?:rail policy was set to|Unrecognized NCCL_IB_RAIL_POLICY)"
)
_VERSION = re.compile(r"NCCL version (\d[\w.+-]{0,60})")

_INFO: tuple[tuple[str, Kind, re.Pattern[str]], ...] = (
    ("Channel", Kind.CHANNEL, CHANNEL),
    ("Ring", Kind.CHANNEL, CHANNEL),
    ("CollNet", Kind.COLLNET, COLLNET),
    ("NET/", Kind.CAPABILITY, _CAPABILITY),
    ("NET/", Kind.USING, _USING),
    ("NET/", Kind.NO_DEVICE, _NO_DEVICE),
    ("NET/", Kind.PLUGIN, _PLUGIN),
    ("NET/", Kind.WARNING, _NOTE),
    ("NET/", Kind.PLUGIN, _OFI),
    ("NET/", Kind.WARNING, _COMPLETION),
    ("NET/", Kind.WARNING, _FAILED_CALL),
    ("GPU Direct", Kind.DISTANCE, _DISTANCE),
    ("Connected all r", Kind.RINGS, _RINGS),
    ("Using", Kind.NETWORK, _NETWORK),
    ("DMA-BUF", Kind.DMABUF, _DMABUF),
    ("NCCL_", Kind.SETTING, _SETTING),
    ("comm", Kind.COMMUNICATOR, _COMMUNICATOR),
    ("", Kind.INIT, _INIT),
    ("NVLS", Kind.NVLS, _NVLS),
    ("Call to", Kind.WARNING, _FAILED_CALL),
    ("Failed to open", Kind.NO_VERBS, _NO_VERBS),
    ("Count not open", Kind.NO_VERBS, _NO_VERBS),
    ("dlvsym", Kind.WARNING, _NOTE),
    ("cuMem", Kind.WARNING, _NOTE),
    ("ibv_", Kind.WARNING, _FAILED_CALL),
)
_ANY = re.compile(r"(.{0,1500})")


def parse(text: str) -> tuple[Kind, re.Match[str]] | None:
    """Return what a line says, from its word "NCCL" on; None if it is cut off or says something else."""
    if text.startswith("NCCL INFO "):
        message = text[10:]
        for start, kind, pattern in _INFO:
            if message.startswith(start) and (match := pattern.match(message)):
                return kind, match
        return None
    if text.startswith("NCCL WARN "):
        if match := _NO_VERBS.match(text, 10):
            return Kind.NO_VERBS, match
        match = _ANY.match(text, 10)
        return None if match is None else (Kind.WARNING, match)
    if text.startswith("NCCL ATTN "):
        match = _ANY.match(text, 10)
        return None if match is None else (Kind.NOTICE, match)
    if text.startswith("NCCL DIAG "):
        match = _ANY.match(text, 10)
        return None if match is None else (Kind.DIAGNOSTIC, match)
    if match := _VERSION.match(text):
        return Kind.VERSION, match
    match = _ANY.match(text)
    return None if match is None else (Kind.TORCH, match)


def devices_in(using: str) -> list[str]:
    """Return the devices of `Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:…`."""
    listed = using.partition(";")[0]
    return [f"[{number}] {name}" for number, name in re.findall(r"\[(\d{1,4})\]([^\s\[\]]{1,80})", listed)]


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
_VERSION_NUMBERS = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


def version_numbers(text: str) -> tuple[int, int, int] | None:
    """Return "2.26.2+cuda12.2" as numbers."""
    match = _VERSION_NUMBERS.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def distance_word(version: tuple[int, int, int], distance: int) -> str | None:
    """Return the word for a number in a line of this version; None if it has none."""
    words: list[str] = []
    for since, order in _ORDERS:
        if version >= since:
            words = order.split()
    return words[distance] if 0 <= distance < len(words) else None
