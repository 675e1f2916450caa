"""Rules for answers other than files: output of commands, programs, and what only the live view asks."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from probes.base.unknown import Reason, Unknown
from probes.facts.kernel.log import recognize, started_driver
from probes.facts.pci.nic_families import HARDWARE_OCTETS
from probes.facts.rdma.cable_ends import CableEnd, described_hosts, host_form, parse_lldp
from probes.facts.rdma.port_health import PORT_COUNTERS
from probes.facts.system.kubernetes import kept_fields, known_phrases, objects
from probes.facts.system.site_checks import PREFIX
from probes.host.collectives import CollectiveSpeed
from probes.host.component_history import ComponentHistory, known_counts
from probes.host.fec import COUNTS, MODES, SOURCE, FecState
from probes.host.protocol import ETHTOOL_COUNTERS, KernelMessage, LogFinding
from probes.host.rdma_resources import PacketNumbers, RdmaResources
from probes.host.tcp_sockets import TcpSocket
from probes.recording.redaction.config_files import symbol_lines
from probes.recording.redaction.tokens import (
    COMMUNICATOR,
    HOST,
    JOB,
    OTHER,
    PROGRAM,
    RAS_WORDS,
    SERIAL,
    Tokens,
)

_STRINGS = (
    *(b"libcuda.so\0", b"libcuda.so", b"cuMemGetHandleForAddressRange", b"use_cuda_bus_id\0", b"use_cuda\0"),
    *(b"use_cuda_dmabuf\0", b"ipv6-addr\0", b"ibv_reg_dmabuf_mr"),
)
_STATISTICS = {
    *(counter.name for counter in PORT_COUNTERS),
    *(name for octets in HARDWARE_OCTETS for names in octets for name in names),
}
_JOB_ID = re.compile(r"(?<=\bjob )[0-9]+")


def program_strings(tokens: Tokens, content: bytes) -> bytes:
    """Keep only which of the strings that checks look for are in the program."""
    kept = b"\0".join(text for text in _STRINGS if text in content) + b"\0"
    return (content[:4] if content.startswith(b"\x7fELF") else b"redacted") + b"\0" + kept


_LOG_PREFIX = re.compile(r"((?:<\d{1,4}>)?\[[^\]]{1,40}\](?:\[[^\]]{1,20}\])? ?)(?:\S{1,64} kernel: )?(.*)")
_NAMED_VALUE = re.compile(
    r"(?i)\b((?:[a-z]*uid|[a-z]*gid|ses|acct|hostname|host|user|owner|comm|name|exe|terminal"
    r"|serial(?:[ _]?n(?:umber|o))?|s/?n|asset|wwn|wwid|id)[#]?)"
    r"(\s*[=:]\s*|-|\s+(?=0x|\w*\d))(\"[^\"]*\"|[^\s,;)]+)"
)


def kernel_log(tokens: Tokens, text: str) -> str:
    """Keep known messages, and the time of the first line: it shows how far back the log goes."""
    kept = []
    for line in text.split("\n"):
        match = _LOG_PREFIX.fullmatch(line[:1000])
        prefix, message = (match[1], match[2]) if match else ("", line[:1000])
        if not re.fullmatch(r"(?:<\d+>)?\[[ \d.]+\](?:\[[ TC\d]+\])? ?", prefix):
            prefix = tokens.text(prefix)
        if recognize(message, 0.0) is not None or started_driver(message):
            kept.append(prefix + _message(tokens, message))
        elif not kept and match:
            kept.append(prefix)
    return "\n".join([*kept, ""])


def _message(tokens: Tokens, message: str) -> str:
    def named(found: re.Match[str]) -> str:
        kind = PROGRAM if found[1].lower() in ("comm", "name", "exe") else SERIAL
        value = found[3].strip('"')
        if found[1].lower().endswith("uid"):
            return f"{found[1]}{found[2]}{tokens.user_id(value)}"
        return f"{found[1]}{found[2]}{tokens.token(kind, value) if value.strip('-0x') else value}"

    # A value after its name is private even if it is a known word or a short number.
    marked = _NAMED_VALUE.sub(lambda found: f"\0{named(found)}\0", message.replace("\0", " "))
    pieces = re.split(r"(\x00[^\x00]*\x00)", marked)
    return "".join(piece.strip("\0") if piece.startswith("\0") else tokens.text(piece) for piece in pieces)


_MODINFO = r"(?:filename|name|version|srcversion|license|vermagic|depends|signer|sig_id|intree|parm):"


def modinfo(tokens: Tokens, text: str) -> str:
    """Keep the fields of modinfo that checks read."""
    kept = []
    for line in text.split("\n"):
        if re.match(_MODINFO, line) is None:
            continue
        key, _, value = line.partition(":")
        is_sum = key == "srcversion" and re.fullmatch(r"\s*[0-9A-F]{1,33}\s*", value)
        kept.append(line if is_sum else f"{key}:{tokens.text(value)}")
    return "\n".join([*kept, ""])


def symbol_versions(tokens: Tokens, text: str) -> str:
    """Keep the lines of known symbols that modprobe prints of a module's file."""
    return symbol_lines(tokens, text.encode("utf-8", "replace")).decode()


def neighbors(tokens: Tokens, text: str) -> str:
    """Keep what is read of LLDP; switches get names that only this recording has."""
    found = parse_lldp(text)
    if isinstance(found, Unknown):
        return tokens.text(text)
    kept = [{tokens.text(netdev): _neighbor(tokens, end)} for netdev, ends in found.items() for end in ends]
    return json.dumps({"lldp": {"interface": kept} if kept else {}}, separators=(",", ":"))


def _neighbor(tokens: Tokens, end: CableEnd) -> dict[str, Any]:
    identity: dict[str, Any] = {"id": {"value": tokens.token(OTHER, end.switch_id)}}
    numbers = {"mfs": end.max_frame_bytes, "aggregation": end.aggregation, "ttl": end.ttl_seconds}
    return {
        "age": end.age if re.fullmatch(r"[0-9]{1,6} days?(?:[:, ]+[0-9]{2}){3}", end.age) else "",
        "chassis": {tokens.token(OTHER, end.switch): identity} if end.switch else identity,
        "port": {
            "id": {"value": tokens.text(end.port_id)},
            "descr": _port_description(tokens, end.port_description),
            **{name: str(number) for name, number in numbers.items() if number is not None},
        },
        **({} if end.vlan is None else {"vlan": {"vlan-id": str(end.vlan), "pvid": True}}),
    }


def _port_description(tokens: Tokens, text: str) -> str:
    """Keep whether a description names this host or another one, and names of NICs."""
    for host in tokens.hosts:
        form, named = host_form(host), described_hosts(text, host)
        if form is not None and named:
            pieces, at = [], 0
            for match in form.finditer(text):
                name = tokens.name(HOST, host if named[match[0]] else match[0])
                pieces += [_description_words(tokens, text[at : match.start()]), name]
                at = match.end()
            return " ".join(filter(None, (*pieces, _description_words(tokens, text[at:]))))
    return _description_words(tokens, text)


def _description_words(tokens: Tokens, text: str) -> str:
    return tokens.text(text.replace("-", " ").strip(" _"))


def help_text(tokens: Tokens, text: str) -> str:
    """Keep only the known options in the output of `PROGRAM --help`."""
    options = re.findall(r"-{1,2}[a-z][\w-]{0,40}", text)
    return "\n".join(dict.fromkeys(option for option in options if tokens.keeps(option)))


def cluster_objects(tokens: Tokens, text: str) -> str:
    """Keep the fields that are read, with unknown words replaced; of a log, keep the known phrases."""
    if isinstance(objects(text), Unknown):
        return "".join(f"{phrase}\n" for phrase in known_phrases(text))
    return json.dumps(_replaced(tokens, json.loads(kept_fields(text))), separators=(",", ":"))


def _replaced(tokens: Tokens, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(tokens, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(tokens, item) for item in value]
    return tokens.text(value) if isinstance(value, str) else value


T = TypeVar("T")
_COLLECTIVE = re.compile("AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|AlltoAll|Gather|Scatter")
_SIZE = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?[KMGT]?B")
_TEXTS = ("device", "kind", "state", "kernel_name")


def resources(tokens: Tokens, answer: RdmaResources) -> RdmaResources:
    """Replace unknown words in names; numbers of objects and processes stay."""
    text = cache(tokens.text)  # a node has thousands of objects and few names

    def kept(item: Any) -> Any:
        texts = {name: getattr(item, name) for name in _TEXTS if hasattr(item, name)}
        replaced = {name: text(value) for name, value in texts.items() if text(value) != value}
        return dataclasses.replace(item, **replaced) if replaced else item

    def kept_all(objects: Sequence[T]) -> tuple[T, ...]:
        return tuple(kept(item) for item in objects)

    return dataclasses.replace(
        answer,
        queue_pairs=kept_all(answer.queue_pairs),
        regions=kept_all(answer.regions),
        domains=kept_all(answer.domains),
        contexts=kept_all(answer.contexts),
        completion_queues=kept_all(answer.completion_queues),
        unread=tuple(map(text, answer.unread)),
        hidden=None if answer.hidden is None else tuple(map(text, answer.hidden)),
    )


def packets(tokens: Tokens, answer: tuple[PacketNumbers, ...]) -> tuple[PacketNumbers, ...]:
    """Replace unknown words in the names of devices, as in `resources`."""
    text = cache(tokens.text)
    return tuple(dataclasses.replace(pair, device=text(pair.device)) for pair in answer)


def sockets(tokens: Tokens, answer: tuple[TcpSocket, ...]) -> tuple[TcpSocket, ...]:
    """Replace addresses and users; ports, which show what a connection is for, and bytes stay."""
    return tuple(
        dataclasses.replace(
            each,
            uid=int(tokens.user_id(str(each.uid))),
            local=_address(tokens, each.local),
            remote=_address(tokens, each.remote),
        )
        for each in answer
    )


def _address(tokens: Tokens, text: str) -> str:
    try:
        return tokens.address(ipaddress.ip_address(text))
    except ValueError:
        return tokens.text(text)


def counters(answer: dict[str, int]) -> dict[str, int]:
    """Keep the counters that gdrtop uses."""
    return {name: value for name, value in answer.items() if ETHTOOL_COUNTERS.fullmatch(name)}


def fec(answer: FecState) -> FecState:
    """Keep the mode and the counts that gdrtop knows."""
    mode = answer.mode
    if not isinstance(mode, Unknown) and mode not in MODES.values():
        mode = Unknown(Reason.NOT_RECORDED, SOURCE)
    counts = {name: value for name, value in answer.counts.items() if name in COUNTS.values()}
    return FecState(mode, counts)


def statistics(answer: dict[str, int]) -> dict[str, int]:
    """Keep the counters of RDMA ports that gdrtop uses."""
    return {name: value for name, value in answer.items() if name in _STATISTICS}


def collectives(tokens: Tokens, answer: tuple[CollectiveSpeed, ...]) -> tuple[CollectiveSpeed, ...]:
    """Replace the names of communicators, which users choose, and unknown collectives."""
    return tuple(
        dataclasses.replace(
            collective,
            communicator=tokens.token(COMMUNICATOR, collective.communicator),
            collective=collective.collective
            if _COLLECTIVE.fullmatch(collective.collective)
            else tokens.text(collective.collective),
            message_size=collective.message_size if _SIZE.fullmatch(collective.message_size) else "",
        )
        for collective in answer
    )


def component_history(tokens: Tokens, answer: ComponentHistory) -> ComponentHistory:
    """Keep the figures; replace names of programs, users and jobs, GUIDs and UUIDs."""

    def job_name(text: str) -> str:
        return tokens.text(_JOB_ID.sub(lambda found: str(tokens.number(JOB, found[0])), text))

    components = (
        dataclasses.replace(
            each,
            id=tokens.text(each.id),
            name=tokens.text(each.name),
            bdf=tokens.text(each.bdf),
            parts=tuple(dataclasses.replace(part, counts=known_counts(part.counts)) for part in each.parts),
            counts=known_counts(each.counts),
        )
        for each in answer.components
    )
    jobs = (dataclasses.replace(job, name=job_name(job.name)) for job in answer.jobs)
    # The other ids are those of gdrtop's own checks.
    losses = tuple(each for each in answer.losses if not each.finding.startswith(PREFIX))
    return dataclasses.replace(answer, jobs=tuple(jobs), components=tuple(components), losses=losses)


def log_findings(tokens: Tokens, answer: tuple[LogFinding, ...]) -> tuple[LogFinding, ...]:
    """Keep the ids of checks, and GPUs, NICs and ranks as elsewhere in the recording."""
    return tuple(
        dataclasses.replace(
            finding,
            devices=tuple(map(tokens.text, finding.devices)),
            takes=tuple(map(tokens.text, finding.takes)),
            ranks=tuple(map(tokens.text, finding.ranks)),
        )
        for finding in answer
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
    if not bare or all(part in RAS_WORDS for part in bare.split(",")):
        return word
    return _address(tokens, word)  # as a word of its own: part of one may look like a PCI address
