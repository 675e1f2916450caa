"""What is shown before an action runs: all of its plan, who would feel it, and what must be typed.

Knows nothing of Textual.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from probes.origin import Origin, Source
from widgets.lines import Line, Run, Tone, wrapped

if TYPE_CHECKING:
    from tui.actions.dispatcher import Prepared


class ConfirmState:
    """A prepared action and what has been typed about it."""

    def __init__(self, prepared: Prepared, origin: Origin) -> None:
        self.prepared = prepared
        self.origin = origin
        self.typed = ""

    @property
    def word(self) -> str:
        """What must be typed; "" where nothing must."""
        clearance = self.prepared.clearance
        return "" if clearance.refused else clearance.word

    @property
    def can_run(self) -> bool:
        """Whether it can be run at all."""
        return not self.prepared.clearance.refused

    @property
    def is_confirmed(self) -> bool:
        """Whether what must be typed was typed."""
        return self.can_run and self.typed.strip() == self.word

    @property
    def title_line(self) -> Line:
        """What is about to be done, and on which node."""
        return title_line(self.prepared, self.origin)

    def lines(self, width: int) -> list[Line]:
        """Consequences, what speaks against it, the steps, and what stays by hand."""
        from tui.actions.by_hand import left_to_do, runnable, why_by_hand
        from widgets.plan_drawing import draw_consequences, draw_step

        plan, clearance = self.prepared.plan, self.prepared.clearance
        titles = wrapped(plan.title, width, Tone.TITLE) if plan.title != self.prepared.title else []
        lines: list[Line] = [*titles, *draw_consequences(plan, width, bool(clearance.felt_by))]
        if clearance.refused:
            lines.extend(wrapped(f"It is not run here: {clearance.refused}.", width, Tone.WARNING))
        if clearance.felt_by:
            lines.extend([(), (Run("SOMEBODY WOULD FEEL IT", Tone.TITLE),)])
            for told in clearance.felt_by:
                lines.extend(wrapped(f"▲ {told}", width, Tone.WARNING, "  "))
        for number, step in enumerate(runnable(plan), 1):
            lines.extend([(), (Run(f"STEP {number}", Tone.TITLE),), *draw_step(step, width)])
        left = left_to_do(plan)
        if left:
            lines.extend([(), (Run("NOT RUN BY GDRTOP", Tone.TITLE),)])
            told = why_by_hand(left[0])
            if not left[0].is_instruction:
                lines.extend(wrapped(f"{left[0].argv[0]}: {told}", width, Tone.DIM, "  "))
            for step in left:
                lines.extend(draw_step(step, width))
        if plan.note:
            lines.extend([(), *wrapped(plan.note, width, Tone.DIM)])
        return lines

    @property
    def question(self) -> str:
        """What the keys do here, in a sentence."""
        if not self.can_run:
            return f"Not run here: {self.prepared.clearance.refused}."
        return f"Enter, then the node's name, {self.word}, runs it." if self.word else "Enter runs it."

    def script(self) -> str:
        """The plan as a shell script."""
        from tui.actions.script import script_of

        return script_of(self.prepared.plan, self.prepared.node)

    @property
    def script_name(self) -> str:
        """The script's file name."""
        return f"gdrtop-{file_word(self.prepared.action)}-{file_word(self.prepared.node)}.sh"


def title_line(prepared: Prepared, origin: Origin) -> Line:
    """An action and its node; what is not this live machine says so."""
    word = "" if origin.source is Source.LIVE else f"  {origin.source.name}"
    return (
        Run("Action ", Tone.TITLE),
        Run(f" {prepared.node} ", Tone.CURSOR),
        Run(word, Tone.TITLE),
        Run(f"  {prepared.title}"),
    )


def file_word(text: str) -> str:
    """A text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.")[:64] or "unnamed"
