"""All-reduce over many nodes: the answer first, then each run, and what NCCL's own diagnostics report."""

from __future__ import annotations

from probes.base.text import join_limited, plural, printable
from probes.base.unknown import Unknown
from probes.fleet.collective import Outcome, RingReport, RingResult
from probes.fleet.fault_search import Fault, Where
from probes.fleet.node_set import fold_nodes
from widgets.base.columns import Column, draw_columns
from widgets.base.figures import short
from widgets.base.lines import Line, Run, Tone, line, paragraphs, section, wrapped
from widgets.fleet.pairs import draw_left_out

_MOST_RUNS = 20
_MOST_NAMES = 6
_MOST_CHARACTERS = 300
_TONES = {Outcome.PASSED: Tone.GOOD, Outcome.STAGED: Tone.BAD, Outcome.SLOW: Tone.BAD}


def draw_ring(report: RingReport, width: int) -> list[Line]:
    """Return the whole answer."""
    lines: list[Line] = []
    for text, tone in ring_answers(report):
        lines += wrapped(text, width, tone)
    lines += paragraphs(_advice(report), width, indent="  ")
    lines += draw_left_out(report.left_out, report.rails_left_out, width)
    lines += _draw_runs(report, width)
    diagnostics = dict.fromkeys(text for result in report.results for text in result.diagnostics)
    return lines + section("NCCL's own diagnostics", paragraphs(diagnostics, width, indent="  "))


def ring_answers(report: RingReport) -> list[tuple[str, Tone]]:
    """Return what is wrong, worst first, a sentence each; or that nothing is."""
    whole = report.whole
    if whole is None:
        return [(f"{plural(len(report.nodes), 'node')}: nothing was measured", Tone.WARNING)]
    found = [
        (f"{each.node} uses host memory on {join_limited(each.staged_nics, _MOST_NAMES)}", Tone.BAD)
        for each in report.staged
    ]
    found += [(fault_words(fault, report), Tone.BAD) for fault in report.faults]
    return [*found, (result_words(whole), _TONES.get(whole.outcome, Tone.WARNING))]


def result_words(result: RingResult) -> str:
    """Return "4 nodes, 32 GPUs: each NIC carries 368 of 400 Gb/s, 92 % (bus bandwidth 368 GB/s), …"."""
    who = f"{plural(len(result.group.nodes), 'node')}, {plural(result.gpus, 'GPU')}"
    if isinstance(result.bus_gbps, Unknown):
        where = f" on {result.failed_node}" if result.failed_node else ""
        return f"{who}: the job failed{where}: {_failure(result)}"
    figure = f"bus bandwidth {short(result.bus_gbps / 8)} GB/s"
    if result.outcome is Outcome.NOT_TESTED:
        return f"{who}: not tested ({figure}): {result.why}"
    if result.outcome is Outcome.STAGED:
        return f"{who}: {figure}; {result.why}"
    words = result.assessment.words or "an unknown share of its rate"
    total = sum(each.total for each in result.channels)
    return (
        f"{who}: each NIC carries {words} ({figure}), with GPUDirect RDMA on all {plural(total, 'channel')}"
    )


def fault_words(fault: Fault, report: RingReport) -> str:
    """Return what a fault belongs to, and what the fewest nodes with it reach."""
    nodes, result = fold_nodes(fault.nodes), _smallest(fault, report)
    numbers = ", ".join(map(str, fault.rails))
    rails = f" on rail{'s' * (len(fault.rails) > 1)} {numbers}" if fault.rails else ""
    figure, is_failed = "", result is not None and result.outcome is Outcome.FAILED
    if result is not None:
        figure = f": {_failure(result)}" if is_failed else f": each NIC carries {result.assessment.words}"
    singular, many = ("fails", "fail") if is_failed else ("is slow", "are slow")
    words = {
        Where.NODE: f"{nodes} {singular} with other nodes too",
        Where.NIC: f"{nodes} {singular}{rails} with other nodes too",
        Where.PAIR: f"{nodes} {many}{rails} together, and not with other nodes",
        Where.RAIL: f"all {plural(len(fault.nodes), 'node')} {many}{rails}",
        Where.BETWEEN: f"{nodes} and {fold_nodes(fault.others)} {many} together, and not alone"
        if fault.others
        else f"{nodes} {many} all together, and no two of them",
        Where.EVERYWHERE: f"every group of {nodes} {singular}",
    }[fault.where]
    if fault.where is Where.PAIR and len(report.nodes) == len(fault.nodes):
        words = f"{nodes} {many}{rails} together, and two nodes do not show which end it is"
    return f"{words}{figure}"


def _smallest(fault: Fault, report: RingReport) -> RingResult | None:
    """Return the result of the smallest group with the fault, with as few nodes of other faults as can be."""
    others = {node for each in report.faults for node in each.nodes} - {*fault.nodes, *fault.others}
    of_fault = [
        result
        for result in report.results
        if {*fault.nodes, *fault.others} <= set(result.group.nodes)
        and result.outcome in (Outcome.SLOW, Outcome.FAILED)
        and (not result.group.rails or set(fault.rails) & set(result.group.rails))
    ]

    def size(result: RingResult) -> tuple[int, int, int]:
        group = result.group
        return len(group.nodes), len(others & set(group.nodes)), len(group.rails) or 64

    return min(of_fault, key=size, default=None)


def _failure(result: RingResult) -> str:
    why = result.bus_gbps.detail if isinstance(result.bus_gbps, Unknown) else ""
    return printable(why, _MOST_CHARACTERS)


def _advice(report: RingReport) -> list[str]:
    texts = []
    names = [each.node for each in report.staged]
    names += [
        node for fault in report.faults if fault.where in (Where.NODE, Where.NIC) for node in fault.nodes
    ]
    if names:
        texts.append(f"Run gdrtop check on {join_limited(dict.fromkeys(names), _MOST_NAMES)}.")
    if any(fault.where is Where.RAIL for fault in report.faults):
        texts.append("Check the leaf switch of the rail: all nodes have it in common.")
    if any(fault.where is Where.BETWEEN for fault in report.faults):
        texts.append("The links between the switches may be over-subscribed, or a cable between them is bad.")
    if any(fault.where in (Where.PAIR, Where.EVERYWHERE) for fault in report.faults):
        texts.append("Measure each NIC with gdrtop fleet bench, and run gdrtop check on one of these nodes.")
    return texts


def _draw_runs(report: RingReport, width: int) -> list[Line]:
    shown = report.results[:_MOST_RUNS]
    if len(report.results) < 2:
        return []
    columns = [
        Column("nodes", [line(fold_nodes(each.group.nodes)) for each in shown], 1, grows=True, least=12),
        Column("rails", [line(", ".join(map(str, each.group.rails)) or "all") for each in shown], 2),
        Column("busbw GB/s", [line(_bus(each)) for each in shown], 2, to_right=True),
        Column("NIC Gb/s", [line(_nic(each)) for each in shown], 1, to_right=True),
        Column("transport", [line(each.transport.value) for each in shown], 3),
        Column("result", [line(each.outcome.value) for each in shown], 1),
    ]
    lines = list(draw_columns(columns, [""] * len(shown), width))
    if len(report.results) > len(shown):
        lines.append(line(Run(f"… and {len(report.results) - len(shown)} more (--json lists all)", Tone.DIM)))
    return section(f"Runs: {len(report.results)}", lines)


def _bus(result: RingResult) -> str:
    return "failed" if isinstance(result.bus_gbps, Unknown) else short(result.bus_gbps / 8)


def _nic(result: RingResult) -> str:
    if result.nic_gbps is None:
        return "?"
    limit = "" if result.limit_gbps is None else f" of {short(result.limit_gbps)}"
    return f"{short(result.nic_gbps)}{limit}"
