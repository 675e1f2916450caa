"""What an inference engine is, and what moves its KV caches: the words of all screens and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probes.base.evidence import Evidence
from probes.base.text import join_limited
from probes.base.unknown import Reason, Unknown
from probes.checks.statements import transfer_health
from probes.live.model.sample import LiveProcess
from probes.live.model.transfer import Serving, TransferPath, TransferWord
from widgets.base.figures import short
from widgets.base.health import TONES
from widgets.base.lines import Line, Run, Tone, labeled

_MEANING = {
    TransferWord.DMABUF: "The NIC reads and writes GPU memory directly; registered through DMA-BUF.",
    TransferWord.PEERMEM: "The NIC reads and writes GPU memory directly; registered through nvidia_peermem.",
    TransferWord.STAGED: "KV caches are copied through host memory before and after RDMA.",
    TransferWord.TCP: "KV caches are copied through host memory and sent over TCP, far below RDMA's rate.",
    TransferWord.TCP_INSIDE: "KV caches are copied through host memory and TCP inside this node.",
    TransferWord.NVLINK: "KV caches move from GPU to GPU over NVLink.",
    TransferWord.LOCAL: "KV caches stay on this node, and use neither NIC, TCP nor NVLink.",
    TransferWord.IDLE: "No KV cache moves at this moment.",
    TransferWord.UNKNOWN: "The evidence is inconclusive.",
}
_PEERS_NAMED = 2
_NO_ROLE = Unknown(Reason.NOT_THERE)


def role_text(serving: Serving | None) -> str:
    """Return "prefill", or "prefill?" if only the traffic shows it; "" if it is unknown."""
    if serving is None or isinstance(serving.role, Unknown):
        return ""
    return f"{serving.role.value}{'?' * serving.is_role_likely}"


def engine_text(processes: Sequence[LiveProcess]) -> str:
    """Return what processes of a job have in common: "vLLM, NIXL over UCX, prefill"; "": no engine."""
    served = [process.serving for process in processes if process.serving is not None]
    parts = dict.fromkeys(
        replace(each, role=_NO_ROLE).text for each in served if not isinstance(each.engine, Unknown)
    )
    roles = dict.fromkeys(filter(None, map(role_text, served)))
    return ", ".join(filter(None, (*parts, " and ".join(sorted(roles, reverse=True)))))


def peers_text(transfer: TransferPath | None) -> str:
    """Return the other ends that its sockets name: "10.0.0.8", "this node"; "": no socket names one."""
    peers = () if transfer is None else transfer.peers
    return join_limited(dict.fromkeys(peer.text for peer in peers), _PEERS_NAMED)


def draw(serving: Serving | None, transfer: TransferPath | None, width: int) -> list[Line]:
    """Draw an engine, the path of its KV caches, peers, rates and evidence; nothing for other processes."""
    if serving is None:
        return []
    role = serving.role
    lines = labeled("Engine", (serving.text or "not recognized",), width)
    if isinstance(role, Unknown):
        lines += labeled("", (f"serving role unknown ({role.detail or role})",), width, Tone.DIM)
    lines += _evidence(serving.evidence, width)
    if transfer is None:
        text = "path unknown: needs two readings, a second apart"
        return lines + labeled("KV cache", (text,) if serving.may_move else (), width)
    lines += labeled("KV cache", (transfer.text,), width, TONES[transfer_health(transfer)])
    doubt = transfer.why if transfer.word is not TransferWord.UNKNOWN else ""
    setting = transfer.by_configuration and f"Asked for by {transfer.by_configuration}."
    meaning = " ".join(filter(None, (_MEANING[transfer.word], doubt, setting)))
    lines += labeled("", (meaning,), width, Tone.DIM)
    if transfer.is_moving:
        rates = f"↑{short(transfer.sent_gbps)} ↓{short(transfer.received_gbps)} Gb/s"
        unread = next(
            (rate for rate in (transfer.sent_gbps, transfer.received_gbps) if isinstance(rate, Unknown)), None
        )
        lines += labeled("", (rates if unread is None else f"{rates} ({unread.detail or unread})",), width)
    lines += _evidence(transfer.evidence, width)
    peers = peers_text(transfer)
    return lines + labeled("Peer", (peers,) if peers else (), width)


def engine_role(process: LiveProcess) -> Run:
    """Return the role of an engine as a cell."""
    text = role_text(process.serving)
    return Run(text) if text else Run("?" if process.transfer is not None else "–", Tone.DIM)


def engine_peer(process: LiveProcess) -> Run:
    """Return the peer of an engine as a cell."""
    text = peers_text(process.transfer)
    return Run(text) if text else Run("–", Tone.DIM)


def _evidence(evidence: Sequence[Evidence], width: int) -> list[Line]:
    return labeled("", (f"{item.source}: {item.value}" for item in evidence), width)
