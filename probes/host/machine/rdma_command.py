"""RDMA resources from `rdma -j -d resource show`, where the netlink socket cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.answers import CommandOutput
from probes.host.rdma_resources import (
    MAX_OBJECTS,
    CompletionQueue,
    MemoryRegion,
    ProtectionDomain,
    QueuePair,
    RdmaContext,
    RdmaResources,
)

KINDS = ("qp", "mr", "pd", "ctx", "cq")
SECONDS = 2.0
_GREATEST = (1 << 64) - 1


def resources_from_command(
    run: Callable[[Sequence[str], float], Maybe[CommandOutput]],
) -> Maybe[RdmaResources]:
    """Return the resources that the `rdma` command lists."""
    texts = {}
    for kind in KINDS:
        output = run(("rdma", "-j", "-d", "resource", "show", kind), SECONDS)
        if isinstance(output, Unknown):
            return output
        if output.exit_status == 0:
            texts[kind] = output.stdout
        elif kind in (
            "qp",
            "mr",
        ):  # the others only name owners, and an old command does not have all of them
            return Unknown(Reason.DRIVER_ERROR, " ".join(output.argv), printable(output.stderr, 200))
    system = run(("rdma", "system", "show"), SECONDS)
    return parse_resources(texts, "" if isinstance(system, Unknown) else system.stdout)


def parse_resources(texts: dict[str, str], system: str = "") -> Maybe[RdmaResources]:
    """Parse the JSON by kind of object, and the text of `rdma system show`."""
    lists: dict[str, list[dict[str, Any]]] = {}
    left_out = 0
    for kind in KINDS:
        found = _objects(texts.get(kind, "[]"))
        if found is None:
            return Unknown(Reason.MALFORMED, f"rdma -j resource show {kind}", "not the expected JSON")
        lists[kind] = found[:MAX_OBJECTS]
        left_out += max(0, len(found) - MAX_OBJECTS)
    mode = re.search(r"\bnetns (shared|exclusive)\b", system)
    return RdmaResources(
        tuple(_queue_pair(one) for one in lists["qp"] if "lqpn" in one),
        tuple(_region(one, at) for at, one in enumerate(lists["mr"])),
        tuple(
            ProtectionDomain(_device(one), _number(one, "pdn") or 0, _number(one, "ctxn"), *_owner(one))
            for one in lists["pd"]
            if "pdn" in one
        ),
        tuple(
            RdmaContext(_device(one), _number(one, "ctxn") or 0, *_owner(one))
            for one in lists["ctx"]
            if "ctxn" in one
        ),
        tuple(
            CompletionQueue(_device(one), _number(one, "cqn") or 0, _number(one, "ctxn"), *_owner(one))
            for one in lists["cq"]
            if "cqn" in one
        ),
        None if mode is None else mode[1] == "shared",
        left_out,
    )


def _objects(text: str) -> list[dict[str, Any]] | None:
    try:
        found = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("ifname"), str)]


def _device(one: dict[str, Any]) -> str:
    return printable(one["ifname"], 64)


def _number(one: dict[str, Any], key: str) -> int | None:
    value = one.get(key)
    return value if type(value) is int and 0 <= value <= _GREATEST else None


def _text(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    return printable(value, 64) if isinstance(value, str) else ""


def _owner(one: dict[str, Any]) -> tuple[int | None, str]:
    """Return the pid, or the name of the kernel module: only objects of the kernel have a name and no pid."""
    pid = _number(one, "pid") or None
    return pid, "" if pid is not None else _text(one, "comm").strip("[]")


def _queue_pair(one: dict[str, Any]) -> QueuePair:
    pid, kernel_name = _owner(one)
    return QueuePair(
        device=_device(one),
        number=_number(one, "lqpn") or 0,
        kind=_text(one, "type") or "UNKNOWN",
        state=_text(one, "state") or "UNKNOWN",
        port=_number(one, "port"),
        remote=_number(one, "rqpn"),
        pd=_number(one, "pdn"),
        pid=pid,
        kernel_name=kernel_name,
    )


def _region(one: dict[str, Any], position: int) -> MemoryRegion:
    pid, kernel_name = _owner(one)
    number = _number(one, "mrn")
    return MemoryRegion(
        device=_device(one),
        number=position if number is None else number,
        length_bytes=_number(one, "mrlen") or 0,
        pd=_number(one, "pdn"),
        pid=pid,
        kernel_name=kernel_name,
        is_odp="odp" in one or "drv_odp" in one,
    )
