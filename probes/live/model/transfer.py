"""An inference engine as a process, and the path over which it moves KV caches now."""

from __future__ import annotations

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
    by_configuration: str = ""  # the setting that asks for TCP or host memory: "UCX_TLS=tcp"

    @property
    def text(self) -> str:
        """The path as shown: "TCP", "likely NVLink", "idle; last seen TCP", "unknown: needs root"."""
        if self.word is TransferWord.IDLE:
            return "idle" if self.last is None else f"idle; last seen {self.last.value}"
        if self.word is TransferWord.UNKNOWN:
            return f"unknown: {self.why}" if self.why else "unknown"
        return f"likely {self.word.value}" if self.certainty is Certainty.LIKELY else self.word.value
