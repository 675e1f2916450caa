"""Commands that only ask: answered where the tree of the simulated node has an answer."""

from __future__ import annotations

from probes.simulation.commands.performed import Order, Performed, done
from probes.unknown import Unknown


def answer(order: Order) -> Performed | None:
    """What the probes would be told too; None: the simulated node has no such command."""
    told = order.tree.commands.get(order.name)
    if told is None:
        return None
    text = told((order.name, *order.words), order.seconds)
    return None if isinstance(text, Unknown) else done(*text.splitlines())
