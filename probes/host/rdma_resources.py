"""What the kernel tracks of every process's RDMA resources, as dataclasses.

The same answers as `rdma resource show` (rdma-resource(8)); without root, keys are left out and nothing else.
`pid` is the id of the thread that made the object, in gdrtop's PID namespace. None: the kernel made it
(`kernel_name`), the thread has ended, or its process is in another PID namespace.
"""

from __future__ import annotations

from probes.base.frozen import frozen

MAX_OBJECTS = 65536  # of each kind
CONNECTED_KINDS = ("RC", "UC", "XRC_INI", "XRC_TGT")
"""Queue pairs with one peer (ibv_create_qp(3)). UD pairs, and SRD ones of EFA, are in RTS without any."""


@frozen
class QueuePair:
    """A queue pair."""

    device: str  # "mlx5_0"
    number: int
    kind: str  # "RC", "UD", "GSI", "DRIVER" (SRD of EFA, DC of mlx5), …
    state: str  # "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"
    port: int | None = None
    remote: int | None = None  # the peer's queue pair
    pd: int | None = None
    pid: int | None = None
    kernel_name: str = ""  # "ib_core"

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to a peer."""
        return self.state == "RTS" and self.kind in CONNECTED_KINDS


@frozen
class MemoryRegion:
    """A memory region. A driver that does not report lengths leaves 0."""

    device: str
    number: int
    length_bytes: int
    pd: int | None = None
    pid: int | None = None
    kernel_name: str = ""
    is_odp: bool = False  # on-demand paging: neither pinned nor charged


@frozen
class ProtectionDomain:
    """A protection domain."""

    device: str
    number: int
    context: int | None = None
    pid: int | None = None
    kernel_name: str = ""


@frozen
class RdmaContext:
    """A device that a process has opened."""

    device: str
    number: int
    pid: int | None = None
    kernel_name: str = ""


@frozen
class CompletionQueue:
    """A completion queue."""

    device: str
    number: int
    context: int | None = None
    pid: int | None = None
    kernel_name: str = ""


@frozen
class PacketNumbers:
    """The packet sequence numbers of a connected queue pair (RC); 24 bits, which wrap."""

    device: str
    number: int
    sent: int  # of the next packet to send
    received: int  # of the next packet expected
    pid: int | None = None


@frozen
class RdmaResources:
    """All objects at one moment."""

    queue_pairs: tuple[QueuePair, ...] = ()
    regions: tuple[MemoryRegion, ...] = ()
    domains: tuple[ProtectionDomain, ...] = ()
    contexts: tuple[RdmaContext, ...] = ()
    completion_queues: tuple[CompletionQueue, ...] = ()
    shares_namespaces: bool | None = None  # False: each device has its own; None: unknown
    left_out: int = 0  # objects beyond MAX_OBJECTS
    unread: tuple[str, ...] = ()  # devices that gave an error: nothing is known about their objects
    # devices of other namespaces whose objects are not listed here; None: it is unknown which these are
    hidden: tuple[str, ...] | None = None
