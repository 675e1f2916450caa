"""GPUDirect RDMA: which path is usable, which is in use, and the reference count with its history."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.history import History
from probes.base.unknown import Reason, Unknown, known
from probes.checks.statements import Health, PathStatement
from probes.facts.gpudirect import GdrPath, GpuDirectFacts, PeermemReading, Requirement
from probes.facts.node import Node
from widgets.base.figures import UNKNOWN_MARK, gibibytes, graph
from widgets.base.lines import Line, Run, Tone, width_of, wrapped

SPARK_SECONDS = 300.0
_SPARK_TEXT = "  5 min"
_NAMES = {GdrPath.DMABUF: "DMA-BUF", GdrPath.PEERMEM: "peermem", GdrPath.EFA: "EFA", GdrPath.CXI: "libfabric"}


def _usable(stated: PathStatement) -> Run:
    """Return the mark and the word of a path."""
    match stated.health:
        case Health.GOOD:
            return Run("✓ usable", Tone.GOOD)
        case Health.UNKNOWN:
            return Run("? unknown", Tone.WARNING)
        case Health.PLAIN:
            return Run("– not usable" if stated.path is GdrPath.DMABUF else "– not needed", Tone.DIM)
    return Run("✗ not for new jobs" if stated.is_for_running_jobs else "✗ not usable", Tone.BAD)


def _requirement_lines(need: Requirement, width: int) -> list[Line]:
    if isinstance(need.met, Unknown):
        head: Line = (Run("  ? ", Tone.WARNING), Run(need.name), Run(f" ({need.met})", Tone.DIM))
    else:
        head = (Run("  ✓ ", Tone.GOOD) if need.met else Run("  ✗ ", Tone.BAD), Run(need.name))
    return [head, *wrapped(need.evidence, width, Tone.DIM, "      ")]


def draw(
    node: Node,
    paths: Sequence[PathStatement] | None,
    peermem: PeermemReading | None,
    history: History | None,
    width: int,
    full: bool = False,
) -> list[Line]:
    """Draw both paths, the reference count and memory peers; `full`: each requirement with its evidence.

    `paths`: what the judgment states; None before the first one.
    """
    facts = node.gpudirect
    if isinstance(facts, Unknown):
        return wrapped(f"The GPUDirect state could not be read: {facts}", width, Tone.WARNING)
    if paths is None:
        return [(Run("reading…", Tone.DIM),)]
    lines: list[Line] = []
    for stated, state in zip(paths, (facts.dmabuf, facts.peermem), strict=False):
        chosen = Run("  preferred by NCCL" if full and stated.is_preferred else "", Tone.DIM)
        lines.append((Run(f"{_NAMES[stated.path]:<10}"), _usable(stated), _nics(facts, stated), chosen))
        if full:
            for need in state.requirements:
                lines.extend(_requirement_lines(need, width))
        if stated.why and (stated.path is GdrPath.DMABUF or stated.health is not Health.PLAIN):
            lines.extend(wrapped(stated.why, width, Tone.DIM, "  "))
    if paths and (full or not isinstance(facts.dmabuf_in_use, Unknown)):
        lines.extend(_in_use(facts, paths[0], width))
    lines.extend(_live(peermem, history, width))
    return lines


def _nics(facts: GpuDirectFacts, stated: PathStatement) -> Run:
    """Return how many NICs can use a path that is usable, unless all can."""
    if stated.path is not GdrPath.DMABUF or (stated.usable is False and not stated.is_seen):
        return Run("")
    able = sum(able is True for able in facts.nic_dmabuf.values())
    unknown = sum(isinstance(able, Unknown) for able in facts.nic_dmabuf.values())
    if able == len(facts.nic_dmabuf):
        return Run("")
    asked = f" ({unknown} unknown)" if unknown else ""
    return Run(f" · {able} of {len(facts.nic_dmabuf)} NICs{asked}")


def _in_use(facts: GpuDirectFacts, stated: PathStatement, width: int) -> list[Line]:
    in_use = facts.dmabuf_in_use
    if not isinstance(in_use, Unknown):
        return [(Run("DMA-BUF in use now: "), Run("yes", Tone.GOOD) if in_use else Run("no"))]
    if stated.usable is False and not stated.is_seen:
        return []
    text = f"DMA-BUF in use: unknown ({in_use.reason.value})"
    if in_use.reason is Reason.NEEDS_ROOT:
        text = "Only root can tell whether DMA-BUF is in use."
        if stated.is_seen:
            text = "DMA-BUF is likely in use. Only root can prove it."
    return wrapped(text, width, Tone.DIM)


def _live(peermem: PeermemReading | None, history: History | None, width: int) -> list[Line]:
    if peermem is None or _is_absent(peermem):
        return []
    if isinstance(peermem.refcnt, Unknown):
        return [(Run("refcnt    "), Run(f"– ({peermem.refcnt.reason.value})", Tone.DIM))]
    count = Run(f"{peermem.refcnt:<4} ", Tone.GOOD if peermem.refcnt else Tone.PLAIN)
    row: Line = (Run("refcnt    "), count)
    if history is not None:
        buckets = max(10, width - width_of(row) - len(_SPARK_TEXT))
        row = (*row, *graph(history.buckets(buckets, SPARK_SECONDS / buckets)), Run(_SPARK_TEXT, Tone.DIM))
    lines: list[Line] = [row]
    if not isinstance(peermem.peers, Unknown):
        for peer in peermem.peers:
            regions = known(peer.live_mrs, UNKNOWN_MARK)
            lines.append((Run(f"{peer.client:<10}"), Run(f"{regions} MRs  {gibibytes(peer.live_bytes)}")))
    return lines


def _is_absent(peermem: PeermemReading) -> bool:
    """Return whether no peer-memory module is loaded: there is nothing to count."""
    refcnt = peermem.refcnt
    return isinstance(refcnt, Unknown) and refcnt.reason is Reason.NOT_THERE


def strip(
    node: Node,
    paths: Sequence[PathStatement] | None,
    peermem: PeermemReading | None,
    history: History | None,
    width: int,
) -> list[Line]:
    """Return the panel in one line."""
    facts = node.gpudirect
    if isinstance(facts, Unknown):
        return wrapped(f"GPUDirect: {facts}", width, Tone.WARNING)[:1]
    runs: list[Run] = []
    for stated in paths or ():
        usable = _usable(stated)
        mark = Run(usable.text[0], usable.tone)
        runs.extend([Run(f"{_NAMES[stated.path]} "), mark, _nics(facts, stated), Run("  ")])
    if peermem is not None and not _is_absent(peermem):
        refcnt = "–" if isinstance(peermem.refcnt, Unknown) else str(peermem.refcnt)
        runs.append(Run(f"refcnt {refcnt} "))
        left = width - sum(len(run.text) for run in runs) - 1
        if history is not None and left >= 10 and refcnt != "–":
            cells = min(left, 30)
            runs.extend(graph(history.buckets(cells, SPARK_SECONDS / cells)))
    return [tuple(runs)]
