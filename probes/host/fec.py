"""Forward error correction (FEC) of a network interface: its mode, and what it has corrected."""

from __future__ import annotations

from probes.base.frozen import frozen
from probes.base.unknown import Maybe

SOURCE = "ethtool -I --show-fec"
OFF = "off"
MODES = {49: OFF, 50: "RS", 51: "BaseR", 74: "LLRS"}
"""ETHTOOL_LINK_MODE_FEC_…_BIT (include/uapi/linux/ethtool.h) → the mode, as ethtool names it."""
UNCORRECTABLE, CORRECTED_BITS = "uncorrectable_blocks", "corrected_bits"
COUNTS = {2: "corrected_blocks", 3: UNCORRECTABLE, 4: CORRECTED_BITS}
"""ETHTOOL_A_FEC_STAT_… (ethtool_netlink.h beside it) → the count."""


@frozen
class FecState:
    """The error correction of one link."""

    mode: Maybe[str]  # one of MODES; NOT_THERE: the driver names none
    counts: dict[str, int]  # by COUNTS, of all lanes since the driver was loaded; those that the driver has
