"""scontrol(1): drains this node and lets jobs start again."""

from __future__ import annotations

from probes.simulation.commands.command_result import (
    CommandResult,
    Handler,
    Invocation,
    done,
    failed,
    unsupported,
)


def _scontrol(call: Invocation) -> CommandResult:
    node = call.tree.description
    if not node.system.slurm or call.args[:1] != ("update",):
        return unsupported(call)
    fields = dict(word.partition("=")[::2] for word in call.args[1:])
    if fields.pop("NodeName", "") != node.hostname:
        return failed("slurm_update error: Invalid node name specified")
    state, reason = fields.pop("State", ""), fields.pop("Reason", "")
    if fields or state not in ("DRAIN", "UNDRAIN") or bool(reason) != (state == "DRAIN"):
        return unsupported(call)
    call.tree.drained_for = reason if state == "DRAIN" else None
    return done()


COMMANDS: dict[str, Handler] = {"scontrol": _scontrol}
