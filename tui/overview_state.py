"""What the overview shows: the newest facts, the histories, the selection; and each panel's lines.

Knows nothing of Textual. It is loaded after the first paint, for it brings all of the probes with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from probes.checks.finding import Finding
from probes.checks.summary import summed_up
from probes.checks.verdict import Verdict
from probes.gpudirect import PeermemReading
from probes.history import History
from probes.node import Node
from probes.platform import PlatformFacts
from probes.rates import PortRate, Reading, port_rates
from probes.topology import Path, Topology
from probes.unknown import Maybe, Unknown, known
from tui.sampler import Probed, Replayed, Sampled
from widgets import (
    gpudirect_drawing,
    ladder_drawing,
    matrix_drawing,
    path_drawing,
    topology_drawing,
    traffic_drawing,
    verdict_drawing,
)
from widgets.endpoint_lines import NOTHING_LIVE, Live
from widgets.findings_drawing import marks_of
from widgets.lines import Line, Run, Tone, wrapped
from widgets.topology_drawing import Lit

if TYPE_CHECKING:  # loaded once something was measured
    from probes.bandwidth.result import Result


def _empty_histories() -> dict[str, History]:
    return {name: History() for name in ("refcnt", "NIC ↑", "NIC ↓", "GPU ↑", "GPU ↓")}


class OverviewState:
    """Facts and selection; changes only by `take` and the keys' methods."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._topology: Topology | None = None
        self._reading: Reading | None = None
        self._before: Reading | None = None
        self._taken_at = 0.0
        self._measured: dict[tuple[str, str], Result] = {}  # by GPU and NIC
        self._rates: dict[tuple[str, int], PortRate] = {}
        self._histories = _empty_histories()
        self._selected = ""
        self._partner = 0
        self.verdict: Verdict | None = None  # with what the doctor found; None before the first reading
        self._judged: Verdict | None = None
        self._findings: tuple[Finding, ...] | None = None  # None: not checked yet
        self._marks: dict[str, Run] = {}

    def take(self, report: Probed | Sampled | Replayed) -> None:
        """Takes over what was read."""
        if isinstance(report, Replayed):
            if report.anew:
                self._histories = _empty_histories()
            for one in report.reports:
                self.take(one)
            return
        if isinstance(report, Probed):
            self._node, self._topology = report.node, report.topology
            self._reading, self._before, self._rates = None, None, {}
            if self._selected not in self._all_ends():
                self._selected = ""
            return
        before, self._reading = self._reading, report.reading
        self._before, self._taken_at = before, report.taken_at
        self._judged = report.verdict
        self._sum_up()
        self._rates = port_rates(before, report.reading) if before else {}
        at = report.reading.at
        refcnt = report.reading.peermem.refcnt
        self._histories["refcnt"].add(at, refcnt if isinstance(refcnt, Unknown) else float(refcnt))
        for name, total in traffic_drawing.totals(self._live()).items():
            self._histories[name].add(at, total)

    @property
    def hostname(self) -> str:
        """The node's name; "" while it is not known."""
        if self._node is None or not isinstance(self._node.platform, PlatformFacts):
            return ""
        return known(self._node.platform.hostname, "")

    def take_findings(self, findings: tuple[Finding, ...]) -> None:
        """Takes over what the doctor found last."""
        self._findings, self._marks = findings, marks_of(findings)
        self._sum_up()

    def take_measured(self, results: Iterable[Result]) -> None:
        """Takes over what bandwidth tests gave, the oldest first."""
        from probes.bandwidth.earlier import newest_of_pairs
        from probes.origin import origin_word

        if self._node is not None:
            self._measured = newest_of_pairs(results, self.hostname, origin_word(self._node.origin))

    @property
    def newest_readings(self) -> tuple[Reading | None, Reading | None]:
        """The newest reading and the one before it."""
        return self._reading, self._before

    def _sum_up(self) -> None:
        if self._judged is None or self._findings is None:
            self.verdict = self._judged
        else:
            self.verdict = summed_up(self._judged, self._findings)

    # Selection

    @property
    def selected(self) -> str:
        """The selected endpoint's id; "" for none."""
        return self._selected

    @property
    def selected_pair(self) -> tuple[str, str]:
        """The selected GPU's and NIC's ids, with the partner that is lit; "" for what is not selected."""
        if self._topology is None or not self._selected:
            return "", ""
        path = self._path(self._topology)
        ends = {self._selected} if path is None else {path.a, path.b}
        gpu = next((one.id for one in self._topology.gpus if one.id in ends), "")
        return gpu, next((one.id for one in self._topology.nics if one.id in ends), "")

    def select(self, step: int, order: list[str]) -> None:
        """Selects the endpoint `step` further in the order in which they are drawn."""
        order = order or self._all_ends()
        if not order:
            return
        at = order.index(self._selected) + step if self._selected in order else 0 if step > 0 else -1
        self._selected = order[at % len(order)]
        self._partner = 0

    def other_partner(self, step: int) -> None:
        """Takes the next of the selected endpoint's partners, nearest first."""
        self._partner += step

    def select_nothing(self) -> None:
        """Gives the selection up."""
        self._selected = ""

    def _all_ends(self) -> list[str]:
        if self._topology is None:
            return []
        return [end.id for end in (*self._topology.gpus, *self._topology.nics)]

    def _partners(self, topology: Topology) -> list[str]:
        """Who the selected endpoint can pair with, nearest first."""
        if self._selected in topology.best_nics:
            return list(topology.best_nics[self._selected])
        ranks = {
            gpu: nics.index(self._selected)
            for gpu, nics in topology.best_nics.items()
            if self._selected in nics
        }
        return sorted(ranks, key=ranks.__getitem__)

    def _path(self, topology: Topology) -> Path | None:
        """The path shown: of the selection, else of the first GPU and its best NIC."""
        partners = self._partners(topology) if self._selected else []
        if partners:
            return topology.path(self._selected, partners[self._partner % len(partners)])
        for gpu in topology.gpus:
            for nic in topology.best_nics.get(gpu.id, ())[:1]:
                return topology.path(gpu.id, nic)
        return None

    # Drawing

    def _live(self) -> Live:
        reading = self._reading
        if reading is None:
            return NOTHING_LIVE
        states = {
            port: state for port, state in reading.port_states.items() if not isinstance(state, Unknown)
        }
        return Live({} if isinstance(reading.gpus, Unknown) else reading.gpus, self._rates, states)

    def _lit(self, path: Path | None) -> Lit:
        measured = self._measured_of_gpus()
        if not self._selected:
            return Lit(marks=self._marks, measured=measured)
        if path is None:
            return Lit(self._selected, marks=self._marks, measured=measured)
        way = frozenset(hop.id for hop in path.hops[1:-1])
        return Lit(self._selected, frozenset((path.b,)), way, self._marks, measured)

    def _measured_of_gpus(self) -> dict[str, Run]:
        """What each GPU's way to its best NIC gave last."""
        if not self._measured or self._topology is None:
            return {}
        from widgets.measured_drawing import short_measured

        best = ((gpu, nics[0]) for gpu, nics in self._topology.best_nics.items() if nics)
        found = {pair[0]: short_measured(self._measured[pair]) for pair in best if pair in self._measured}
        return {gpu: run for gpu, run in found.items() if run.text}

    def _refcnts(self) -> dict[str, Maybe[int]]:
        return self._reading.module_refcnts if self._reading else {}

    def _peermem(self) -> PeermemReading | None:
        return self._reading.peermem if self._reading else None

    def lines(self, panel: str, width: int, alone: bool, as_list: bool) -> list[Line]:
        """A panel's lines; `alone` with all details, `as_list` the topology with one line a GPU."""
        node, topology = self._node, self._topology
        if node is None or topology is None:
            return []
        if panel == "modules":
            return ladder_drawing.draw(node, self._refcnts(), width, full=alone, marks=self._marks)
        if panel == "gpudirect":
            return gpudirect_drawing.draw(node, self._peermem(), self._histories["refcnt"], width, full=alone)
        if panel == "traffic":
            return traffic_drawing.draw(
                self._live(), self._histories, width, alone, {gpu.id: gpu.label for gpu in topology.gpus}
            )
        path = self._path(topology)
        if panel == "matrix":
            lines = matrix_drawing.draw(topology, width, lit=self._lit(path))
            lines += matrix_drawing.differences(topology, width)
            return [*lines, *self._measured_lines(width)] if alone else lines
        if panel == "path":
            return self._path_lines(topology, path, width)
        draw = topology_drawing.draw_list if as_list else topology_drawing.draw
        return draw(node, topology, width, self._live(), self._lit(path))

    def _path_lines(self, topology: Topology, path: Path | None, width: int) -> list[Line]:
        if path is None:
            return wrapped("No GPU and NIC to go between.", width, Tone.DIM)
        lines = path_drawing.draw(topology, path, width)
        result = self._measured.get((path.a, path.b)) or self._measured.get((path.b, path.a))
        if result is not None:
            from widgets.measured_drawing import draw_measured

            lines[1:1] = draw_measured(result, self._taken_at, width)
        if self._selected:
            lines = [*path_drawing.partners_line(topology, self._selected, width), *lines]
        return lines

    def _measured_lines(self, width: int) -> list[Line]:
        """The newest measurement of each pair, below the matrix of paths."""
        if not self._measured:
            return []
        from widgets.result_matrix import draw_matrix

        newest = list(self._measured.values())
        return [(), (Run("MEASURED", Tone.TITLE),), *draw_matrix(newest, width)]

    def strips(self, width: int) -> list[Line]:
        """Ladder and GPUDirect state in a few lines, where there is no room for their panels."""
        if self._node is None:
            return []
        lines = ladder_drawing.strip(self._node, self._refcnts(), width)
        lines.extend(gpudirect_drawing.strip(self._node, self._peermem(), self._histories["refcnt"], width))
        return lines

    def verdict_line(self) -> Line:
        """The verdict without its reason; nothing before the first reading."""
        verdict = self.verdict
        return verdict_drawing.draw(verdict, key="d") if verdict else ()
