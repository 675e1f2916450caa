"""Draw what an upgrade brings: the outlook after it, the packages that matter, warnings and findings."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.text import plural
from probes.setup.upgrade.advice import UpgradeAdvice
from probes.setup.upgrade.transaction import ChangeKind, PackageChange
from probes.setup.upgrade.warnings import UNDER_PEERMEM
from widgets.base.columns import Column, draw_columns
from widgets.base.lines import Line, Run, Tone, line, sentence, wrapped
from widgets.setup.forecast import draw_found, draw_not_known, draw_outlook

_MOST_PACKAGES = 40


def draw_upgrade(advice: UpgradeAdvice, width: int, labels: Mapping[str, str]) -> list[Line]:
    """Draw the headline, the packages, the findings, and what had to be assumed.

    `labels`: the names of GPUs and NICs by BDF.
    """
    kernel, upgrade = advice.forecast.chosen(), advice.upgrade
    if not upgrade.changes:
        return wrapped("The upgrade changes no package.", width)
    counts = f"{plural(len(upgrade.changes), 'package')} would change"
    if kernel is None:
        reason = advice.forecast.not_applicable or "no installed kernel was found"
        return [*wrapped(sentence(reason), width), (), *_draw_packages(advice, counts, width)]
    opening = f"After the upgrade and a reboot into {kernel.release}"
    may_fail = any(finding.id == UNDER_PEERMEM for finding in kernel.findings)
    outlook = draw_outlook(kernel.verdict, opening, width, may_fail)
    lines = [*outlook, (), *_draw_packages(advice, counts, width)]
    lines += draw_found(kernel.findings, width, labels)
    assumed = (*advice.assumed, *filter(None, (kernel.missing,)))
    lines += [(), *wrapped(f"Assumed: {'; '.join(assumed)}.", width, Tone.DIM)]
    return [*lines, *draw_not_known(advice.forecast.not_known, width)]


def _draw_packages(advice: UpgradeAdvice, counts: str, width: int) -> list[Line]:
    rows = advice.upgrade.relevant
    if not rows:
        return wrapped(f"{counts}, none of which GPUDirect RDMA uses.", width)
    shown = rows[:_MOST_PACKAGES]
    columns = [
        Column("PACKAGE", [line(change.name) for _, change in shown], 1),
        Column("CHANGE", [line(_version(change)) for _, change in shown], 2),
        Column("", [line(Run(subject, Tone.DIM)) for subject, _ in shown], 3),
    ]
    verb = "concerns" if len(rows) == 1 else "concern"
    lines = wrapped(f"{counts}; {len(rows)} of them {verb} GPUDirect RDMA:", width)
    lines += draw_columns(columns, ["" for _ in shown], width, "")
    if len(rows) > len(shown):
        lines.append(line(Run(f"… and {len(rows) - len(shown)} more", Tone.DIM)))
    return lines


def _version(change: PackageChange) -> str:
    if change.kind is ChangeKind.REMOVED:
        return f"{change.old} is removed".strip()
    if change.kind is ChangeKind.NEW:
        return f"new: {change.new}"
    return f"{change.old} → {change.new}" if change.old else f"→ {change.new}"
