"""Draw a plan: its consequences, and each command with its reason and its undo; and the list of actions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from probes.base.plan import FileChange, Plan, Step
from probes.base.text import plural
from probes.base.unknown import Unknown
from probes.plans.common import Undo, affects_jobs, only_reads, undo_of
from probes.queries.finding import DETOUR, PairGain
from widgets.base.lines import Line, Run, Tone, fit, wrapped

if TYPE_CHECKING:
    from probes.plans.catalogue import Offer


_MOST_TEXT_LINES = 12
_FEWEST_FOLDED = 3
ACTIONS, FIXES, UNDO = "ACTIONS", "FIXES FOR FINDINGS", "UNDO"
_MOST_ID_CELLS = 40
_MAY_AFFECT = "may affect running jobs"
# What a person does in a manual step is not gdrtop's to undo.
_BESIDE_MANUAL = {Undo.WHOLE: "can be undone, except manual steps", Undo.NOTHING: "its commands only read"}
_MANUAL = "manual: "


def draw_consequences(plan: Plan, width: int, names_jobs: bool = False) -> list[Line]:
    """Draw what a plan needs and disturbs; with `names_jobs`, the jobs are listed below it."""
    words = consequences(plan, names_jobs)
    tone = Tone.WARNING if plan.disturbs or _MAY_AFFECT in words else Tone.DIM
    return wrapped(" · ".join(words), width, tone)


def draw_steps(plan: Plan, width: int) -> list[Line]:
    """Draw the steps in order, with similar ones folded, then the note."""
    lines: list[Line] = []
    is_list = len(plan.steps) > 1 and all(step.is_instruction for step in plan.steps)
    for number, steps in enumerate(step_groups(plan.steps), 1):
        lines.extend(draw_group(steps, width, f"{number}. " if is_list else _MANUAL))
    if plan.note:
        lines.extend(wrapped(plan.note, width, Tone.DIM))
    return lines


def step_groups(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Group the steps in order: three or more that differ only in their device, else each alone."""
    groups: list[tuple[Step, ...]] = []
    for _, members in groupby(steps, lambda step: (step.group, step.argv[:1])):
        similar = tuple(members)
        is_folded = similar[0].group and len(similar) >= _FEWEST_FOLDED
        groups.extend([similar] if is_folded else [(step,) for step in similar])
    return groups


def draw_group(steps: Sequence[Step], width: int, mark: str = _MANUAL) -> list[Line]:
    """Draw one step, or the first of many similar ones and how many there are."""
    if len(steps) == 1:
        return draw_step(steps[0], width, mark)
    head = f"{len(steps)} {steps[0].group}, starting with:"
    last = f"… {len(steps) - 1} more like this"
    return [
        *wrapped(head, width, Tone.PLAIN, "  "),
        *draw_step(steps[0], width),
        *wrapped(last, width, Tone.PLAIN, "  "),
    ]


def consequences(plan: Plan, names_jobs: bool = False) -> list[str]:
    """Return what a plan needs and does, in a few words each."""
    is_manual = all(step.is_instruction for step in plan.steps)
    words = ["manual steps only" if is_manual else "needs root" if plan.needs_root else "does not need root"]
    if plan.needs_reboot:
        words.append("needs a reboot")
    if undo := undo_of(plan.steps):
        has_manual = any(step.is_instruction for step in plan.steps)
        words.append(_BESIDE_MANUAL.get(undo, undo.value) if has_manual else undo.value)
    if plan.disturbs:
        words.append(f"affects: {plan.disturbs}")
    elif not names_jobs:
        effects = set(map(affects_jobs, plan.steps))
        if True in effects:
            words.append(_MAY_AFFECT)
        elif effects == {False}:
            words.append("does not affect running jobs")
    return words


def draw_step(step: Step, width: int, mark: str = _MANUAL) -> list[Line]:
    """Draw the reason, the command or the file's new text, and the undo; `mark`: of a manual step."""
    if step.is_instruction:
        text, _, to_copy = step.why.partition("\n")
        lines = wrapped(f"{mark}{text}", width, Tone.PLAIN, "  ")
        return [*lines, *(wrapped(to_copy, width, Tone.GOOD, "    ") if to_copy else ())]
    lines = wrapped(f"# {step.why}", width, Tone.DIM, "  ")
    if step.file is not None:
        return [*lines, *_file(step, step.file, width)]
    lines.extend(wrapped(step.command, width, Tone.GOOD, "  "))
    if step.undo:
        lines.extend(wrapped(f"undo: {shlex.join(step.undo)}", width, Tone.DIM, "    "))
    elif only_reads(step.argv):
        lines.extend(wrapped("only reads", width, Tone.DIM, "    "))
    return lines


def _file(step: Step, change: FileChange, width: int) -> list[Line]:
    lines = wrapped(step.command, width, Tone.GOOD, "  ")
    content = change.text.splitlines() if change.text is not None else []
    for text in content[:_MOST_TEXT_LINES]:
        lines.extend(wrapped(text, width, Tone.PLAIN, "  │ "))
    if len(content) > _MOST_TEXT_LINES:
        lines.extend(wrapped(f"… and {len(content) - _MOST_TEXT_LINES} more lines", width, Tone.DIM, "  │ "))
    return [*lines, *wrapped("an existing file is backed up beside it", width, Tone.DIM, "    ")]


def heading_of(offer: Offer) -> str:
    """Return the heading of the group that an action belongs to."""
    if offer.id.startswith("undo:") or offer.id == "acs-redirect-back":
        return UNDO
    return FIXES if offer.id.startswith("fix:") else ACTIONS


def draw_offers(offers: Sequence[Offer], width: int, selected: str) -> list[Line]:
    """Draw a line per action, under the headings of their groups."""
    lines: list[Line] = []
    for heading, members in groupby(offers, heading_of):
        group = list(members)
        lines.append((Run(heading, Tone.TITLE),))
        cells = min(_MOST_ID_CELLS, max(len(_name(offer)) for offer in group))
        lines.extend(fit(_row(offer, cells, selected), width) for offer in group)
    return lines


def _row(offer: Offer, cells: int, selected: str) -> Line:
    possible = offer.plan is not None
    name_tone = Tone.CURSOR if offer.id == selected else Tone.PLAIN if possible else Tone.DIM
    return (
        Run("▸", Tone.GOOD) if possible else Run("–", Tone.DIM),
        Run(" "),
        Run(f"{_name(offer):<{cells}}", name_tone, offer.id),
        Run(f" {offer_text(offer)}", Tone.PLAIN if possible else Tone.DIM),
    )


def offer_text(offer: Offer) -> str:
    """Return the title of an action, and why it is not possible, or that a person has to begin it."""
    if offer.plan is None:
        return f"{offer.title} · {offer.why_not}"
    begins = next(iter(offer.plan.steps), None)
    return f"{offer.title} · manual" if begins is not None and begins.is_instruction else offer.title


def _name(offer: Offer) -> str:
    """Return the id, without the id of a past run."""
    return "undo" if offer.id.startswith("undo:") else offer.id


def draw_offer(offer: Offer, width: int) -> list[Line]:
    """Draw an action: its consequences and steps, or why it is not possible."""
    if offer.plan is None:
        return [*wrapped(offer.title, width, Tone.TITLE), *wrapped(offer.why_not, width, Tone.DIM)]
    return [
        *wrapped(offer.plan.title, width, Tone.TITLE),
        *draw_consequences(offer.plan, width),
        *draw_steps(offer.plan, width),
    ]


_MOST_PAIRS = 3  # named


def gain_text(gains: Sequence[PairGain]) -> str:
    """Return a sentence for each group of pairs with equal limits; "" without a gain.

    "Should raise the limit of GPU2–mlx5_2 and GPU3–mlx5_2 from 230 to 397 Gb/s, each pair alone."
    """
    groups: dict[tuple[int | None, int], list[PairGain]] = {}
    for gain in gains:
        now = None if isinstance(gain.now_gbps, Unknown) else round(gain.now_gbps)
        groups.setdefault((now, round(gain.fixed_gbps)), []).append(gain)
    return " ".join(_sentence(now, fixed, group) for (now, fixed), group in groups.items())


def _sentence(now: int | None, fixed: int, gains: Sequence[PairGain]) -> str:
    names = [f"{gain.gpu}–{gain.nic}" for gain in gains]
    pairs = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if len(names) > _MOST_PAIRS:
        pairs = f"{plural(len(names), 'pair')} ({names[0]} …)"
    alone = ", each pair alone" if len(gains) > 1 else ""
    if now is None:
        given = f"Should give {pairs} up to {fixed} Gb/s{alone}."
        whose = "Their" if len(gains) > 1 else "Its"
        is_detour = gains[0].now_gbps == DETOUR
        return f"{given} {whose} traffic uses the CPU now, at an unknown rate." if is_detour else given
    if now == 0:
        return f"Should give {pairs} up to {fixed} Gb/s by GPUDirect RDMA{alone}; now there is none."
    return f"Should raise the limit of {pairs} from {now} to {fixed} Gb/s{alone}."
