"""The lines of each panel of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from probes.base.latest import Latest
from probes.base.unknown import Maybe, known
from probes.checks.judgment import Judgment
from probes.checks.statements import PathStatement
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.node import Node
from probes.queries.finding import Finding
from probes.queries.jobs import far_from_gpu
from probes.queries.usable_here import UsableHere
from probes.topology.paths import Topology
from tui.screens.overview.readings import Readings
from tui.screens.overview.selection import Selection
from widgets.base.figures import graph, short
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.doctor import findings
from widgets.live import job_lines, job_traffic
from widgets.node import gpudirect, matrix, modules, nic_detail, traffic
from widgets.node import path as path_drawing
from widgets.node import topology as topology_drawing
from widgets.node.highlights import NOTHING_LIMITED, Highlights
from widgets.node.topology import Form

if TYPE_CHECKING:
    from probes.bandwidth.model.result import Result
    from probes.snapshot.examination import Examination


# What explains the figures in the matrix, by whether they were measured.
_FIGURES = {False: "Gb/s: what the NIC carries now for the GPU", True: "( ) Gb/s measured"}


_ROOM_FOR_RANKS = 60  # cells of the jobs, from which on their ranks are listed


@dataclass
class Checked:
    """What the checks found."""

    judgment: Judgment | None = None
    examination: Examination | None = None
    detours: frozenset[tuple[str, str]] = frozenset()
    marks: dict[str, Run] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)  # "slow", by device
    usable: UsableHere = NOTHING_LIMITED
    unproven: dict[tuple[str, str], str] = field(default_factory=dict)  # why data may be wrong, by (GPU, NIC)
    can_load_modules: bool = False
    failure: str = ""  # why the node could not be checked

    @property
    def findings(self) -> tuple[Finding, ...] | None:
        """Those found; None: not checked yet."""
        return self.judgment.found if self.judgment is not None and self.judgment.is_checked else None

    @property
    def paths(self) -> tuple[PathStatement, ...] | None:
        """What the judgment states of the paths; None before the first reading."""
        return None if self.judgment is None else self.judgment.paths

    @property
    def processes(self) -> Maybe[ProcessFacts] | None:
        """The processes that use GPUs or RDMA; None: not checked yet."""
        return self.examination.processes if self.examination is not None else None


class Panels:
    """Draws the panels from what was read, checked, measured and selected."""

    def __init__(self, readings: Readings, selection: Selection) -> None:
        self._readings, self._selection = readings, selection
        self.checked = Checked()
        self.measured: dict[tuple[str, str], Result] = {}  # by GPU and NIC
        self._far_pids: Latest[tuple[int, ...]] = Latest()
        self._jobs_without_ranks: Latest[list[Line]] = Latest()

    def draw(
        self,
        node: Node,
        topology: Topology,
        panel: str,
        width: int,
        alone: bool,
        rows: int = 0,
        form: Form | None = None,
    ) -> Sequence[Line]:
        """Return a panel's lines; `alone` with all details, the topology in the given form.

        `rows`: of the panel, 0 for as few as needed; what is left shows more: the fixes of findings, the
        ranks of jobs, longer graphs of rates, the ends of a path.
        """
        readings, marks = self._readings, self.checked.marks
        match panel:
            case "findings":
                return self._findings(topology, width, rows)
            case "jobs":
                return self._jobs(node, width, rows, alone)
            case "modules":
                return modules.draw(node, readings.refcnts, width, full=alone, marks=marks)
            case "gpudirect":
                history = readings.histories["refcnt"]
                drawn = gpudirect.draw(node, self.checked.paths, readings.peermem, history, width, alone)
                return [*self.folded_modules(node, width), *drawn]
            case "traffic":
                return self._traffic(node, width, alone, rows)
            case "rates":
                is_tall = rows >= self.tall_rates_rows
                histories = readings.port_histories
                return traffic.draw_ports(node, readings.live, histories, width, marks, is_tall)
            case "matrix":
                return self._matrix(topology, width, alone)
            case "path":
                return self._path(topology, width, alone, rows)
        highlights = self.highlights(topology)
        return topology_drawing.draw(
            node, topology, width, readings.live, highlights, form, partial(self._trends, topology)
        )

    def folded_modules(self, node: Node, width: int) -> list[Line]:
        """Return the modules as one line of the panel of the paths, if nothing is wrong with them."""
        lines = modules.draw(node, self._readings.refcnts, width, marks=self.checked.marks)
        return lines if len(lines) == 1 and lines[0][0].text == "✓" else []

    @property
    def tall_rates_rows(self) -> int:
        """The rows of the rates with two lines a port."""
        return 2 * len(self._readings.port_histories) + 1

    def job_rows(self, rows: int, width: int) -> int:
        """Return the rows of the jobs, with their ranks one below the other where there is room for those."""
        sample = self._readings.live_sample
        has_ranks = sample is not None and width >= _ROOM_FOR_RANKS
        return rows + (job_traffic.rows_for(sample) if has_ranks and sample is not None else 0)

    @property
    def has_nothing_to_list(self) -> bool:
        """Whether the panel of the findings would only say that there are none."""
        checked = self.checked
        judgment = checked.judgment
        if checked.failure or judgment is None or not judgment.is_checked or judgment.listed:
            return False
        return judgment.verdict.state.has_counts

    def _trends(self, topology: Topology, end: str, cells: int) -> list[Line]:
        """Return the graphs of a GPU, or of each port of a NIC, in the busier direction."""
        readings, seconds = self._readings, traffic.SPARK_SECONDS / cells
        history = readings.gpu_histories.get(end)
        if history is not None:
            top = traffic.gpu_link_gbps(topology, end)
            return [graph(history.buckets(cells, seconds), top or None)]
        device = readings.devices.get(end)
        graphs: list[Line] = []
        for port in device.ports if device is not None else ():
            past = readings.port_histories.get((end, port.number), ())
            pairs = zip(*(history.buckets(cells, seconds) for history in past), strict=True)
            values = [max((value for value in pair if value is not None), default=None) for pair in pairs]
            graphs.append(graph(values, known(port.rate_gbps, None)))
        return graphs

    def highlights(self, topology: Topology) -> Highlights:
        """Return what stands out in the drawings of the topology."""
        path, end = self._selection.path(self.checked.detours), self._selection.end
        is_marked = not self._selection.is_on_findings  # one row of the screen is
        return Highlights(
            end if is_marked else "",
            frozenset((path.b,) if is_marked else (path.a, path.b)) if end and path else frozenset(),
            frozenset(hop.id for hop in path.hops[1:-1]) if end and path else frozenset(),
            self.checked.marks,
            self._measured_of_gpus(topology),
            self.checked.detours,
            self._readings.roles,
            self.checked.usable,
            self._selection.matching(),
            self.checked.words,
            self.checked.unproven,
        )

    def _measured_of_gpus(self, topology: Topology) -> dict[str, Run]:
        """Return the last result of each GPU's path to its best NIC."""
        if not self.measured:
            return {}
        from widgets.bandwidth.result import short_result

        best = ((gpu, nics[0]) for gpu, nics in topology.best_nics.items() if nics)
        found = {pair[0]: short_result(self.measured[pair]) for pair in best if pair in self.measured}
        return {gpu: run for gpu, run in found.items() if run.text}

    def _findings(self, topology: Topology, width: int, rows: int) -> list[Line]:
        checked = self.checked
        if checked.failure:
            return wrapped(f"The node could not be checked: {checked.failure}", width, Tone.BAD)
        if checked.judgment is None or not checked.judgment.is_checked:
            return [(Run("checking…", Tone.DIM),)]
        first = next((finding.id for finding in checked.judgment.listed), "")
        selected, is_focused = self._selection.finding or first, self._selection.is_on_findings
        return findings.draw_rows(checked.judgment, topology.labels, width, selected, rows, is_focused)

    def _jobs(self, node: Node, width: int, rows: int, alone: bool) -> list[Line]:
        """Draw the jobs with their paths and rates; `alone`: also what the last check found about them."""
        readings = self._readings
        facts, far = self.checked.processes, self._far(node)
        sample = readings.live_sample
        lines = self._jobs_without_ranks.get(
            lambda: job_lines.draw_overview(sample, facts, readings.gpus_by_pid(), width, far, alone),
            objects=(node, sample, facts, readings.live, far),
            values=(width, alone),
        )
        if sample is None or len(lines) >= rows or width < _ROOM_FOR_RANKS:
            return lines
        return lines + job_traffic.draw_ranks(sample, readings.rank_histories, width, rows - len(lines))

    def _far(self, node: Node) -> tuple[int, ...]:
        """Return the processes that are bound to CPUs far from their GPU."""
        facts = self.checked.processes
        if not isinstance(facts, ProcessFacts):
            return ()
        gpus = self._readings.live.gpus
        users = {bdf: gpu.processes for bdf, gpu in gpus.items()}
        return self._far_pids.get(lambda: far_from_gpu(node, facts, gpus), values=(node, facts, users))

    def _traffic(self, node: Node, width: int, alone: bool, rows: int) -> list[Line]:
        readings = self._readings
        has_ports = traffic.may_have_ports(node)
        tall = 1 if alone else max(1, (rows - 1) // len(traffic.TOTALS))
        lines = traffic.draw(readings.totals, readings.histories, width, readings.line_rates, has_ports, tall)
        if alone:
            histories = readings.port_histories
            lines += [(), *traffic.draw_ports(node, readings.live, histories, width, self.checked.marks)]
        return lines

    def _matrix(self, topology: Topology, width: int, alone: bool) -> Sequence[Line]:
        highlights = self.highlights(topology)
        figures = self._figures() if matrix.has_room_for_figures(topology, width) else {}
        kinds = {run.text.startswith("(") for run in figures.values()}
        texts = [text for is_measured, text in _FIGURES.items() if is_measured in kinds]
        below = matrix.legend(topology, width, highlights, texts, has_nccl_words=alone)
        if alone and self.measured:
            from widgets.bandwidth.table import draw_matrix

            newest = list(self.measured.values())
            below += [(), (Run("MEASURED", Tone.TITLE),), *draw_matrix(newest, width)]
        return matrix.draw(topology, width, highlights=highlights, figures=figures).followed_by(below)

    def has_moving_matrix(self, topology: Topology, width: int) -> bool:
        """Return whether the matrix shows figures of the newest reading."""
        sample = self._readings.live_sample
        return sample is not None and bool(sample.jobs) and matrix.has_room_for_figures(topology, width)

    def _figures(self) -> dict[tuple[str, str], Run]:
        """Return what a NIC carries for a GPU now, else what was measured, in Gb/s, by (GPU, NIC)."""
        sample = self._readings.live_sample
        figures: dict[tuple[str, str], Run] = {}
        if self.measured:
            from widgets.bandwidth.result import mark_of

            for pair, result in self.measured.items():
                if result.gbps is not None:
                    figures[pair] = Run(f"({short(result.gbps)})", mark_of(result).tone)
        rates = job_traffic.pair_rates(sample) if sample is not None else {}
        marks, none = self.checked.marks, Run("")
        for (gpu, nic), rate in rates.items():
            mark = marks.get(nic) or marks.get(gpu) or none
            figures[gpu, nic] = Run(short(rate), mark.tone)
        return figures

    def _path(self, topology: Topology, width: int, alone: bool, rows: int) -> list[Line]:
        path, end = self._selection.path(self.checked.detours), self._selection.end
        detail = self._detail(end, width, alone)
        if path is None:
            return detail or matrix.no_pairs(topology, width)
        unproven = self.checked.unproven
        doubt = unproven.get((path.a, path.b)) or unproven.get((path.b, path.a), "")
        is_detour = bool(self.checked.detours & {(path.a, path.b), (path.b, path.a)})
        lines = path_drawing.draw(topology, path, width, is_detour, doubt)
        result = self.measured.get((path.a, path.b)) or self.measured.get((path.b, path.a))
        if result is not None:
            from widgets.bandwidth.result import draw_last_result

            lines[1:1] = draw_last_result(result, self._readings.taken_at, width)
        if end:
            lines = [*path_drawing.partners_line(topology, end, width), *lines]
        if alone and detail:
            return [*detail, (), *lines]
        ends = [[(), *self._detail(each, width, True, is_live=bool(end))] for each in (path.a, path.b)]
        both = [*lines, *(line for detail in ends for line in detail)]
        if len(both) > rows:
            return [*lines, *detail]
        measured = self._measured_of_gpus(topology)
        left = rows - len(both) - 1
        others = path_drawing.best_pairs(topology, width, self.checked.detours, measured, left, unproven)
        return [*both, (), *others] if others else both

    def _detail(self, end: str, width: int, alone: bool, is_live: bool = True) -> list[Line]:
        """Describe a GPU or NIC: in short its role and counters, alone everything.

        `is_live`: with the figures of the newest reading.
        """
        readings = self._readings
        gpu = next((gpu for gpu in readings.gpus if gpu.bdf == end), None)
        if gpu is not None:
            now = readings.live.gpus.get(gpu.bdf) if is_live else None
            return nic_detail.draw_gpu(gpu, now, width, self.checked.examination) if alone else []
        device = readings.devices.get(end)
        if device is None:
            return []
        role = readings.roles.get(device.name)
        examination = self.checked.examination
        counters = nic_detail.counter_lines(examination, device, width, alone)
        if alone:
            netdevs = readings.netdev_rates if is_live else None
            return [*nic_detail.draw_nic(device, role, width, netdevs, examination), *counters]
        return [*(nic_detail.role_line(role, width) if role is not None else []), *counters]

    def strip(self, node: Node, panel: str, width: int) -> list[Line]:
        """Return modules, GPUDirect state or jobs in a line, if there is no room for their panel."""
        readings = self._readings
        if panel == "modules":
            return modules.strip(node, readings.refcnts, width, self.checked.marks)
        if panel == "gpudirect":
            history = readings.histories["refcnt"]
            return gpudirect.strip(node, self.checked.paths, readings.peermem, history, width)
        return [job_lines.strip(readings.live_sample, width)]
