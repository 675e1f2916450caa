"""The partition keys (P_Keys) of InfiniBand ports: /sys/class/infiniband/D/ports/P/pkeys/N.

Bit 15 of a key is full membership, and two limited members of a partition cannot communicate; the other bits
are the partition. An unused entry reads 0x0000 (Linux, drivers/infiniband/core/sysfs.c; openucx/ucx,
src/uct/ib/base/ib_iface.c). For mlx5 each file is a command to the firmware (mlx5_query_hca_vport_pkey), and
it has 128 of them a port, so only what decides is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, first_unread
from probes.facts.rdma.devices import RdmaFacts
from probes.host.protocol import Host
from probes.host.values import read_integer

FULL_MEMBER = 0x8000
DEFAULT_KEY = 0xFFFF
# A subnet manager fills tables from their start. Where this many entries in a row are empty, the rest is
# read only if what is wanted has not been found.
_EMPTY_IN_A_ROW = 4
_USUALLY_READ = _EMPTY_IN_A_ROW + 2
_MOST_ENTRIES = 256
LAST_INDEX = _MOST_ENTRIES - 1
_LARGEST = 0xFFFF


@frozen
class KeyTable:
    """The keys of a port."""

    keys: Mapping[int, int]  # by index, of the entries that were read and are used
    read: frozenset[int]  # indices
    beyond: int | None = None  # the first index that was asked for and is not there; None: all are

    @property
    def is_whole(self) -> bool:
        """Whether every entry was read."""
        return len(self.read) >= (_MOST_ENTRIES if self.beyond is None else self.beyond)

    @property
    def first_full(self) -> int | None:
        """The first index with a full member's key; None: the table has none."""
        return next((index for index, key in sorted(self.keys.items()) if is_full(key)), None)

    @property
    def is_usable(self) -> bool:
        """Whether index 0, which most programs use, has a full member's key."""
        return is_full(self.keys.get(0, 0))

    @property
    def text(self) -> str:
        """The keys as shown: "0: 0x8001 full, 1: 0x7fff limited"."""
        return ", ".join(f"{index}: {shown(key)}" for index, key in ({0: 0} | dict(self.keys)).items())


@frozen
class PartitionKeyFacts:
    """By (RDMA device, port), the tables of active InfiniBand ports."""

    ports: Mapping[tuple[str, int], Maybe[KeyTable]]


def is_full(key: int) -> bool:
    """Return whether a key is that of a full member."""
    return bool(key & FULL_MEMBER)


def shown(key: int) -> str:
    """Return "0x8001 full"."""
    return f"0x{key:04x} {'full' if is_full(key) else 'limited' if key else 'empty'}"


def probe(
    host: Host, rdma: RdmaFacts, indices: Collection[int] = (), partitions: Collection[int] = ()
) -> PartitionKeyFacts:
    """Read the tables, with the indices and the partitions (keys without bit 15) that jobs are set to."""
    return PartitionKeyFacts(
        {
            (device.name, port.number): _read(
                host, f"{device.sysfs_path}/ports/{port.number}/pkeys", indices, partitions
            )
            for device in rdma.devices
            for port in device.ports
            if port.is_active and port.link_layer == "InfiniBand"
        }
    )


def _read(host: Host, path: str, indices: Collection[int], partitions: Collection[int]) -> Maybe[KeyTable]:
    entries: dict[int, Maybe[int]] = {}
    missing, empty, unread, has_full = set(partitions), 0, 0, False
    for index in range(_MOST_ENTRIES):
        key = entries[index] = read_integer(host, f"{path}/{index}")
        if isinstance(key, Unknown):
            unread += 1  # the next ones are asked for all the same: a node may be read in rounds
            if key.reason is Reason.NOT_THERE or unread == _USUALLY_READ:
                break
            continue
        missing.discard(key & ~FULL_MEMBER)
        empty = 0 if key else empty + 1
        has_full = has_full or is_full(key)
        if empty >= _EMPTY_IN_A_ROW and has_full and not missing:
            break
    for index in indices:
        if _EMPTY_IN_A_ROW <= index < _MOST_ENTRIES and index not in entries:
            entries[index] = read_integer(host, f"{path}/{index}")
    if (failure := first_unread(entries.values())) is not None:
        return failure
    read = {index: key for index, key in sorted(entries.items()) if not isinstance(key, Unknown)}
    if not read or max(read.values()) > _LARGEST:
        return Unknown(Reason.MALFORMED if read else Reason.NOT_THERE, path)
    keys = {index: key for index, key in read.items() if key}
    return KeyTable(keys, frozenset(read), min(entries.keys() - read.keys(), default=None))
