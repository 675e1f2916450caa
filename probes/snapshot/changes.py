"""Has the node changed since it was probed? A few cheap questions, asked with every reading."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.gpudirect import GpuDirectFacts
from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.node import Node
from probes.host.protocol import Host


def fingerprint(host: Host) -> Hashable:
    """Equal for two moments between which no device and no module came or went."""
    directories = ("/sys/bus/pci/devices", "/sys/class/infiniband", "/sys/module")
    names: list[Maybe[tuple[str, ...]]] = [host.names(directory) for directory in directories]
    states = [host.read(f"/sys/module/{module}/initstate") for module in (*CORE_LADDER, *COMPANIONS)]
    return (*names, *states)


def lacks_answers(node: Node) -> bool:
    """Whether a probe, or a NIC's DMA-BUF probe, did not answer in time."""
    answers: list[object] = [getattr(node, field.name) for field in fields(node)]
    if isinstance(node.gpudirect, GpuDirectFacts):
        answers.extend(node.gpudirect.nic_dmabuf.values())
    return any(isinstance(answer, Unknown) and answer.reason is Reason.TIMED_OUT for answer in answers)
