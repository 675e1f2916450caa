"""Rules for what only the live view asks: RDMA resources, threads, ethtool counters, kernel messages."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from probes.host.answers import ETHTOOL_COUNTERS, KernelMessage
from probes.host.collectives import CollectiveSpeed
from probes.host.rdma_resources import RdmaResources
from probes.recording.redaction.output import kernel_log
from probes.recording.redaction.processes import thread_name
from probes.recording.redaction.tokens import COMMUNICATOR, Tokens

T = TypeVar("T")
_RAS_TEXT = """
    job summary communicators group comms nodes ranks processes gpus total per process in status errors node
    running process rank gpu managing managed by on nvml has have launched up to operation operations counts
    not any different communicator collective missing data from the outlier incomplete dead error mismatch
    timeout warnings nocomm init finalize abort unknown ok considered unreachable via ras network is are
    encountered communication timeouts while gathering initialization asynchronous reported unhandled cuda
    system internal invalid argument usage remote nccl version compiled with runtime driver information found
    could find no collected comm broadcast reduce allgather reducescatter allreduce peer responding for
    keepalive warning connection established successfully terminating handshake completion timed out after
    outgoing incoming closed current during receive send connect peer_new peer_dead peer_connecting
    peer_connected peer_disconnected peer_unresponsive peer_retry peer_send_stuck peer_init_timeout
    peer_keepalive_timeout peer_recovered peer_timeout_dead ranks/node ranks/comm
    """
_RAS_WORDS = frozenset(_RAS_TEXT.split())
_COLLECTIVES = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "AlltoAll",
    "Gather",
    "Scatter",
)
_SIZE = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?[KMGT]?B")
_TEXTS = ("device", "kind", "state", "kernel_name")


def resources(tokens: Tokens, answer: RdmaResources) -> RdmaResources:
    """Replace unknown words in names; numbers of objects and processes stay."""
    text = cache(tokens.text)  # a node has thousands of objects and few names

    def kept(one: Any) -> Any:
        texts = {name: getattr(one, name) for name in _TEXTS if hasattr(one, name)}
        replaced = {name: text(value) for name, value in texts.items() if text(value) != value}
        return dataclasses.replace(one, **replaced) if replaced else one

    def kept_all(objects: Sequence[T]) -> tuple[T, ...]:
        return tuple(kept(one) for one in objects)

    return dataclasses.replace(
        answer,
        queue_pairs=kept_all(answer.queue_pairs),
        regions=kept_all(answer.regions),
        domains=kept_all(answer.domains),
        contexts=kept_all(answer.contexts),
        completion_queues=kept_all(answer.completion_queues),
        unread=tuple(text(device) for device in answer.unread),
    )


def threads(tokens: Tokens, names: tuple[str, ...]) -> tuple[str, ...]:
    """Keep the names that libraries and known programs give their threads."""
    return tuple(sorted({thread_name(tokens, name) for name in names}))


def counters(answer: dict[str, int]) -> dict[str, int]:
    """Keep the counters that gdrtop uses."""
    return {name: value for name, value in answer.items() if ETHTOOL_COUNTERS.fullmatch(name)}


def collectives(tokens: Tokens, answer: tuple[CollectiveSpeed, ...]) -> tuple[CollectiveSpeed, ...]:
    """Replace the names of communicators, which users choose, and unknown collectives."""
    return tuple(
        dataclasses.replace(
            one,
            communicator=tokens.token(COMMUNICATOR, one.communicator),
            collective=one.collective if one.collective in _COLLECTIVES else tokens.text(one.collective),
            message_size=one.message_size if _SIZE.fullmatch(one.message_size) else "",
        )
        for one in answer
    )


def messages(tokens: Tokens, answer: tuple[KernelMessage, ...]) -> tuple[KernelMessage, ...]:
    """Keep known messages, with unknown words replaced."""
    kept = ((message, kernel_log(tokens, message.text).strip("\n")) for message in answer)
    return tuple(dataclasses.replace(message, text=text) for message, text in kept if text)


def ras_text(tokens: Tokens, text: str) -> str:
    """Keep the words of RAS's reports and events; addresses, hashes and unknown words are replaced."""
    return re.sub(r"\S+", lambda found: _ras_word(tokens, found[0]), text)


def _ras_word(tokens: Tokens, word: str) -> str:
    bare = word.strip("()[]#:,.=").lower()
    if not bare or all(part in _RAS_WORDS for part in bare.split(",")):
        return word
    try:  # as a word of its own, part of an address may look like a PCI address
        return tokens.address(ipaddress.ip_address(word))
    except ValueError:
        return tokens.text(word)
