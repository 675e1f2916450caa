"""The user's consent to a question to RAS, in a terminal."""

from __future__ import annotations

from typing import TextIO

from probes.live.ras.policy import RasDecision
from probes.live.ras.targets import RasTarget
from tui.runtime.ras_questions import RasQuestions
from widgets.nccl.ras import notice

NOT_CONFIRMED = RasDecision(("not confirmed; --yes asks without confirmation",))


def confirmed(
    questions: RasQuestions,
    target: RasTarget,
    command: str,
    decision: RasDecision,
    answers: TextIO,
    errors: TextIO,
    yes: bool,
) -> RasDecision:
    """Show what is sent and what it may do, and ask, unless that was confirmed before.

    Return the decision, or NOT_CONFIRMED. `yes`: the command line has consented.
    """
    if not decision.is_allowed or questions.is_confirmed(target, command, decision):
        return decision
    for text in notice(target, command, decision):
        print(text, file=errors)
    if not yes:
        if not (answers.isatty() and errors.isatty()):
            return NOT_CONFIRMED
        print("Ask the job? [y/N] ", end="", file=errors, flush=True)
        if answers.readline().strip().lower() not in ("y", "yes"):
            return NOT_CONFIRMED
    questions.confirm(target, command, decision)
    return decision
