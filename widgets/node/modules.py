"""The kernel modules in load order: what is loaded, what is missing and why it matters."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.text import plural
from probes.base.unknown import Maybe, Unknown, known
from probes.facts.gpudirect import GdrPath, GpuDirectFacts
from probes.facts.gpudirect_probe import PEER_MODULES
from probes.facts.kernel.module_blockers import explain
from probes.facts.kernel.modules import KernelModule, ModuleFacts, ModuleState, Rung
from probes.facts.node import Node
from probes.facts.pci.functions import PciFacts
from probes.facts.pci.nic_families import MELLANOX, cards_of
from probes.queries.modules import peer_nics
from widgets.base.figures import UNKNOWN_MARK
from widgets.base.lines import Line, Run, Tone, cut, fit, joined, paragraphs, width_of, wrapped

_MARKS = {
    ModuleState.LIVE: ("✓", Tone.GOOD),
    ModuleState.BUILTIN: ("✓", Tone.GOOD),
    ModuleState.LOADING: ("…", Tone.WARNING),
    ModuleState.UNLOADING: ("…", Tone.WARNING),
}


_STATE_COLUMN, _REFCNT_CELLS = 20, 5
_COMPANION = "not needed for GPUDirect RDMA"


def not_needed(node: Node, rung: Rung) -> str:
    """Return why this node does not need a module that is not loaded; "" if it does."""
    family = next((family for family in MELLANOX if rung.module in family.modules), None)
    if family is not None and isinstance(node.pci, PciFacts):
        return "" if cards_of(node.pci, family) else "no such card here"
    if rung.module.startswith(("nvidia", "gdrdrv")) and isinstance(node.pci, PciFacts) and not node.pci.gpus:
        return "no NVIDIA GPU here"
    direct = node.gpudirect
    if rung.module == "nvidia_peermem" and peer_nics(node) == ():
        return "no NIC here that it could serve"
    if rung.module == "nvidia_peermem" and isinstance(direct, GpuDirectFacts):
        if direct.by_design:
            return f"not needed: {direct.by_design}"
        if direct.preferred is GdrPath.DMABUF:
            return "not needed with DMA-BUF"
        if isinstance(node.modules, ModuleFacts):
            other = node.modules.modules.get("nv_peer_mem")
            if other is not None and other.state is ModuleState.LIVE:
                return "nv_peer_mem is used instead"
    return "" if rung.core else _COMPANION


def may_be_needed(node: Node, rung: Rung) -> bool:
    """Return whether only the state of DMA-BUF, which is unknown, could say that a node needs a module."""
    direct = node.gpudirect
    unread = isinstance(direct, Unknown) or isinstance(direct.dmabuf.usable, Unknown)
    return unread and rung.module == "nvidia_peermem" and not not_needed(node, rung)


def mark_of(node: Node, rung: Rung, module: KernelModule) -> tuple[str, Tone]:
    """Return `✓` loaded, `…` on its way, `–` not needed, `✗` missing or `?` unknown, with its tone."""
    if isinstance(module.state, Unknown):
        return UNKNOWN_MARK, Tone.WARNING
    if module.state in _MARKS:
        return _MARKS[module.state]
    if may_be_needed(node, rung):
        return UNKNOWN_MARK, Tone.WARNING
    return ("–", Tone.DIM) if not_needed(node, rung) else ("✗", Tone.BAD)


def _marked(node: Node, facts: ModuleFacts, mark: str) -> list[str]:
    ladder = facts.ladder
    return [rung.module for rung in ladder if mark_of(node, rung, facts.modules[rung.module])[0] == mark]


def summary(node: Node, facts: ModuleFacts) -> Line:
    """Return "✗ 1 module is missing: nvidia_peermem", or that this node's modules are loaded."""
    absent, unread = _marked(node, facts, "✗"), _marked(node, facts, UNKNOWN_MARK)
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        text = f" {plural(len(absent), 'module')} {verb} missing: {', '.join(absent)}"
        return (Run("✗", Tone.BAD), Run(text, Tone.TITLE))
    unknown = [name for name in unread if isinstance(facts.modules[name].state, Unknown)]
    if unknown:
        return (Run(UNKNOWN_MARK, Tone.WARNING), Run(f" state unknown: {', '.join(unknown)}", Tone.TITLE))
    if unread:
        text = f" {', '.join(unread)} is needed unless DMA-BUF works, which is unknown"
        return (Run(UNKNOWN_MARK, Tone.WARNING), Run(text, Tone.TITLE))
    return (Run("✓", Tone.GOOD), Run(" All modules that this node needs are loaded", Tone.TITLE))


def draw(
    node: Node,
    refcnts: dict[str, Maybe[int]],
    width: int,
    full: bool = False,
    marks: Mapping[str, Run] | None = None,
) -> list[Line]:
    """Draw the modules that need attention, one line each, and how many are ok; `full`: every module.

    A line shows the mark of its finding and why the module is missing; `full`: also what is lost without it.
    """
    facts = node.modules
    if isinstance(facts, Unknown):
        return wrapped(f"The modules could not be read: {facts}", width, Tone.WARNING)
    lines: list[Line] = []
    ok = 0
    for number, rung in enumerate(facts.ladder, 1):
        module = facts.modules[rung.module]
        mark, tone = mark_of(node, rung, module)
        if not full and mark in "✓–" and rung.module not in (marks or {}):
            ok += mark == "✓"
            continue
        state = UNKNOWN_MARK if isinstance(module.state, Unknown) else module.state.value
        is_named = rung.module in (marks or {})  # a finding knows better
        reason = not_needed(node, rung) if mark == "–" and not is_named else ""
        if mark == "✓":
            state = f"{state} {known(module.version, '')}".rstrip()
        elif reason and reason != _COMPANION:
            state = reason
        obstacle = explain(facts, rung.module) if mark in ("✗", "?") or (full and mark == "–") else ""
        if obstacle and not full and len(obstacle) <= width - _STATE_COLUMN - _REFCNT_CELLS:
            # One line each, so that all modules stay visible if many are missing.
            state, obstacle = obstacle, ""
        finding = (marks or {}).get(rung.module, Run(mark, tone))
        head: Line = (
            Run(f"{number:>2} ", Tone.DIM),
            finding,
            Run(f" {rung.module:<14} ", Tone.PLAIN if rung.core else Tone.DIM),
            Run(state, tone if mark in "✗?" else Tone.DIM),
        )
        if rung.module in PEER_MODULES:
            count = refcnts.get(module.name, module.refcnt)
            unread = UNKNOWN_MARK if module.state is ModuleState.LIVE else ""
            refcnt = f"{unread if isinstance(count, Unknown) else count:>{_REFCNT_CELLS}}"
            lines.append((*fit(head, width - _REFCNT_CELLS), Run(refcnt)))
        else:
            lines.append(cut(head, width))
        lines += paragraphs((obstacle,), width, tone, "     ")
        if full:
            users = f"used by {', '.join(module.used_by)}" if module.used_by else ""
            lines += paragraphs((rung.why, users), width, Tone.DIM, "     ")
    if not full and (ok or not _marked(node, facts, UNKNOWN_MARK)):
        lines.append(_folded(ok, bool(lines)))
    if facts.rules_unread:
        lines.extend(wrapped(unread_rules(facts), width, Tone.WARNING))
    return lines


def _folded(ok: int, are_others: bool) -> Line:
    """Return "✓ 9 modules loaded"."""
    if not ok:
        return (Run("no module is loaded", Tone.DIM),)
    modules = f"{plural(ok, 'other module' if are_others else 'module')} loaded"
    return (Run("✓", Tone.GOOD), Run(f" {modules}"))


def unread_rules(facts: ModuleFacts) -> str:
    """Return which files of modprobe.d and modules-load.d could not be read."""
    return f"{UNKNOWN_MARK} {', '.join(facts.rules_unread)} could not be read: they may blacklist a module"


def strip(
    node: Node, refcnts: dict[str, Maybe[int]], width: int, marks: Mapping[str, Run] | None = None
) -> list[Line]:
    """Return the modules that need attention: "✗nvidia_peermem not loaded  ✓ 8 other modules loaded"."""
    facts = node.modules
    if isinstance(facts, Unknown):
        return wrapped(f"Modules: {facts}", width, Tone.WARNING)[:1]
    shown: list[Line] = []
    ok = 0
    for rung in facts.ladder:
        module = facts.modules[rung.module]
        mark, tone = mark_of(node, rung, module)
        finding = (marks or {}).get(rung.module)
        if mark in "✓–" and finding is None:
            ok += mark == "✓"
            continue
        state = UNKNOWN_MARK if isinstance(module.state, Unknown) else module.state.value
        shown.append((finding or Run(mark, tone), Run(f"{rung.module} "), Run(state, Tone.DIM)))
    title, rest = Run("Modules ", Tone.TITLE), _folded(ok, bool(shown))
    for count in range(len(shown), 0, -1):
        left_out = len(shown) - count
        more: Line = (Run(f"+{left_out} more", Tone.WARNING),) if left_out else ()
        line = joined(filter(None, (*shown[:count], more, rest)))
        if width_of((title, *line)) <= width:
            return [(title, *line)]
    return [cut((title, *joined((*shown, rest))), width)]
