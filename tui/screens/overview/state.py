"""What the overview shows: the newest facts, the histories, the selection; and each panel's lines.

Knows nothing of Textual. It is loaded after the first paint, for it brings all of the probes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from probes.base.history import History
from probes.base.unknown import Maybe, Unknown, known
from probes.checks.summary import summarize
from probes.facts.gpu.gpus import Gpu, GpuFacts
from probes.facts.gpudirect import PeermemReading
from probes.facts.jobs.processes import ProcessFacts
from probes.facts.node import Node
from probes.facts.rdma.devices import RdmaDevice, RdmaFacts
from probes.facts.rdma.port_health import CounterValue, PortHealthFacts, counter_values
from probes.facts.system.platform import PlatformFacts
from probes.queries.cpu_placement import far_from_gpu
from probes.queries.finding import Finding
from probes.snapshot.nic_roles import NicRole
from probes.snapshot.rates import PortRate, Reading, netdev_rates, port_rates
from probes.snapshot.verdict import Verdict
from probes.topology.paths import Path, Topology
from tui.runtime.sampler import Probed, Replayed, Sampled
from tui.screens.overview import layout as overview_layout
from tui.screens.overview.layout import Arrangement
from widgets.base.lines import Line, Run, Tone, wrapped
from widgets.doctor import findings_rows
from widgets.doctor.findings import marks_of
from widgets.node import gpudirect as gpudirect_drawing
from widgets.node import jobs as jobs_drawing
from widgets.node import matrix as matrix_drawing
from widgets.node import modules as ladder_drawing
from widgets.node import nic_detail
from widgets.node import path as path_drawing
from widgets.node import topology as topology_drawing
from widgets.node import traffic as traffic_drawing
from widgets.node import verdict as verdict_drawing
from widgets.node.endpoint_lines import NOTHING_LIVE, Detail, Live, model
from widgets.node.topology import Form, Lit, Style

if TYPE_CHECKING:  # loaded once something was measured
    from probes.bandwidth.model.result import Result
    from probes.snapshot.examination import Examination

_PORT_SAMPLES = 1200  # two minutes at ten a second
# What changes only with facts, findings or the selection, and not with each reading.
_STILL = ("findings", "matrix")
_GUTTER = 3  # the topology's border and scroll bar


def _empty_histories() -> dict[str, History]:
    return {name: History() for name in ("refcnt", *traffic_drawing.TOTALS)}


class OverviewState:
    """Facts and selection; changes only by `take…` and the keys' methods."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._topology: Topology | None = None
        self._roles: Mapping[str, NicRole] = {}
        self._reading: Reading | None = None
        self._before: Reading | None = None
        self._taken_at = 0.0
        self._measured: dict[tuple[str, str], Result] = {}  # by GPU and NIC
        self._rates: dict[tuple[str, int], PortRate] = {}
        self._netdev_rates: dict[str, PortRate] = {}
        self._histories = _empty_histories()
        self._port_histories: dict[tuple[str, int], tuple[History, History]] = {}
        self._selected = ""
        self._partner = 0
        self.selected_finding = ""
        self.word = ""  # of the filter
        self.verdict: Verdict | None = None  # with what the checks found; None before the first reading
        self._judged: Verdict | None = None
        self._findings: tuple[Finding, ...] | None = None  # None: not checked yet
        self._check_failure = ""
        self._examination: Examination | None = None
        self._detours: frozenset[tuple[str, str]] = frozenset()
        self._marks: dict[str, Run] = {}
        self._still: dict[tuple[object, ...], list[Line]] = {}
        self._fresh: dict[tuple[object, ...], list[Line]] = {}  # until the next reading
        self._forms: dict[tuple[object, ...], tuple[Form, int]] = {}

    def _change(self) -> None:
        """Something other than a reading is new: nothing drawn before holds."""
        self._still.clear()
        self._fresh.clear()
        self._forms.clear()

    def take(self, report: Probed | Sampled | Replayed) -> None:
        """Takes over what was read."""
        if isinstance(report, Replayed):
            if report.is_full:
                self._histories, self._port_histories = _empty_histories(), {}
            for one in report.reports:
                self.take(one)
            return
        if isinstance(report, Probed):
            self._node, self._topology, self._roles = report.node, report.topology, report.roles
            self._reading, self._before, self._rates, self._netdev_rates = None, None, {}, {}
            self._port_histories = {key: self._port_histories.get(key, _pair()) for key in self._ports()}
            if self._selected not in self._all_ends():
                self._selected = ""
            self._change()
            return
        before, self._reading = self._reading, report.reading
        self._before, self._taken_at = before, report.taken_at
        self._judged = report.verdict
        self._sum_up()
        had_rates = bool(self._rates)
        self._rates = port_rates(before, report.reading) if before else {}
        self._netdev_rates = netdev_rates(before, report.reading) if before else {}
        self._fresh.clear()
        if before is None or (self._rates and not had_rates):  # with live figures lines are wider
            self._forms.clear()
        at = report.reading.at
        refcnt = report.reading.peermem.refcnt
        self._histories["refcnt"].add(at, refcnt if isinstance(refcnt, Unknown) else float(refcnt))
        for name, total in traffic_drawing.totals(self._live()).items():
            self._histories[name].add(at, total)
        for key, rate in self._rates.items():
            sent, received = self._port_histories.setdefault(key, _pair())
            sent.add(at, rate.sent_gbps)
            received.add(at, rate.received_gbps)

    def _ports(self) -> list[tuple[str, int]]:
        return [(device.name, port.number) for device in self._devices().values() for port in device.ports]

    def _devices(self) -> dict[str, RdmaDevice]:
        rdma = self._node.rdma if self._node is not None else None
        return {one.name: one for one in rdma.devices} if isinstance(rdma, RdmaFacts) else {}

    def _gpus(self) -> tuple[Gpu, ...]:
        gpus = self._node.gpus if self._node is not None else None
        return gpus.gpus if isinstance(gpus, GpuFacts) else ()

    @property
    def hostname(self) -> str:
        """The node's name; "" while it is not known."""
        if self._node is None or not isinstance(self._node.platform, PlatformFacts):
            return ""
        return known(self._node.platform.hostname, "")

    def take_findings(
        self,
        findings: tuple[Finding, ...],
        examination: Examination | None = None,
        detours: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """Takes over what the checks found, of this examination, and which pairs leave their switch."""
        self._findings, self._marks, self._check_failure = findings, marks_of(findings), ""
        self._examination, self._detours = examination, detours
        if self.selected_finding not in self._finding_ids():
            self.selected_finding = ""
        self._sum_up()
        self._change()

    def fail_check(self, what: str) -> None:
        """The node could not be checked."""
        self._check_failure = what
        self._change()

    def take_measured(self, results: Iterable[Result]) -> None:
        """Takes over what bandwidth tests gave, the oldest first."""
        from probes.bandwidth.results.against_earlier import newest_by_pair
        from probes.base.origin import origin_word

        if self._node is not None:
            self._measured = newest_by_pair(results, self.hostname, origin_word(self._node.origin))
            self._change()

    @property
    def newest_readings(self) -> tuple[Reading | None, Reading | None]:
        """The newest reading and the one before it."""
        return self._reading, self._before

    def _sum_up(self) -> None:
        if self._judged is None or self._findings is None:
            self.verdict = self._judged  # without counts it says that the checks run
        else:
            self.verdict = summarize(self._judged, self._findings)

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

    def select(self, step: int, order: list[str], wraps: bool = True) -> None:
        """Selects the endpoint `step` further in the order in which they are drawn."""
        order = order or self._all_ends()
        if order:
            self.select_end(_stepped(order, self._selected, step, wraps))

    def select_end(self, end: str) -> None:
        """Selects this endpoint, with its nearest partner."""
        if end in self._all_ends():
            self._selected, self._partner = end, 0
            self._change()

    def select_finding(self, step: int, wraps: bool = True) -> None:
        """Selects the finding `step` further in the list."""
        order = self._finding_ids()
        if order:
            self.pick_finding(_stepped(order, self.selected_finding, step, wraps))

    def pick_finding(self, finding: str) -> None:
        """Selects this finding."""
        if finding in self._finding_ids():
            self.selected_finding = finding
            self._change()

    @property
    def finding_to_open(self) -> str:
        """The selected finding, else the first; "" where there is none."""
        return self.selected_finding or next(iter(self._finding_ids()), "")

    def _finding_ids(self) -> list[str]:
        return [finding.id for finding in findings_rows.listed(self._findings or ())]

    def other_partner(self, step: int) -> None:
        """Takes the next of the selected endpoint's partners, nearest first."""
        self._partner += step
        self._change()

    def select_nothing(self) -> None:
        """Gives the selection up."""
        self._selected = self.selected_finding = ""
        self._change()

    def filter(self, word: str) -> None:
        """Shows only GPUs and NICs whose name, model, address, netdev or role contains the word."""
        self.word = word.strip().lower()
        self._change()

    def _matching(self) -> frozenset[str] | None:
        """The endpoints that the filter leaves; None without a filter."""
        if not self.word or self._topology is None:
            return None
        words: dict[str, list[str]] = {
            end.id: [end.label, known(end.bdf, "")] for end in (*self._topology.gpus, *self._topology.nics)
        }
        for gpu in self._gpus():
            words.setdefault(gpu.bdf, []).extend((gpu.name, model(gpu.name)))
        for device in self._devices().values():
            of = words.setdefault(device.name, [])
            of.extend(known(port.netdev, "") for port in device.ports)
            of.extend(known(port.link_layer, "") for port in device.ports)
            of.extend([self._roles[device.name].role.value] if device.name in self._roles else [])
        return frozenset(end for end, of in words.items() if self.word in " ".join(of).lower())

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
        """The path shown: of the selection, else of the first detour, else of the first GPU and its NIC."""
        partners = self._partners(topology) if self._selected else []
        if partners:
            return topology.path(self._selected, partners[self._partner % len(partners)])
        pairs = [(gpu.id, nic) for gpu in topology.gpus for nic in topology.best_nics.get(gpu.id, ())[:1]]
        first = next((pair for pair in pairs if pair in self._detours), next(iter(pairs), None))
        return None if first is None else topology.path(*first)

    # Drawing

    def _live(self) -> Live:
        reading = self._reading
        if reading is None:
            return NOTHING_LIVE
        states = {
            port: state for port, state in reading.port_states.items() if not isinstance(state, Unknown)
        }
        gpus = {} if isinstance(reading.gpus, Unknown) else reading.gpus
        return Live(gpus, self._rates, states, self._netdev_rates)

    def _lit(self, path: Path | None) -> Lit:
        selected, partners, on_path = self._selected, frozenset[str](), frozenset[str]()
        if selected and path is not None:
            partners, on_path = frozenset((path.b,)), frozenset(hop.id for hop in path.hops[1:-1])
        return Lit(
            selected,
            partners,
            on_path,
            self._marks,
            self._measured_of_gpus(),
            self._detours,
            self._roles,
            self._matching(),
        )

    def _measured_of_gpus(self) -> dict[str, Run]:
        """What each GPU's path to its best NIC gave last."""
        if not self._measured or self._topology is None:
            return {}
        from widgets.bandwidth.result import short_result

        best = ((gpu, nics[0]) for gpu, nics in self._topology.best_nics.items() if nics)
        found = {pair[0]: short_result(self._measured[pair]) for pair in best if pair in self._measured}
        return {gpu: run for gpu, run in found.items() if run.text}

    def _refcnts(self) -> dict[str, Maybe[int]]:
        return self._reading.module_refcnts if self._reading else {}

    def _peermem(self) -> PeermemReading | None:
        return self._reading.peermem if self._reading else None

    def arrange(self, width: int, height: int, head_rows: int) -> Arrangement:
        """Which panels there is room for."""
        one_column = self._is_one_column(width, height, head_rows)
        left = overview_layout.left_cells(width, one_column)
        right = overview_layout.right_cells(width, one_column)
        inside = left - _GUTTER
        top = width if one_column else width // 2
        needs = {
            "topology": self._form(inside, 0)[1],
            "rates": len(self._port_histories) + 1,
            "traffic": len(traffic_drawing.TOTALS) + 1,
        }
        for name, cells in (
            ("matrix", left),
            ("path", right),
            ("gpudirect", right),
            ("modules", right),
            ("findings", top),
            ("jobs", top),
        ):
            needs[name] = len(self.lines(name, cells - 2, False))
        return overview_layout.arrange(
            width, height, head_rows, one_column, needs, lambda rows: self._form(inside, rows)[1]
        )

    def _is_one_column(self, width: int, height: int, head_rows: int) -> bool:
        """Whether the topology gets the whole width: in a narrow terminal, or where more of it is seen so."""

        def hidden(one_column: bool) -> int:
            rows = overview_layout.most_topology_rows(height, head_rows, one_column)
            cells = overview_layout.left_cells(width, one_column)
            return max(0, self._form(cells - _GUTTER, rows)[1] - rows)

        return width < overview_layout.TWO_COLUMNS or hidden(one_column=False) > hidden(one_column=True)

    def _form(self, width: int, rows: int) -> tuple[Form, int]:
        """The richest drawing of the topology within so many rows, and its height."""
        node, topology = self._node, self._topology
        if node is None or topology is None:
            return Form(Style.LIST, Detail.SHORT), 1
        key = width, rows
        if key not in self._forms:
            live, lit = self._live(), self._lit(self._path(topology))
            form = topology_drawing.choose(node, topology, width, rows, live, lit)
            self._forms[key] = form, len(topology_drawing.draw(node, topology, width, live, lit, form))
        return self._forms[key]

    def lines(self, panel: str, width: int, alone: bool, rows: int = 0) -> list[Line]:
        """A panel's lines; `alone` with all details; of the topology the richest drawing within `rows`."""
        if self._node is None or self._topology is None:
            return []
        is_still = panel in _STILL or (panel == "path" and not self._selected)
        drawn = self._still if is_still else self._fresh
        key = panel, width, alone, rows
        if key not in drawn:
            drawn[key] = self._draw(self._node, self._topology, panel, width, alone, rows)
        return drawn[key]

    def _draw(
        self, node: Node, topology: Topology, panel: str, width: int, alone: bool, rows: int
    ) -> list[Line]:
        draw: dict[str, Callable[[], list[Line]]] = {
            "findings": lambda: self._finding_lines(topology, width),
            "jobs": lambda: jobs_drawing.draw(
                self._processes(), self._gpus_by_pid(), width, self._far_from_gpu(node)
            ),
            "modules": lambda: ladder_drawing.draw(
                node, self._refcnts(), width, full=alone, marks=self._marks
            ),
            "gpudirect": lambda: gpudirect_drawing.draw(
                node, self._peermem(), self._histories["refcnt"], width, full=alone
            ),
            "traffic": lambda: self._traffic_lines(node, topology, width, alone),
            "rates": lambda: traffic_drawing.draw_ports(
                node, self._live(), self._port_histories, width, self._marks
            ),
            "matrix": lambda: self._matrix_lines(topology, width, alone),
            "path": lambda: self._path_lines(topology, width, alone),
            "topology": lambda: self._topology_lines(node, topology, width, rows),
        }
        return draw[panel]()

    def _topology_lines(self, node: Node, topology: Topology, width: int, rows: int) -> list[Line]:
        form, _ = self._form(width, rows)
        return topology_drawing.draw(
            node, topology, width, self._live(), self._lit(self._path(topology)), form
        )

    @property
    def topology_title(self) -> str:
        """What the topology shows, and what its arrows mean."""
        if self._node is None or self._topology is None:
            return ""
        return topology_drawing.heading(self._node, self._topology)

    def _finding_lines(self, topology: Topology, width: int) -> list[Line]:
        if self._check_failure:
            return wrapped(f"The node could not be checked: {self._check_failure}", width, Tone.BAD)
        if self._findings is None:
            return [(Run("checking…", Tone.DIM),)]
        labels = {end.id: end.label for end in (*topology.gpus, *topology.nics)}
        labels |= {known(end.bdf, end.id): end.label for end in topology.nics}
        gpus = [gpu.id for gpu in topology.gpus]
        return findings_rows.draw(self._findings, labels, gpus, width, self.selected_finding)

    def _processes(self) -> Maybe[ProcessFacts] | None:
        return self._examination.processes if self._examination is not None else None

    def _gpus_by_pid(self) -> dict[int, list[str]]:
        """Which GPUs each process computes on, as NVML says now."""
        found: dict[int, list[str]] = {}
        live = self._live().gpus
        for gpu in self._gpus():
            for pid in known(live[gpu.bdf].processes, ()) if gpu.bdf in live else ():
                found.setdefault(pid, []).append(f"GPU{gpu.index}")
        return found

    def _far_from_gpu(self, node: Node) -> tuple[int, ...]:
        """The processes that are bound to CPUs far from their GPU."""
        facts = self._processes()
        return far_from_gpu(node, facts, self._live().gpus) if isinstance(facts, ProcessFacts) else ()

    def _traffic_lines(self, node: Node, topology: Topology, width: int, alone: bool) -> list[Line]:
        live = self._live()
        rates = traffic_drawing.line_rates(node, topology, live)
        lines = traffic_drawing.draw(live, self._histories, width, rates)
        if alone:
            lines.append(())
            lines.extend(traffic_drawing.draw_ports(node, live, self._port_histories, width, self._marks))
        return lines

    def _matrix_lines(self, topology: Topology, width: int, alone: bool) -> list[Line]:
        lit = self._lit(self._path(topology))
        lines = matrix_drawing.draw(topology, width, lit=lit)
        lines += matrix_drawing.legend(topology, width, lit)
        return [*lines, *self._measured_lines(width)] if alone else lines

    def _path_lines(self, topology: Topology, width: int, alone: bool) -> list[Line]:
        path = self._path(topology)
        detail = self._detail_lines(width, alone)
        if path is None:
            return detail or wrapped("There is no pair of GPU and NIC.", width, Tone.DIM)
        is_detour = bool(self._detours & {(path.a, path.b), (path.b, path.a)})
        lines = path_drawing.draw(topology, path, width, is_detour)
        result = self._measured.get((path.a, path.b)) or self._measured.get((path.b, path.a))
        if result is not None:
            from widgets.bandwidth.result import draw_last_result

            lines[1:1] = draw_last_result(result, self._taken_at, width)
        if self._selected:
            lines = [*path_drawing.partners_line(topology, self._selected, width), *lines]
        return [*detail, (), *lines] if alone and detail else [*lines, *detail]

    def _detail_lines(self, width: int, alone: bool) -> list[Line]:
        """The selected GPU or NIC: in short its role and its counters, alone all that is known of it."""
        gpu = next((one for one in self._gpus() if one.bdf == self._selected), None)
        if gpu is not None:
            return nic_detail.draw_gpu(gpu, self._live().gpus.get(gpu.bdf), width) if alone else []
        device = self._devices().get(self._selected)
        if device is None:
            return []
        role = self._roles.get(device.name)
        counters, seconds = self._counters(device)
        shown = nic_detail.counter_lines(counters, seconds, width, alone)
        if alone:
            return [*nic_detail.draw_nic(device, role, width, self._netdev_rates), *shown]
        return [*(nic_detail.role_line(role, width) if role is not None else []), *shown]

    def _counters(
        self, device: RdmaDevice
    ) -> tuple[dict[int, tuple[CounterValue, ...]] | None, float | None]:
        """The error counters of each port, and the seconds between the two checks that they rose in."""
        examination = self._examination
        if examination is None or not isinstance(examination.port_health, PortHealthFacts):
            return None, None
        earlier = examination.earlier_port_health
        before = earlier.ports if isinstance(earlier, PortHealthFacts) else {}
        found = {
            port.number: counter_values(health, before.get((device.name, port.number)))
            for port in device.ports
            if (health := examination.port_health.ports.get((device.name, port.number))) is not None
        }
        at = examination.earlier_at
        return found, None if at is None else examination.reading.at - at

    def _measured_lines(self, width: int) -> list[Line]:
        """The newest measurement of each pair, below the matrix of paths."""
        if not self._measured:
            return []
        from widgets.bandwidth.matrix import draw_matrix

        newest = list(self._measured.values())
        return [(), (Run("MEASURED", Tone.TITLE),), *draw_matrix(newest, width)]

    def strips(self, width: int) -> list[Line]:
        """Modules, GPUDirect state and jobs in a line each, where there is no room for their panels."""
        if self._node is None:
            return []
        lines = ladder_drawing.strip(self._node, self._refcnts(), width, self._marks)
        lines.extend(gpudirect_drawing.strip(self._node, self._peermem(), self._histories["refcnt"], width))
        return [*lines, jobs_drawing.strip(self._processes(), self._gpus_by_pid(), width)]

    def verdict_line(self) -> Line:
        """The verdict without its reason; nothing before the first reading."""
        verdict = self.verdict
        return verdict_drawing.draw(verdict, key="d") if verdict else ()


def _pair() -> tuple[History, History]:
    seconds = traffic_drawing.SPARK_SECONDS
    return History(seconds, _PORT_SAMPLES), History(seconds, _PORT_SAMPLES)


def _stepped(order: list[str], selected: str, step: int, wraps: bool) -> str:
    """The entry `step` further; from none the first is next, and the last before."""
    before = -1 if step > 0 else len(order)
    at = (order.index(selected) if selected in order else before) + step
    return order[at % len(order) if wraps else max(0, min(len(order) - 1, at))]
