"""Commands that only ask: answered where the tree of the simulated node has an answer."""

from __future__ import annotations

from probes.base.unknown import Unknown
from probes.facts.system.tool_names import PERFTEST
from probes.simulation.commands.command_result import Order, Performed, done, failed

# What each may be asked; to anything else the answer in the tree is none.
_QUESTIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "ofed_info": (("-s",),),
    "nv-fabricmanager": (("--version",),),
    "rdma_topo": (("check",),),
    **dict.fromkeys(PERFTEST, (("--version",),)),
}


def answer(order: Order) -> Performed | None:
    """What the probes would be told too; None: the simulated node has no such command."""
    told = order.tree.commands.get(order.name)
    asked = _QUESTIONS.get(order.name)
    if told is None or (asked is not None and order.words not in asked):
        return None
    text = told((order.name, *order.words), order.seconds)
    if isinstance(text, Unknown):
        return None
    if order.name == "modinfo" and not text:
        return failed(*(f"modinfo: ERROR: Module {word} not found." for word in order.words))
    lines = text.splitlines()
    if order.name == "dmesg" and not {"-r", "--raw"} & set(order.words):
        lines = [line.partition(">")[2] for line in lines]
    return done(*lines)
