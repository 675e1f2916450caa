"""An inference engine as a process, and the path over which it moves KV caches now."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known


class ServingRole(Enum):
    """What a process does in disaggregated serving."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


_NO_ROLE = Unknown(Reason.NOT_THERE, "command line", "no option or name gives the role")


@frozen
class Serving:
    """The parts of an inference stack in a process, by its libraries and names."""

    engine: Maybe[str]  # what moves KV caches: "NIXL over UCX", "Mooncake"; NOT_THERE: none is loaded
    framework: str = ""  # "vLLM", "SGLang"; "": none is recognized
    role: Maybe[ServingRole] = _NO_ROLE
    is_role_likely: bool = False  # only the direction of its traffic shows the role
    evidence: tuple[Evidence, ...] = ()

    @property
    def may_move(self) -> bool:
        """Whether it has an engine, or may have one."""
        return not (isinstance(self.engine, Unknown) and self.engine.reason is Reason.NOT_THERE)

    @property
    def text(self) -> str:
        """The parts as shown: "vLLM, NIXL over UCX, prefill"."""
        role = "" if isinstance(self.role, Unknown) else self.role.value
        role = f"likely {role}" if role and self.is_role_likely else role
        return ", ".join(filter(None, (self.framework, known(self.engine, ""), role)))


class TransferWord(Enum):
    """What moves the bytes of KV caches."""

    DMABUF = "RDMA, GPU memory (DMA-BUF)"
    PEERMEM = "RDMA, GPU memory (peermem)"
    STAGED = "RDMA, staged through host memory"
    TCP = "TCP"
    TCP_INSIDE = "TCP inside the node"
    NVLINK = "NVLink"
    LOCAL = "shared memory or PCIe peer"
    IDLE = "idle"
    UNKNOWN = "unknown"


def transfer_phrase(word: TransferWord, of_many: bool = False) -> str:
    """Return what an engine, or several of them, do: "moves KV caches over NVLink"."""
    move, copy = ("move", "copy") if of_many else ("moves", "copies")
    return {
        TransferWord.DMABUF: f"{move} KV caches by GPUDirect RDMA",
        TransferWord.PEERMEM: f"{move} KV caches by GPUDirect RDMA",
        TransferWord.STAGED: f"{copy} KV caches through host memory",
        TransferWord.LOCAL: f"{move} KV caches inside the node",
        TransferWord.IDLE: f"{move} no KV cache",
        TransferWord.UNKNOWN: f"{move} KV caches on an unknown path",
    }.get(word, f"{move} KV caches over {word.value}")


OVER_TCP = (TransferWord.TCP, TransferWord.TCP_INSIDE)


class Certainty(Enum):
    """How sure a transfer path is."""

    SEEN = "seen"
    LIKELY = "likely"
    UNKNOWN = "unknown"


@frozen
class TransferPeer:
    """Another end with which a process exchanges data over TCP."""

    address: str  # "192.0.2.8"
    is_inside: bool  # on this node
    sent_gbps: float
    received_gbps: float

    @property
    def text(self) -> str:
        """The peer as shown: "192.0.2.8", "this node"."""
        return "this node" if self.is_inside else self.address


@frozen
class TransferPath:
    """What moved the bytes of an engine between two readings, how sure that is, and what shows it."""

    word: TransferWord
    certainty: Certainty
    why: str = ""  # why it is unknown, or no more than likely
    evidence: tuple[Evidence, ...] = ()
    sent_gbps: Maybe[float] = 0.0  # over the path of the word; Gb/s
    received_gbps: Maybe[float] = 0.0
    peers: tuple[TransferPeer, ...] = ()  # those that sockets name, the busiest first
    last: TransferWord | None = None  # of IDLE: what moved the bytes before; None: nothing was seen to move
    nics: tuple[str, ...] = ()  # through which the bytes moved, over RDMA
    causes: tuple[tuple[str, Evidence], ...] = ()  # ids of fall_backs.toml whose sign is there, and the sign
    readings: int = 1  # one after the other that showed this word, without those of idle moments
    tcp_unread: Unknown | None = None  # why its TCP connections are unknown; None: they are known
    by_configuration: str = ""  # the setting that asks for TCP or host memory: "UCX_TLS=tcp"

    @property
    def is_seen(self) -> bool:
        """Whether the bytes themselves show the path."""
        return self.certainty is Certainty.SEEN

    @property
    def is_moving(self) -> bool:
        """Whether it is known what moves bytes now."""
        return self.word not in (TransferWord.IDLE, TransferWord.UNKNOWN)

    @property
    def lasting(self) -> TransferWord:
        """The word, of an idle engine that of before: KV caches move in bursts."""
        return self.last if self.word is TransferWord.IDLE and self.last is not None else self.word

    @property
    def gbps(self) -> Maybe[float]:
        """The rate in the busier direction."""
        rates = self.sent_gbps, self.received_gbps
        unread = next((rate for rate in rates if isinstance(rate, Unknown)), None)
        return max(known(rate, 0.0) for rate in rates) if unread is None else unread

    @property
    def text(self) -> str:
        """The path as shown: "TCP", "likely NVLink", "idle; last seen TCP", "unknown: needs root"."""
        if self.word is TransferWord.IDLE:
            return "idle" if self.last is None else f"idle; last seen {self.last.value}"
        if self.word is TransferWord.UNKNOWN:
            return f"unknown: {self.why}" if self.why else "unknown"
        return f"likely {self.word.value}" if self.certainty is Certainty.LIKELY else self.word.value


def moved_gbps(paths: Iterable[TransferPath | None]) -> tuple[Maybe[float], Maybe[float]] | None:
    """Return what engines send and receive together; None if none is known to move a KV cache now."""
    moving = [path for path in paths if path is not None and path.is_moving]
    sums: list[Maybe[float]] = []
    for rates in ([path.sent_gbps for path in moving], [path.received_gbps for path in moving]):
        unread = next((rate for rate in rates if isinstance(rate, Unknown)), None)
        sums.append(sum(known(rate, 0.0) for rate in rates) if unread is None else unread)
    return (sums[0], sums[1]) if moving else None
