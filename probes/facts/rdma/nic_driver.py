"""The NIC driver stack: the kernel's own, MLNX_OFED, DOCA-OFED, EFA, and its version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from probes.base.unknown import Maybe


class NicStack(Enum):
    """Where the RDMA modules come from."""

    INBOX = "inbox"  # the kernel's own, with rdma-core
    MLNX_OFED = "MLNX_OFED"
    DOCA_OFED = "DOCA-OFED"
    EFA = "EFA installer"
    CONTAINER = "DOCA driver container"  # Network Operator: /run/mellanox/drivers
    OTHER = "vendor driver"  # Broadcom, Intel, HPE out of tree


@dataclass(frozen=True)
class NicDriver:
    """The installed stack, loaded or not."""

    stack: Maybe[NicStack]
    version: Maybe[str]  # "MLNX_OFED_LINUX-24.10-1.1.4.0", "OFED-internal-25.07-0.9.7", EFA "2.15.3"
    package: Maybe[str]
    by_dkms: Maybe[bool]
    exports_peer_memory: Maybe[bool]  # its ib_core or ib_uverbs has ib_register_peer_memory_client
