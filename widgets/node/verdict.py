"""The verdict in one line: the word, the path, the counts of GPUs and NICs, and of findings."""

from __future__ import annotations

from dataclasses import replace

from probes.base.origin import Origin, Source
from probes.base.text import plural
from probes.facts.gpudirect import GdrPath
from probes.snapshot.verdict import State, Verdict
from widgets.base.lines import Line, Run, Tone

MARKS = {
    State.ACTIVE: ("●", Tone.GOOD),
    State.READY: ("●", Tone.GOOD),
    State.DEGRADED: ("▲", Tone.WARNING),
    State.BROKEN: ("✗", Tone.BAD),
    State.UNKNOWN: ("?", Tone.WARNING),
    State.NOT_APPLICABLE: ("–", Tone.DIM),
}
_UNCHECKED = ("○", Tone.PLAIN)  # no word is green before the checks have run
_PATHS = {
    GdrPath.DMABUF: "DMA-BUF",
    GdrPath.PEERMEM: "peermem",
    GdrPath.EFA: "EFA peer memory",
    GdrPath.CXI: "libfabric (cxi)",
}


def origin_run(origin: Origin) -> Run:
    """Return where the facts are from, unless it is this machine."""
    if origin.source is Source.LIVE:
        return Run("")
    return Run(f" {f'{origin.source.name} {origin.label}'.strip()} ", Tone.CURSOR)


def path_name(path: GdrPath | None) -> str:
    """Return the short name of a path; "–" for none."""
    return "–" if path is None else _PATHS[path]


def mark(verdict: Verdict, text: str) -> Run:
    """Return a text behind the mark of a verdict, in its tone; before the checks have run none is green."""
    sign, tone = MARKS[verdict.state]
    if verdict.critical is None and tone is Tone.GOOD:
        sign, tone = _UNCHECKED
    return Run(f"{sign}{text}", tone)


def draw(verdict: Verdict, key: str = "") -> Line:
    """Return "● READY via DMA-BUF · 8 of 8 GPUs · 8 of 10 NICs · 1 warning (d)", without the reason.

    `key`: opens the findings. While the checks run, the line shows "checking…" and no word is green.
    """
    runs = [mark(verdict, f" {verdict.word}")]
    if verdict.path is not None and verdict.state.has_counts:
        runs.append(Run(f" via {path_name(verdict.path)}"))
    if verdict.gpus and verdict.state.has_counts:
        runs.append(Run(f" · {verdict.gpus_served} of {plural(verdict.gpus, 'GPU')}"))
        if verdict.nics:
            of_all = f"{verdict.nics} of {plural(verdict.all_nics, 'NIC')}"
            runs.append(Run(f" · {of_all if verdict.all_nics else plural(verdict.nics, 'NIC')}"))
    return (*runs, *_findings(verdict, key))


def forms(verdict: Verdict | None, key: str = "") -> tuple[Line, ...]:
    """Return the verdict in full, then without notes, NICs, path and GPUs, the findings, and in a word."""
    if verdict is None:
        return ((),)
    loud = replace(verdict, notes=None)  # a note is given up first: it costs nothing
    full, without_notes = draw(verdict, key), draw(loud, key)
    without_nics = draw(replace(loud, nics=0), key)
    without_path = draw(replace(loud, nics=0, path=None), key)
    state = draw(replace(verdict, likely_in_use=False))[:1]
    counts = full[0], *_findings(loud, key)
    return full, without_notes, without_nics, without_path, counts, full[:1], state


def _findings(verdict: Verdict, key: str) -> list[Run]:
    """Return the counts of findings, critical ones first, in the color of the most severe.

    Notes are counted only beside the key that shows them: a line of text has no room for what costs nothing.
    """
    if verdict.critical is None or verdict.warnings is None:
        return [Run(" · checking…", Tone.DIM)]
    words = [f"{verdict.critical} critical"] if verdict.critical else []
    if verdict.warnings:
        words.append(plural(verdict.warnings, "warning"))
    if verdict.silenced:
        words.append(f"{verdict.silenced} silenced")
    if verdict.notes and key:
        words.append(plural(verdict.notes, "note"))
    if not words:
        return []
    tone = Tone.BAD if verdict.critical else Tone.WARNING if verdict.warnings else Tone.DIM
    return [Run(" · "), Run(", ".join(words), tone), Run(f" ({key})" if key else "", Tone.DIM)]
