"""What gdrtop and the supervisor of a detached run write to each other, as JSON: an order and its events."""

from __future__ import annotations

from typing import Any

from probes.base.codec import Codec
from probes.base.frozen import frozen
from probes.base.plan import Plan
from tui.actions.audit_log import Actor
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded

_CODEC = Codec(clean=str)  # text stays as it is


@frozen
class Order:
    """A confirmed run, and where it is logged."""

    action: str
    plan: Plan
    actor: Actor
    log: str
    directory: str  # of the lock, and of the files that both use


def order_json(order: Order) -> Any:
    """Return an order as a JSON object."""
    return _CODEC.encode(order)


def order_of(fields: dict[str, Any]) -> Order:
    """Return the order in a JSON object; ValueError if it is malformed."""
    order: Order = _CODEC.decode(Order, fields)
    return order


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event as a JSON object, without the plan, which both sides know."""
    if isinstance(event, RunBegan):
        return {"event": "run began", "as_root": event.as_root}
    if isinstance(event, StepBegan):
        return {"event": "step began", "number": event.number}
    if isinstance(event, Printed):
        return {"event": "printed", "text": event.text}
    if isinstance(event, StepEnded):
        return {"event": "step ended", **_CODEC.encode(event)}
    return {"event": "run ended", "outcome": event.outcome.value, "why": event.why, "left": len(event.left)}


def event_of(fields: dict[str, Any], plan: Plan, where: str) -> RunEvent | None:
    """Return the event in a JSON object; None for the supervisor's first line. `where` names its process."""
    kind = fields.pop("event")
    if kind == "run began":
        return RunBegan(plan, f"{fields['as_root']}, detached from this terminal ({where})")
    if kind == "step began":
        return StepBegan(fields["number"], plan.steps[fields["number"] - 1])
    if kind == "printed":
        return Printed(fields["text"])
    if kind == "step ended":
        ended: StepEnded = _CODEC.decode(StepEnded, fields)
        return ended
    if kind == "run ended":
        left = plan.steps[len(plan.steps) - fields["left"] :] if fields["left"] else ()
        return RunEnded(RunOutcome(fields["outcome"]), fields["why"], left)
    return None
