"""What gdrtop and the supervisor of a detached run write to each other, as JSON: an order and its events."""

from __future__ import annotations

import dataclasses
from typing import Any

from probes.base.plan import FileChange, Plan, Step
from probes.base.unknown import Reason, Unknown
from tui.actions.audit_log import Actor
from tui.actions.events import Printed, RunBegan, RunEnded, RunEvent, RunOutcome, StepBegan, StepEnded


@dataclasses.dataclass(frozen=True)
class Order:
    """A confirmed run, and where it is logged."""

    action: str
    plan: Plan
    actor: Actor
    log: str
    directory: str  # of the lock, and of the files that both use


def order_json(order: Order) -> dict[str, Any]:
    """Return an order as a JSON object."""
    return dataclasses.asdict(order)


def order_of(fields: dict[str, Any]) -> Order:
    """Return the order in a JSON object."""
    plan = fields["plan"]
    steps = tuple(map(_step, plan["steps"]))
    return Order(**{**fields, "plan": Plan(**{**plan, "steps": steps}), "actor": Actor(**fields["actor"])})


def _step(fields: dict[str, Any]) -> Step:
    file = fields["file"] and FileChange(**fields["file"])
    return Step(**{**fields, "argv": tuple(fields["argv"]), "undo": tuple(fields["undo"]), "file": file})


def event_json(event: RunEvent) -> dict[str, Any]:
    """Return an event as a JSON object, without the plan, which both sides know."""
    if isinstance(event, RunBegan):
        return {"event": "run began", "as_root": event.as_root}
    if isinstance(event, StepBegan):
        return {"event": "step began", "number": event.number}
    if isinstance(event, Printed):
        return {"event": "printed", "text": event.text}
    if isinstance(event, StepEnded):
        lines = event.kernel_lines
        unread = isinstance(lines, Unknown)
        kernel = (
            [lines.reason.value, lines.source, lines.detail] if isinstance(lines, Unknown) else list(lines)
        )
        fields = dataclasses.asdict(dataclasses.replace(event, kernel_lines=()))
        return {
            **fields,
            "event": "step ended",
            "outcome": event.outcome.value,
            "unread": unread,
            "kernel_lines": kernel,
        }
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
        lines, unread = fields.pop("kernel_lines"), fields.pop("unread")
        kernel = Unknown(Reason(lines[0]), lines[1], lines[2]) if unread else tuple(lines)
        return StepEnded(**{**fields, "outcome": RunOutcome(fields["outcome"]), "kernel_lines": kernel})
    if kind == "run ended":
        left = plan.steps[len(plan.steps) - fields["left"] :] if fields["left"] else ()
        return RunEnded(RunOutcome(fields["outcome"]), fields["why"], left)
    return None
