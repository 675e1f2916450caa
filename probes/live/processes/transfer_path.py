"""What moves the bytes of an inference engine now, judged from what moved between two readings.

Queue pairs and memory regions show what an engine has prepared, and UCX prepares every transport. What
carries KV caches shows only in what moves: the ports of the NICs that it has open, its TCP connections, and
NVLink of its GPUs. Each of them may also carry other bytes, which the certainty says.
"""

from __future__ import annotations

from dataclasses import replace

from probes.base.evidence import Evidence
from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Reason, Unknown, known
from probes.host.tcp_sockets import SOURCE
from probes.live.model.sample import NO_PATH, NicUse, PathJudgment, PathWord, Role
from probes.live.model.transfer import OVER_TCP, Certainty, ServingRole, TransferPath, TransferWord
from probes.live.processes.fall_backs import Situation, asks_for_host, asks_for_tcp, fall_backs
from probes.live.processes.moved_bytes import MOVES, MUCH, NOTHING, Flow, Moved, gbps, total_of

_SHARE = 0.5  # of the busiest candidate
_MEMORY_WORDS = {
    PathWord.DMABUF: TransferWord.DMABUF,
    PathWord.PEERMEM: TransferWord.PEERMEM,
    PathWord.HOST_MEMORY: TransferWord.STAGED,
}
_KV_LIKELY = "That these bytes are KV caches is likely: an engine has little else to send."
_SHARED = "Other processes have these NICs open, too, and a port counts the bytes of all."
_INCLUDES_NCCL = "NCCL uses InfiniBand or RoCE in this process, so its NICs carry that traffic, too."
_NCCL_DOUBT = "NVLink carries more, most likely the traffic of NCCL."
_NVLINK_DOUBT = "NVLink counts the bytes of a GPU, not those of a process."


@frozen
class Setting:
    """What is known of an engine besides its traffic."""

    memory: PathJudgment  # as `judge_memory` returns it
    has_nccl: bool = False  # a rank of NCCL: tensor parallel
    spans_nodes: bool = False  # NCCL uses its NICs, too: ranks are on other nodes
    situation: Situation | None = None  # what may explain TCP or host memory
    last: TransferPath | None = None  # when bytes last moved
    is_infiniband: bool = False  # its ports count IPoIB, too


def judge_transfer(moved: Moved, about: Setting) -> TransferPath:
    """Return what moved the bytes of an engine.

    TCP if it is more than 100 MB/s and half of the busiest candidate; else the busiest of RDMA, with the
    memory that is registered, and NVLink; else a copy over PCIe. Below 1 MiB/s, nothing moves.
    """
    found = _judged(moved, about)
    return replace(found, tcp_unread=moved.tcp) if isinstance(moved.tcp, Unknown) else found


def _judged(moved: Moved, about: Setting) -> TransferPath:
    # NCCL's bytes count in NVLink: without another engine here, they are all that there is.
    nvlink = NOTHING if about.has_nccl and not moved.has_neighbor else known(moved.nvlink, NOTHING)
    over_tcp = total_of((known(moved.tcp, NOTHING), known(moved.inside, NOTHING)))
    rdma = _rdma(moved, about)
    carried = known(rdma, NOTHING)
    evidence = _evidence(moved)
    most = max(carried.total, nvlink.total, over_tcp.total)
    if over_tcp.total > MUCH and over_tcp.total >= _SHARE * most:
        return _over_tcp(moved, rdma, about, evidence)
    if about.has_nccl and most == nvlink.total and max(carried.total, over_tcp.total) > MUCH:
        nvlink, most = NOTHING, max(carried.total, over_tcp.total)
        if over_tcp.total > MUCH and over_tcp.total >= _SHARE * most:
            found = _over_tcp(moved, rdma, about, evidence)
            return replace(found, certainty=Certainty.LIKELY, why=_NCCL_DOUBT)
    unread = next((flow for flow in (moved.tcp, rdma) if isinstance(flow, Unknown)), None)
    if most < MOVES and not moved.is_peer_copy:
        if unread is not None:
            return _unknown(f"what it moves is not visible ({unread})", evidence)
        return _idle(about.last, evidence)
    if most < MOVES:
        why = "NCCL may copy over PCIe, too." if about.has_nccl else "PCIe counts the bytes of a GPU."
        return TransferPath(TransferWord.LOCAL, Certainty.LIKELY, why, evidence)
    if carried.total == most:
        if moved.is_shared and over_tcp.total > MUCH:
            shares = f"{gbps(over_tcp.total):.1f} Gb/s move over TCP, and other processes share its NICs"
            return _unknown(shares, evidence)
        return _over_rdma(moved, carried, about, evidence)
    if nvlink.total == most:
        return _over_nvlink(nvlink, moved, about, evidence)
    if about.last is not None:  # requests between two transfers
        return _idle(about.last, evidence)
    return _unknown(f"too little traffic to tell ({gbps(most):.2f} Gb/s over TCP)", evidence)


def _idle(last: TransferPath | None, evidence: tuple[Evidence, ...]) -> TransferPath:
    """Return that nothing moves, with what is known of the time when something last did."""
    if last is None:
        return TransferPath(TransferWord.IDLE, Certainty.SEEN, evidence=evidence)
    still = replace(last, sent_gbps=0.0, received_gbps=0.0, last=last.word)
    return replace(still, word=TransferWord.IDLE, certainty=Certainty.SEEN, why="")


def _rdma(moved: Moved, about: Setting) -> Maybe[Flow]:
    """Return the flow that may be the engine's RDMA; it has none without a memory region.

    On Ethernet the counters of a port leave TCP out, on InfiniBand they have IPoIB.
    """
    rdma, tcp = moved.rdma, known(moved.tcp, NOTHING)
    if isinstance(rdma, Unknown):
        return rdma
    if about.memory.word is PathWord.NO_NIC:
        return NOTHING
    if about.is_infiniband:
        return Flow(max(0.0, rdma.sent - tcp.sent), max(0.0, rdma.received - tcp.received))
    return rdma


def _over_tcp(
    moved: Moved, rdma: Maybe[Flow], about: Setting, evidence: tuple[Evidence, ...]
) -> TransferPath:
    tcp, inside = known(moved.tcp, NOTHING), known(moved.inside, NOTHING)
    flow, doubt = total_of((tcp, inside)), moved.likely_owner
    if isinstance(rdma, Unknown) and not doubt:
        doubt = f"What its NICs carry is unknown ({rdma})."
    return TransferPath(
        TransferWord.TCP_INSIDE if inside.total > tcp.total else TransferWord.TCP,
        Certainty.LIKELY if doubt else Certainty.SEEN,
        doubt or _KV_LIKELY,
        evidence,
        gbps(flow.sent),
        gbps(flow.received),
        moved.peers,
        causes=() if about.situation is None else fall_backs(about.situation),
        by_configuration="" if about.situation is None else asks_for_tcp(about.situation),
    )


def _over_rdma(moved: Moved, flow: Flow, about: Setting, evidence: tuple[Evidence, ...]) -> TransferPath:
    memory = about.memory
    evidence = (*evidence, *memory.evidence)
    rates: tuple[Maybe[float], Maybe[float]] = gbps(flow.sent), gbps(flow.received)
    if moved.is_shared or moved.is_divided:
        of_all = "its NICs carry the bytes of other workers or processes, too"
        rates = (Unknown(Reason.NOT_THERE, "port counters", of_all),) * 2
    word = _MEMORY_WORDS.get(memory.word)
    if word is None:
        why = f"over RDMA, from unknown memory ({memory.why})"
        return TransferPath(TransferWord.UNKNOWN, Certainty.UNKNOWN, why, evidence, *rates)
    doubts = (
        _SHARED if moved.is_shared else "",
        _INCLUDES_NCCL if about.spans_nodes else "",
        f"Its TCP connections are unknown ({moved.tcp})." if isinstance(moved.tcp, Unknown) else "",
        memory.doubt,
    )
    doubt = next(filter(None, doubts), "")
    host = asks_for_host(about.situation.process) if about.situation else ""
    return TransferPath(
        word,
        Certainty.LIKELY if doubt else Certainty.SEEN,
        doubt or _KV_LIKELY,
        evidence,
        *rates,
        nics=moved.nics,
        by_configuration=host if word is TransferWord.STAGED else "",
    )


def _over_nvlink(flow: Flow, moved: Moved, about: Setting, evidence: tuple[Evidence, ...]) -> TransferPath:
    if about.has_nccl and about.last is not None:
        return _idle(about.last, evidence)
    if about.has_nccl:
        return _unknown("NVLink is busy, but NCCL uses it for tensor parallelism", evidence)
    if not moved.has_neighbor:
        return _unknown("NVLink is busy, but no other engine is visible on this node", evidence)
    rates = gbps(flow.sent), gbps(flow.received)
    return TransferPath(TransferWord.NVLINK, Certainty.LIKELY, _NVLINK_DOUBT, evidence, *rates)


def _unknown(why: str, evidence: tuple[Evidence, ...]) -> TransferPath:
    rate = Unknown(Reason.NOT_YET, "port counters", why)
    return TransferPath(TransferWord.UNKNOWN, Certainty.UNKNOWN, why, evidence, rate, rate)


def _evidence(moved: Moved) -> tuple[Evidence, ...]:
    rows = (
        ("port_xmit_data, port_rcv_data", "RDMA", moved.rdma),
        (SOURCE, "TCP to other nodes", moved.tcp),
        (SOURCE, "TCP inside the node", moved.inside),
        ("NVML", "NVLink", moved.nvlink),
    )
    return tuple(Evidence(source, f"{what}: {_text(flow)}") for source, what, flow in rows)


def _text(flow: Maybe[Flow]) -> str:
    if isinstance(flow, Unknown):
        return f"unknown ({flow})"
    return f"sent {gbps(flow.sent):.2f} Gb/s, received {gbps(flow.received):.2f} Gb/s"


def path_with(path: PathJudgment, transfer: TransferPath, role: Role) -> PathJudgment:
    """Return the path of a process, decided by what moves its bytes where its queue pairs decide nothing.

    The TCP of an engine says nothing about NCCL in the same process.
    """
    word = _PATH_WORDS.get(transfer.word)
    if word is None or (word is PathWord.TCP and role is Role.NCCL):
        return path
    if path.word not in NO_PATH and word is not PathWord.TCP:
        return path
    is_likely = transfer.certainty is Certainty.LIKELY
    return PathJudgment(word, is_likely, evidence=transfer.evidence, doubt=transfer.why if is_likely else "")


_PATH_WORDS = {
    TransferWord.DMABUF: PathWord.DMABUF,
    TransferWord.PEERMEM: PathWord.PEERMEM,
    TransferWord.STAGED: PathWord.HOST_MEMORY,
    TransferWord.TCP: PathWord.TCP,
    TransferWord.TCP_INSIDE: PathWord.TCP,
}


_MOSTLY = 4.0  # times as much in one direction: reads and writes both go from prefill to decode
_OVER_RDMA = (TransferWord.DMABUF, TransferWord.PEERMEM, TransferWord.STAGED)
_OF_OTHERS = (_SHARED, _INCLUDES_NCCL)


def role_by_traffic(transfer: TransferPath, moved: Moved) -> ServingRole | None:
    """Return the role that the direction of an engine's traffic makes likely; None: it shows none."""
    if transfer.why in _OF_OTHERS:
        return None
    flow = NOTHING
    if transfer.word in _OVER_RDMA:
        flow = known(moved.rdma, NOTHING)
    elif transfer.word in OVER_TCP:
        flow = total_of((known(moved.tcp, NOTHING), known(moved.inside, NOTHING)))
    if not flow.total or max(flow) < _MOSTLY * min(flow):
        return None
    return ServingRole.PREFILL if flow.sent > flow.received else ServingRole.DECODE


def with_traffic(nics: tuple[NicUse, ...], transfer: TransferPath) -> tuple[NicUse, ...]:
    """Mark the NICs with registered memory through which an engine moves its bytes over RDMA, or last did."""
    if transfer.word not in _OVER_RDMA and transfer.last not in _OVER_RDMA:
        return nics
    return tuple(
        replace(nic, is_used=True) if nic.device in transfer.nics and nic.regions else nic for nic in nics
    )
