"""Draw the findings on the overview: a row per finding with mark, device and title."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from probes.checks.judgment import listed, with_severity
from probes.queries.finding import Finding, Severity
from widgets.base.lines import Line, Run, Tone, fit
from widgets.doctor.findings import mark_of

_MOST_DEVICE_CELLS = 15


def draw(
    findings: Sequence[Finding],
    labels: Mapping[str, str],
    gpus: Collection[str],
    width: int,
    selected: str = "",
) -> list[Line]:
    """Draw a row per finding; `labels` maps ids or BDFs of endpoints to names, `gpus` are ids of GPUs."""
    rows = listed(findings)
    if not rows:
        notes = len(with_severity(findings, Severity.NOTE))
        more = f", {notes} note{'s' if notes > 1 else ''} (d)" if notes else ""
        return [(Run("✓", Tone.GOOD), Run(" no critical findings or warnings"), Run(more, Tone.DIM))]
    devices = {finding.id: device_of(finding, labels, gpus) for finding in rows}
    cells = min(_MOST_DEVICE_CELLS, max(map(len, devices.values())))
    lines: list[Line] = []
    for finding in rows:
        device: Line = fit((Run(devices[finding.id]),), cells) if cells else ()
        tone = Tone.CURSOR if finding.id == selected else Tone.PLAIN
        gap = Run("  " if cells else "")
        row: Line = (mark_of(finding), Run(" "), *device, gap, Run(finding.title, tone, finding.id))
        lines.append(fit(row, width))
    return lines


def device_of(finding: Finding, labels: Mapping[str, str], gpus: Collection[str]) -> str:
    """Return what a finding is about, in a few characters: "mlx5_3", "rank 5", "8 GPUs", "17:01.0 +15"."""
    if finding.ranks:
        return finding.ranks[0] if len(finding.ranks) == 1 else f"{len(finding.ranks)} ranks"
    ends = dict.fromkeys(labels[device] for device in finding.devices if device in labels)
    if len(ends) == 1:
        return next(iter(ends))
    if ends:
        are_gpus = {label in {labels.get(gpu, "") for gpu in gpus} for label in ends}
        word = "devices" if len(are_gpus) > 1 else "GPUs" if are_gpus.pop() else "NICs"
        return f"{len(ends)} {word}"
    others = [device.removeprefix("0000:") for device in finding.devices]
    if not others:
        return finding.area
    return others[0] if len(others) == 1 else f"{others[0]} +{len(others) - 1}"
