"""Bandwidth between pairs of nodes: the answer first, then slow tests, then each rail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from probes.bandwidth.results.percentiles import spread_of
from probes.base.grouping import grouped
from probes.base.text import join_limited, plural, printable
from probes.base.unknown import Unknown
from probes.fleet.attribution import SLOW_SHARE, Crowd, Culprit, PairResult, PairsReport, Place
from widgets.base.columns import Column, draw_columns
from widgets.base.figures import short
from widgets.base.lines import Line, Run, Tone, line, paragraphs, section, wrapped
from widgets.fleet.cables import fault_words

_MOST_TESTS = 20
_MOST_NAMES = 6
_PAIR_ONLY = 2  # nodes, of which no test shows which end is slow


def draw_pairs(report: PairsReport, width: int) -> list[Line]:
    """Return the whole answer."""
    lines: list[Line] = []
    for text, tone in answers(report):
        lines += wrapped(text, width, tone)
    lines += paragraphs(advice(report), width, indent="  ")
    lines += draw_left_out(report.left_out, report.rails_left_out, width)
    lines += _draw_slow(report, width)
    lines += section("Slow NICs, with their best partner", _draw_standings(report, width))
    lines += _draw_rails(report, width)
    return [*lines, *_draw_leaves(report, width)]


def answers(report: PairsReport) -> list[tuple[str, Tone]]:
    """Return what is wrong, worst first, a sentence each; or that nothing is."""
    attribution = report.attribution
    count = plural(len(report.nodes), "node")
    if not report.results:
        return [(f"{count}: nothing was measured", Tone.WARNING)]
    found: list[tuple[str, Tone]] = []
    for culprit in attribution.culprits:
        comma = "," if culprit.place is Place.NIC else ":"
        found.append((f"{count}{comma} {culprit_words(culprit)}", Tone.BAD))
    found += [(_crowd_words(crowd, count), Tone.WARNING) for crowd in attribution.crowds]
    for low in attribution.below_limit:
        share = 100 * low.gbps / low.limit_gbps
        text = (
            f"{count}, {low.memory.words}: the usual NIC reaches {short(low.gbps)} Gb/s, {share:.0f} % of the"
            f" {short(low.limit_gbps)} Gb/s that ports and PCIe links allow"
        )
        found.append((text, Tone.WARNING))
    for pair in attribution.sparks:
        sign = f" ({pair.sign})" if pair.sign else ""
        text = (
            f"{pair.server} with {pair.client}: all functions together reach {short(pair.gbps)} Gb/s{sign};"
            f" at least {short(pair.least_gbps)} Gb/s is expected for DGX Spark"
        )
        found.append((text, Tone.WARNING))
    if attribution.unexplained:
        tests = plural(len(attribution.unexplained), "test")
        few = len(report.nodes) <= _PAIR_ONLY
        why = "with two nodes, gdrtop cannot tell which end is slow"
        text = f"{tests} slow or failed: {why if few else 'no node, NIC or rail explains them'}"
        found.append((f"{count}, {text}", Tone.WARNING))
    found += [(fault_words(fault), Tone.WARNING) for fault in report.cable_faults]
    if found:
        return found
    figures = ", ".join(
        f"{short(gbps)} Gb/s with {memory.words}" for memory, gbps in attribution.references.items()
    )
    rails = plural(len(report.rails), "rail")
    return [(f"{count}, {rails}: no pair is slow. The usual NIC reaches {figures}.", Tone.GOOD)]


def culprit_words(culprit: Culprit) -> str:
    """Return "rail 3: gpu17 mlx5_3 reaches 180 of 390 Gb/s with every partner"."""
    subject = {
        Place.RAIL: f"rail {culprit.rail}",
        Place.NODE: culprit.node,
        Place.NIC: f"rail {culprit.rail}: {culprit.node} {culprit.nic}",
    }[culprit.place]
    if culprit.failure or culprit.gbps is None:
        does = "fails"
    elif culprit.reference_gbps is None:
        does = f"reaches {short(culprit.gbps)} Gb/s"
    else:
        does = f"reaches {short(culprit.gbps)} of {short(culprit.reference_gbps)} Gb/s"
    if culprit.place is Place.RAIL:
        who = f"in {culprit.slow} of {plural(culprit.partners, 'test')}"
    elif culprit.slow == culprit.partners:
        who = "with every partner"
    else:
        who = f"with {culprit.slow} of {culprit.partners} partners"
    where = " on most rails" if culprit.place is Place.NODE else ""
    memory = ", only with GPU memory" if culprit.only_gpu_memory else ""
    failure = f" ({printable(culprit.failure.partition('. ')[0], 200)})" if culprit.failure else ""
    return f"{subject} {does}{where} {who}{memory}{failure}"


def _crowd_words(crowd: Crowd, count: str) -> str:
    return (
        f"{count}, {crowd.memory.words}: {crowd.slow} of {crowd.tests} tests reach only"
        f" {short(crowd.gbps)} of {short(crowd.top_gbps)} Gb/s, and no node, NIC or rail explains them"
    )


def advice(report: PairsReport) -> list[str]:
    """Return what to look at, a sentence each."""
    attribution, texts = report.attribution, []
    of_nodes = [each for each in attribution.culprits if each.node]
    gpu_only = dict.fromkeys(each.node for each in of_nodes if each.only_gpu_memory)
    others = dict.fromkeys(each.node for each in of_nodes if not each.only_gpu_memory)
    if gpu_only:
        names = _names(gpu_only)
        texts.append(f"Host memory is not slow there: check the path between GPU and NIC on {names}.")
    if others:
        texts.append(f"Check cable, port and PCIe link with gdrtop check on {_names(others)}.")
    if any(each.place is Place.RAIL for each in attribution.culprits):
        texts.append("Check the leaf switch of the rail: all nodes have it in common.")
    if attribution.crowds:
        texts.append(
            "The links between the switches may be over-subscribed, or congested by other jobs. On RoCE, "
            "measure a slow pair with more queue pairs before you blame them: gdrtop bench --queue-pairs 4."
        )
    if attribution.below_limit:
        texts.append("All nodes may have the same fault: run gdrtop check on one of them.")
    if attribution.sparks:
        texts.append("Run gdrtop check on both nodes, and gdrtop bench --sweep --ssh for each function.")
    if attribution.unexplained and len(report.nodes) > _PAIR_ONLY:
        texts.append("Run again with --full to measure each of these nodes with all others.")
    if report.cable_faults:
        texts.append("Check the cables of these nodes.")
    return texts


def draw_left_out(nodes: Mapping[str, str], rails: Mapping[str, str], width: int) -> list[Line]:
    """Return what is not measured, with the same reason folded into one line."""
    lines: list[Line] = []
    for title, left_out in (("node", nodes), ("rail", rails)):
        by_reason = grouped((reason, name) for name, reason in left_out.items())
        texts = (f"{_names(names)}: {printable(reason, 400)}" for reason, names in by_reason.items())
        below = paragraphs(texts, width, Tone.WARNING, "  ")
        lines += section(f"Not measured: {plural(len(left_out), title)}", below)
    return lines


def _draw_slow(report: PairsReport, width: int) -> list[Line]:
    bad = report.bad
    if not bad:
        return []
    shown = bad[:_MOST_TESTS]
    columns = [
        Column("client", [line(f"{test.client.node} {test.client.nic}") for test in shown], 1),
        Column("server", [line(f"{test.server.node} {test.server.nic}") for test in shown], 1),
        Column("rail", [line(str(test.rail)) for test in shown], 2, to_right=True),
        Column("memory", [line(test.memory.value) for test in shown], 2),
        Column("Gb/s", [line(_figure(test)) for test in shown], 1, to_right=True),
        Column("why", [line(_why(test)) for test in shown], 3, least=12, grows=True),
    ]
    if all(not _why(test) for test in shown):
        columns.pop()
    lines = list(draw_columns(columns, [""] * len(shown), width))
    if len(bad) > len(shown):
        lines.append(line(Run(f"… and {len(bad) - len(shown)} more (--json lists all)", Tone.DIM)))
    return section(f"Slow or failed: {plural(len(bad), 'test')}", lines)


def _figure(test: PairResult) -> str:
    return "failed" if isinstance(test.gbps, Unknown) else short(test.gbps)


def _why(test: PairResult) -> str:
    return printable(test.gbps.detail, 200) if isinstance(test.gbps, Unknown) else ""


def _draw_standings(report: PairsReport, width: int) -> list[Line]:
    references = report.attribution.references
    slow = (
        f"rail {rail}: {end.node} {end.nic} {memory.value}: {short(gbps)} Gb/s, {standing.words('nodes')}"
        for (end, rail, memory), (gbps, standing) in report.standings.items()
        if gbps < SLOW_SHARE * references.get(memory, 0.0)
    )
    return paragraphs(list(slow)[:_MOST_TESTS], width, indent="  ", hanging="  ")


def _draw_rails(report: PairsReport, width: int) -> list[Line]:
    """Return a row a rail: median, lowest and highest figure with each memory."""
    rails = report.rails
    if not rails:
        return []
    columns = [Column("rail", [line(str(rail)) for rail in rails], 1, to_right=True)]
    for memory in report.attribution.references:
        of_memory = [result for result in report.results if result.memory is memory]
        figures = [[result.gbps for result in of_memory if result.rail == rail] for rail in rails]
        known = [[gbps for gbps in of_rail if not isinstance(gbps, Unknown)] for of_rail in figures]
        spreads = [spread_of(values, values[-1]) if values else None for values in known]
        for name, importance in (("median", 1), ("low", 1), ("p5", 3), ("p95", 3), ("high", 3)):
            title = f"{memory.value} {name}" if name == "median" else name
            shown = [None if spread is None else getattr(spread, name) for spread in spreads]
            if name in ("median", "low", "high") or any(shown):  # else too few for percentiles
                cells = [line("?" if gbps is None else short(gbps)) for gbps in shown]
                columns.append(Column(title, cells, importance, to_right=True, least=6))
        counts = [line(str(len(values))) for values in known]
        columns.append(Column("tests", counts, 4, to_right=True, least=6))
    return section("Each rail, Gb/s", draw_columns(columns, [""] * len(rails), width))


def _draw_leaves(report: PairsReport, width: int) -> list[Line]:
    """Return at which leaf switches the rails end, in one line if none is known."""
    if not report.leaves:
        return []
    lines: list[Line] = [(), line(Run("Leaf switches", Tone.TITLE))]
    reasons = Counter(str(why) for rail in report.leaves for why in rail.unknown.values())
    for rail in report.leaves:
        known_count = len(rail.leaves) - len(rail.unknown)
        if not known_count:
            continue
        usual = rail.usual
        only = usual.label if rail.count == 1 and usual is not None else ""
        where = only or plural(rail.count, "switch", "switches")
        text = f"rail {rail.rail}: {plural(known_count, 'node')} at {where}"
        lines += wrapped(text, width, indent="  ")
    texts = (f"unknown for {plural(count, 'port')} ({reason})" for reason, count in reasons.most_common(3))
    return lines + paragraphs(texts, width, Tone.DIM, "  ")


def _names(names: Iterable[str] | Mapping[str, object]) -> str:
    return join_limited((printable(name, 80) for name in names), _MOST_NAMES)
