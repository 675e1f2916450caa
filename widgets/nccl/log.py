"""What a log of NCCL says: the verdict and why, errors with their fix, then the facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from probes.base.text import join_limited, plural
from probes.nccl.log.facts import (
    Channels,
    Distance,
    LogFacts,
    LogVerdict,
    Mention,
    Place,
    Problem,
    Rank,
    State,
)
from probes.nccl.log.messages import is_recommended
from probes.nccl.log.verdict import TCP_NETWORKS, staged_first
from widgets.base.lines import Line, Tone, labeled_below, line, listed, section, wrapped

_MOST_RANKS = 32
_MOST_ROWS = 12
_MARKS = {
    State.ALL: ("✓", Tone.GOOD),
    State.PARTLY: ("▲", Tone.WARNING),
    State.NONE: ("✗", Tone.BAD),
    State.UNKNOWN: ("?", Tone.WARNING),
}
_FLUSHES = {"None": "none", "C2c": "over C2C", "Always": "after every receive"}
_LABEL = 12
_DIAGNOSE = (
    "For the next run, set NCCL_RUN_DIAGNOSTICS=1 once. At start, NCCL then measures between neighboring "
    "nodes, from GPU memory if their perftest can, and tests P2P between GPUs. It needs perftest on every "
    "node and takes seconds. gdrtop nccl-log explains its output."
)


def draw(facts: LogFacts, verdict: LogVerdict, width: int) -> list[Line]:
    """Return all lines, at most `width` cells each."""
    mark, tone = _MARKS[verdict.state]
    lines = wrapped(f"{mark} GPUDirect RDMA: {verdict.text}", width, tone)
    for reason in verdict.reasons:
        lines.extend(listed(f"- {reason.text}{_at(reason.places)}", width))
    for title, noun, problems in _sections(facts.problems):
        below = [row for problem in problems[:_MOST_ROWS] for row in _problem(problem, width)]
        lines += section(title, [*below, *_more(problems, noun)])
    if is_recommended(facts):
        lines.extend([(), *wrapped(_DIAGNOSE, width)])
    lines += section("Job", _job(facts, width))
    lines += section("Channels with GPUDirect RDMA", _ranks(facts, width))
    lines += section("GPU–NIC distance and limit", _distances(facts.distances, width))
    lines += section("Settings from the environment", _settings(facts, width))
    return [*lines, (), *_input(facts, width)]


def _sections(problems: Sequence[Problem]) -> Iterator[tuple[str, str, list[Problem]]]:
    errors = [problem for problem in problems if not problem.is_note]
    for follows in (False, True):
        title = "Follows from an error" if follows else "Errors"
        yield title, "problem", [problem for problem in errors if (problem.severity == "follows") is follows]
    yield "Notes", "note", [problem for problem in problems if problem.is_note]


def _more(rows: Sequence[object], noun: str, most: int = _MOST_ROWS) -> list[Line]:
    left = len(rows) - most
    nouns = plural(left, noun).partition(" ")[2]
    return [line(f"  and {left} more {nouns} (--json shows all)")] if left > 0 else []


def _at(places: Iterable[Place]) -> str:
    shown = ", ".join(map(str, places))
    return f" ({shown})" if shown else ""


def _problem(problem: Problem, width: int) -> list[Line]:
    seen = problem.seen
    count = f", {seen.count} lines, last {seen.last}" if seen.count > 1 else ""
    lines = listed(f"{'-' if problem.is_note else '✗'} {problem.title} ({seen.first}{count})", width)
    texts = {"From": ", ".join(problem.ranks), "Line": seen.text, "Cause": problem.cause, "Fix": problem.fix}
    below = (labeled_below(label, text, width, _LABEL) for label, text in texts.items())
    return [*lines, *chain.from_iterable(below)]


def _job(facts: LogFacts, width: int) -> list[Line]:
    comms = facts.communicators
    size = plural(comms.largest, "rank") if comms.largest else ""
    if comms.nodes:
        size += f" on {plural(comms.nodes, 'node')}"
    if comms.started > comms.completed and not facts.cut_lines:  # the missing lines may be those
        size += f"; {plural(comms.started - comms.completed, 'initialization')} not completed"
    flushes = (f"{_FLUSHES.get(kind, kind)} ({count})" for kind, count in facts.flushes.items())
    rows = [
        ("NCCL", _texts(facts.versions)),
        ("Job", size),
        ("Network", _texts(facts.networks)),
        ("Plugin", _texts(facts.plugins)),
        ("NICs", _nics(facts)),
        ("GPU memory", _capabilities(facts)),
        ("DMA-BUF", f"available{_at((facts.dmabuf.first,))}" if facts.dmabuf else ""),
        ("Rings", _rings(facts)),
        ("NVLS", _texts(facts.nvls)),
        ("Channels", _channel_kinds(facts)),
        ("Flush", ", ".join(flushes)),
        ("Diagnostics", _texts(facts.diagnostics)),
    ]
    return [part for label, text in rows for part in labeled_below(label, text, width, _LABEL)]


def _texts(mentions: Sequence[Mention]) -> str:
    texts = [f"{mention.text} ({mention.first})" for mention in mentions[:_MOST_ROWS]]
    left = len(mentions) - len(texts)
    return "; ".join(texts) + (f"; and {left} more" if left else "")


def _nics(facts: LogFacts) -> str:
    if facts.no_device is not None:
        return f"none found{_at((facts.no_device.first,))}"
    text = join_limited((nic.text for nic in facts.nics), 16)
    unused = unused_nics(facts)
    return f"{text}; no channel uses {', '.join(unused[:16])}" if unused else text


def unused_nics(facts: LogFacts) -> list[str]:
    """Return the NICs that no network channel of the log uses; none as long as that is uncertain."""
    names = _device_names(facts)
    used = {device for rank in facts.ranks for device in rank.devices}
    if not used or facts.more_ranks or facts.cut_lines or not used <= set(names):
        return []
    ports = {part for device in used for part in names[device].split("+")}
    found = [port.partition(":")[0] for nic in facts.nics for port in nic.text.partition(" ")[2].split("+")]
    return [name for name in dict.fromkeys(found) if name not in ports]


def _device_names(facts: LogFacts) -> dict[str, str]:
    """Return the NIC of each network device, "IB/0", where all lines agree."""
    names: dict[str, set[str]] = {}
    for capability in facts.capabilities:
        names.setdefault(f"{capability.network}/{capability.number}", set()).add(capability.name)
    return {device: next(iter(found)) for device, found in names.items() if len(found) == 1}


def _capabilities(facts: LogFacts) -> str:
    parts = []
    nics = [capability for capability in facts.capabilities if capability.network not in TCP_NETWORKS]
    for is_enabled, word in ((True, "possible"), (False, "not possible")):
        same = [capability for capability in nics if capability.is_enabled is is_enabled]
        if same:
            names = join_limited(dict.fromkeys(capability.name for capability in same), 16)
            parts.append(f"{word} with {names} ({same[0].seen.first})")
    return "; ".join(parts)


def _rings(facts: LogFacts) -> str:
    rings = facts.rings
    if not rings.connected:
        return ""
    text = f"{plural(rings.connected, 'connection')}"
    if rings.gdr or rings.no_gdr:
        first = f" ({rings.first_no_gdr})" if rings.first_no_gdr else ""
        text += f", GDR 1 in {rings.gdr} and GDR 0 in {rings.no_gdr}{first}"
    return text


def _channel_kinds(facts: LogFacts) -> str:
    parts = [f"{facts.channels.total} network"] if facts.channels.total else []
    for noun, count in (
        ("through another GPU's NIC (PXN)", sum(rank.pxn for rank in facts.ranks)),
        ("shared", sum(rank.shared for rank in facts.ranks)),
        ("over PCIe on a C2C platform", sum(rank.c2c_pci for rank in facts.ranks)),
    ):
        if count:
            parts.append(f"{count} of them {noun}")
    spans = "between and inside" if facts.communicators.nodes != 1 else "inside"
    for count, where in (
        (facts.local_channels, "inside nodes"),
        (facts.nvlink_channels, f"{spans} nodes over NVLink"),
    ):
        if count:
            parts.append(f"{count} {where}")
    return ", ".join(parts)


def _ranks(facts: LogFacts, width: int) -> list[Line]:
    ranks = staged_first(facts.ranks)
    if not ranks:
        return []
    names = _device_names(facts)
    is_one_file = len(facts.files) == 1
    rows = [_rank_cells(rank, names, is_one_file) for rank in ranks[:_MOST_RANKS]]
    header = ("rank", "host:pid[GPU]", "send", "receive", "network", "first line")
    widths = [max(len(cells[column]) for cells in (header, *rows)) for column in range(len(header))]
    lines: list[Line] = []
    for cells in (header, *rows):
        text = "  ".join(f"{cell:<{wide}}" for cell, wide in zip(cells, widths, strict=True))
        lines.extend(listed(text, width, hang="    ") if len(text) + 2 > width else [line(f"  {text}")])
    without = len(facts.ranks) - len(ranks)
    lines.extend(_more(ranks, "rank", _MOST_RANKS))
    if facts.more_ranks:
        lines.append(line(f"  and more ranks; the table ends at {len(facts.ranks)}"))
    if without:
        noun = "rank has" if without == 1 else "ranks have"
        lines.append(line(f"  {without} other {noun} no network channel in this log"))
    return lines


def _rank_cells(rank: Rank, names: dict[str, str], is_one_file: bool) -> tuple[str, ...]:
    where = f"{rank.host}:{rank.pid}[{rank.device}]" if rank.pid is not None else "?"
    devices = ", ".join(
        f"{device} {names[device]}" if device in names else device for device in rank.devices[:4]
    )
    if len(rank.devices) > 4:
        devices += ", …"
    place = rank.first_staged or rank.first_gdr
    first = "" if place is None else str(place.line) if is_one_file else str(place)
    return (
        "?" if rank.rank is None else str(rank.rank),
        where,
        _of(rank.send),
        _of(rank.receive),
        devices,
        f"{first}, staged" if rank.first_staged else first,
    )


def _of(channels: Channels) -> str:
    if not channels.total:
        return "-"
    unknown = f" ({channels.unknown}?)" if channels.unknown else ""
    return f"{channels.gdr} of {channels.total}{unknown}"


def _distances(distances: Sequence[Distance], width: int) -> list[Line]:
    lines: list[Line] = []
    ordered = sorted(distances, key=lambda row: row.is_enabled)
    for row in ordered[:_MOST_ROWS]:
        words = f"{row.words[0]}, limit {row.words[1]}" if row.words else "numbers of an unknown version"
        reads = {None: "", True: ", send", False: ", receive"}[row.reads]
        state = "enabled" if row.is_enabled else "disabled"
        text = f"GPU {row.gpu}  NIC {row.nic}  {state}{reads}: {words} ({row.distance}, {row.limit})"
        lines.extend(listed(f"{text}  {row.seen.first}", width))
    return [*lines, *_more(ordered, "pair")]


def _settings(facts: LogFacts, width: int) -> list[Line]:
    lines: list[Line] = []
    for setting in facts.settings[:_MOST_RANKS]:
        meaning = f": {setting.meaning}" if setting.meaning else ""
        lines.extend(listed(f"{setting.name}={setting.value}{meaning} ({setting.seen.first})", width))
    return [*lines, *_more(facts.settings, "setting", _MOST_RANKS)]


def _input(facts: LogFacts, width: int) -> list[Line]:
    lines_read = sum(file.lines for file in facts.files)
    size = sum(file.size_bytes for file in facts.files) / (1 << 20)
    parts = (plural(len(facts.files), "file"), f"{size:.1f} MiB", plural(lines_read, "line"))
    text = f"Read {', '.join(parts)}; used {plural(facts.nccl_lines, 'line')} from NCCL or PyTorch"
    if facts.cut_lines:
        text += f", {facts.cut_lines} of them cut off"
    if facts.left_out:
        text += f"; {facts.left_out} more lines were only counted"
    return wrapped(f"{text}.", width, Tone.DIM)
