"""How NCCL interprets the values of its variables, which is not always what the user meant.

src/graph/paths.cc ncclGetLevel, src/misc/utils.cc parseStringList and matchIfList, src/misc/param.cc.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from probes.base.frozen import frozen
from probes.topology.nccl_paths import ORDER, Nccl

LOC = -1  # rank of LOC, nearer than any other word
_LEGACY: tuple[Nccl | None, ...] = (None, Nccl.PIX, Nccl.PXB, Nccl.PHB, Nccl.SYS)
_MAX_ENTRIES = 32  # MAX_IB_DEVS


@frozen
class Level:
    """A distance up to which something is allowed."""

    word: str  # "LOC", "PHB"
    rank: int  # as in nccl_words.ORDER; LOC: -1, never


def parse_level(value: str) -> Level | None:
    """Return the level of NCCL_NET_GDR_LEVEL or NCCL_P2P_LEVEL; None: NCCL silently ignores the value.

    Words are case-sensitive. A value that begins with a digit is a legacy index: 0 LOC, 1 PIX, 2 PXB, 3 PHB,
    4 and more SYS.
    """
    if value == "LOC":
        return Level("LOC", LOC)
    word = next((word for word in Nccl if word.value == value), None)
    if word is None and value[:1].isascii() and value[:1].isdigit():
        number = parse_number(value)
        index = 0 if number is None else min(number, len(_LEGACY) - 1)
        word = _LEGACY[index]
        return Level("LOC", LOC) if word is None else Level(word.value, ORDER[word])
    return None if word is None else Level(word.value, ORDER[word])


def parse_number(value: str) -> int | None:
    """Return a number as strtoll(…, 0) reads it; None: NCCL uses its default."""
    match = re.match(r"[ \t]*([+-]?)(0[xX][0-9a-fA-F]{1,15}|[0-9]{1,18})", value)
    if match is None:
        return None
    digits = match[2]
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits.startswith("0"):
        octal = re.match(r"[0-7]+", digits)
        number = int(octal[0], 8) if octal else 0
    else:
        number = int(digits)
    return -number if match[1] == "-" else number


@frozen
class HcaList:
    """NCCL_IB_HCA: which ports NCCL uses."""

    excludes: bool  # "^…": all but these
    exact: bool  # "=…": whole names; else prefixes
    entries: tuple[tuple[str, int | None], ...]  # name and port; None: any port

    def names(self, entry: tuple[str, int | None], device: str, port: int) -> bool:
        """Return whether an entry names a port."""
        name, number = entry
        fits = device == name if self.exact else device.startswith(name)
        return fits and number in (None, port)

    def uses(self, device: str, port: int) -> bool:
        """Return whether NCCL uses a port; with an empty list it uses all ports."""
        named = not self.entries or any(self.names(entry, device, port) for entry in self.entries)
        return named != self.excludes


def parse_hca_list(value: str) -> HcaList:
    """Parse `[^][=]NAME[:PORT…],…`; spaces are part of the name, and "^" must come before "="."""
    excludes = value.startswith("^")
    value = value[excludes:]
    exact = value.startswith("=")
    entries: list[tuple[str, int | None]] = []
    for part in value[exact:].split(","):
        name, colon, rest = part.partition(":")
        if name and len(entries) < _MAX_ENTRIES:
            number = parse_number(rest) if colon else None
            entries.append((name, None if number is None or number < 0 else number))
    return HcaList(excludes, exact, tuple(entries))


class KeyForm(Enum):
    """How a variable names the partition key (P_Key) of a job; the value is what it takes."""

    INDEX = "the index of a key"
    KEY = "a key"
    PARTITION = "a key without bit 15"


# NCCL net_ib/connect.cc; kvcache-ai/Mooncake config.cpp; openucx/ucx ib_iface.c, which compares 15 bits.
# NVSHMEM and perftest use index 0, NVSHMEM up to 3.6 always.
KEY_VARIABLES: Mapping[str, KeyForm] = {
    "NCCL_IB_PKEY": KeyForm.INDEX,
    "NCCL_IB_PKEY_VALUE": KeyForm.KEY,
    "MC_PKEY_INDEX": KeyForm.INDEX,
    "UCX_IB_PKEY": KeyForm.PARTITION,
}


def parse_key_setting(name: str, value: str) -> int | None:
    """Return the index or key that a variable of KEY_VARIABLES names; None: its library uses the default.

    UCX accepts hexadecimal numbers with 0x only (ucs/config/parser.c, ucs_config_sscanf_hex).
    """
    if KEY_VARIABLES[name] is KeyForm.PARTITION and value[:2].lower() != "0x":
        return None
    number = parse_number(value)
    return None if number is None or number < 0 else number
