"""The counters of `ethtool -S` that gdrtop uses, as structures of linux/ethtool.h.

A busy mlx5 has thousands of counters, most of them per queue; only those are decoded whose names match.
Names and meanings: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
"""

from __future__ import annotations

import re
import struct

MAX_COUNTERS = 65536  # of an interface
NAME_BYTES = 32  # ETH_GSTRING_LEN
STATISTICS = 1  # ETH_SS_STATS, the string set
COUNTERS = re.compile(
    r"[rt]x_prio[0-7]_(?:pause|pause_duration|discards)"  # pauses by priority (PFC); the duration is in µs
    r"|[rt]x_global_pause(?:_duration)?"  # pauses of the whole link, in µs
    r"|[rt]x_pause_ctrl_phy"
    r"|[rt]x_discards_phy"
    r"|link_down_events_phy"
    r"|rx_(?:crc_errors|symbol_err)_phy"
    r"|outbound_pci_stalled_(?:rd|wr)"  # percent of the last second, not a counter
    r"|outbound_pci_stalled_(?:rd|wr)_events"  # seconds with more than 30 % stall
    r"|outbound_pci_buffer_overflow"
    r"|[rt]x_pci_signal_integrity"
)

COUNT = struct.Struct("=IIQI")  # struct ethtool_sset_info with the size of one string set
HEADER = struct.Struct("=III")  # struct ethtool_gstrings without its strings
STATS = struct.Struct("=II")  # struct ethtool_stats without its values
_VALUE = struct.Struct("=Q")


def positions(strings: bytes) -> dict[str, int]:
    """Return the position of each counter that gdrtop uses in a table of names."""
    found: dict[str, int] = {}
    for position in range(min(len(strings) // NAME_BYTES, MAX_COUNTERS)):
        start = position * NAME_BYTES
        name = strings[start : start + NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
        if COUNTERS.fullmatch(name):
            found.setdefault(name, position)
    return found


def values(statistics: bytes, wanted: dict[str, int]) -> dict[str, int]:
    """Return the counters at these positions; those beyond the end are left out."""
    size = _VALUE.size
    return {
        name: _VALUE.unpack_from(statistics, position * size)[0]
        for name, position in wanted.items()
        if (position + 1) * size <= len(statistics)
    }
