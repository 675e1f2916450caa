"""What the overview shows: the newest facts, the findings, the selection, and each panel's lines.

Does not know Textual. It is loaded after the first paint, because it imports all probes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from probes.base.plan import Plan
from probes.checks.headline import headline
from probes.checks.judgment import Judgment, listed
from probes.checks.statements import NO_IDS
from probes.facts.kernel.modules import ModuleFacts
from probes.live.model.sample import program_of
from probes.plans.load_modules import load_modules
from probes.queries.unproven_paths import unproven_pairs
from probes.queries.usable_here import usable_here
from probes.snapshot.condition import SILENT, TRAFFIC_FELL
from probes.snapshot.verdict import State, Verdict
from tui.runtime.reading_thread import Probed, Replayed, Sampled
from tui.screens.keys import KEYS
from tui.screens.overview import layout as overview_layout
from tui.screens.overview.layout import Arrangement
from tui.screens.overview.panels import Panels
from tui.screens.overview.readings import Readings
from tui.screens.overview.selection import Selection, stepped
from tui.screens.own_settings import HIDE_PANELS, HIDEABLE
from tui.settings.current import current, is_configured
from widgets.base.lines import Line, cut, rows_of
from widgets.doctor.findings import marks_of, words_of
from widgets.live import changes
from widgets.node import topology as topology_drawing
from widgets.node import traffic, verdict
from widgets.node.endpoint_lines import Detail
from widgets.node.topology import Form, Style

if TYPE_CHECKING:  # loaded once something was measured
    from probes.bandwidth.model.result import Result
    from probes.snapshot.examination import Examination
    from tui.files.since_ok import SinceOk

# What changes only with facts, findings or the selection, and not with each reading.
_STILL = ("findings", "matrix")
_FEW_CHANGES = 2  # below the findings on every screen
_WHOLE = 1000  # cells in which an event is one line; rows that hold everything
_GUTTER = 3  # the topology's border and scroll bar
# What a key that matters now is for, in the head.
_HINTS = {"fix": "", "setup": " for guided setup", "ras": " to ask NCCL which rank is behind"}
_TALL_GRAPH_ROWS = 4  # of the traffic, where there is room


class _Fit(NamedTuple):
    """The topology in so many cells and rows."""

    form: Form
    height: int  # rows of the whole drawing
    visible: int  # number of GPUs and NICs in these rows

    @property
    def is_outgrown(self) -> bool:
        """Whether a line that was drawn needed more room."""
        return self.form.columns is not None and self.form.columns.is_outgrown


class OverviewState:
    """Facts and selection; changed only by `apply…` and by the methods for keys."""

    def __init__(self) -> None:
        self.readings = Readings()
        self.selection = Selection(self.readings)
        self._panels = Panels(self.readings, self.selection)
        self.checked = self._panels.checked
        self.judgment: Judgment | None = None  # None before the first reading
        self._since_ok: SinceOk = None
        self._still: dict[tuple[object, ...], Sequence[Line]] = {}
        self._fresh: dict[tuple[object, ...], Sequence[Line]] = {}  # until the next reading
        self._forms: dict[tuple[object, ...], _Fit] = {}
        self._drawn_for = self.selection.key

    def _forget_drawings(self) -> None:
        """Draw everything again: something other than a reading is new."""
        self._forget_lines()
        self._forms.clear()

    def _forget_lines(self) -> None:
        """Draw everything again in the same form: only colors and the path are new."""
        self._still.clear()
        self._fresh.clear()

    def apply(self, report: Probed | Sampled | Replayed) -> None:
        """Use what was read."""
        readings = self.readings
        if isinstance(report, Replayed):
            if report.is_full:
                readings.clear()
            for replayed in report.reports:
                self.apply(replayed)
        elif isinstance(report, Probed):
            readings.apply_probe(report)
            self.selection.keep_existing()
            self._forget_drawings()
        else:
            before, had_rates = readings.live, bool(readings.rates)
            readings.apply_sample(report)
            self._judge(report.judgment)
            self._fresh.clear()
            now = readings.live
            has_new_figures = now.gpus.keys() != before.gpus.keys() or (readings.rates and not had_rates)
            is_outgrown = any(fit.is_outgrown for fit in self._forms.values())
            if has_new_figures or now.states != before.states or is_outgrown:  # other lines have other widths
                self._forms.clear()

    def apply_check(
        self,
        examination: Examination,
        judgment: Judgment,
        detours: frozenset[tuple[str, str]] = frozenset(),
        since_ok: SinceOk = None,
    ) -> None:
        """Use what a check has read and found, and the pairs whose traffic leaves their switch.

        `since_ok`: what has changed since the node last worked.
        """
        self._since_ok = since_ok
        checked = self.checked
        checked.examination, checked.detours, checked.failure = examination, detours, ""
        checked.usable, checked.unproven = usable_here(examination), unproven_pairs(examination)
        checked.can_load_modules = isinstance(load_modules(examination), Plan)
        self._judge(judgment)
        self._forget_drawings()

    def _judge(self, judgment: Judgment) -> None:
        """Show the findings of a judgment, where they are others than before."""
        self.judgment = judgment
        checked = self.checked
        before, checked.judgment = checked.findings, judgment
        findings = checked.findings
        if findings == before:
            return
        topology = self.readings.topology
        ids = NO_IDS if topology is None else topology.ids_by_bdf
        checked.marks = marks_of(findings or (), ids)
        checked.words = words_of(findings or (), ids)
        self.selection.marked = checked.marks
        if self.selection.finding not in self._finding_ids():
            self.selection.finding = ""
        self._forget_drawings()

    def fail_check(self, what: str) -> None:
        """Show that the node could not be checked."""
        self.checked.failure = what
        self._forget_drawings()

    def apply_results(self, results: Iterable[Result]) -> None:
        """Use the results of bandwidth tests, oldest first."""
        from probes.bandwidth.results.against_earlier import newest_by_pair
        from probes.base.origin import origin_word

        node = self.readings.node
        if node is not None:
            self._panels.measured = newest_by_pair(results, self.readings.hostname, origin_word(node.origin))
            self._forget_drawings()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None before the first reading."""
        return None if self.judgment is None else self.judgment.verdict

    def head_fields(self) -> dict[str, object]:
        """Return what the head shows of the node: a sentence, the verdict, and the key to press next."""
        readings, judgment = self.readings, self.judgment
        if judgment is None or readings.topology is None:
            return {}
        said = headline(judgment, readings.live_sample, readings.topology.labels)
        hint = f"press {KEYS[self.next_key].display}{_HINTS[self.next_key]}" if self.next_key else ""
        return {
            "hostname": self.readings.hostname,
            "sentence": (verdict.mark(judgment.verdict, f" {said.text}"),),
            "verdicts": verdict.forms(judgment.verdict, key=KEYS["doctor"].display),
            "hint": hint,
            "taken_at": readings.taken_at,
            "failure": "",
        }

    @property
    def next_key(self) -> str:
        """The key that matters most now, by its name in the key table; "" for none."""
        if self.judgment is None:
            return ""
        if any(finding.id in (SILENT, TRAFFIC_FELL) for finding in self.judgment.listed):
            return "ras"
        modules = None if self.readings.node is None else self.readings.node.modules
        if self.judgment.verdict.state is State.BROKEN and isinstance(modules, ModuleFacts):
            needed = (modules.modules[rung.module] for rung in modules.ladder if rung.core)
            if any(module.is_not_installed for module in needed):
                return "setup"
        return "fix" if self.has_fix and self.judgment.verdict.state.is_faulty else ""

    # Selection

    @property
    def selected_pair(self) -> tuple[str, str]:
        """The selected GPU's and NIC's ids, with the partner; "" for what is not selected."""
        return self.selection.pair(self.checked.detours)

    @property
    def finding_to_open(self) -> str:
        """The selected finding, else the first; "" if there is none."""
        return self.selection.finding or next(iter(self._finding_ids()), "")

    @property
    def has_fix(self) -> bool:
        """Whether the finding to open has a fix."""
        wanted = self.finding_to_open
        return any(found.id == wanted and found.fix for found in self.checked.findings or ())

    def _finding_ids(self) -> list[str]:
        return [finding.id for finding in listed(self.checked.findings or ())]

    def select(self, step: int, order: list[str], wraps: bool = True) -> None:
        """Select the endpoint `step` further in the order in which they are drawn."""
        order = order or self.selection.all_ends
        if order:
            self.selection.select_end(stepped(order, self.selection.end, step, wraps))

    def select_finding(self, step: int, wraps: bool = True) -> None:
        """Select the finding `step` further in the list."""
        order = self._finding_ids()
        if order:
            # The first one is marked while the panel is focused.
            marked = self.finding_to_open if self.selection.is_on_findings else self.selection.finding
            self.pick_finding(stepped(order, marked, step, wraps))

    def pick_finding(self, finding: str) -> None:
        """Select this finding."""
        if finding in self._finding_ids():
            self.selection.finding = finding

    def filter(self, word: str) -> None:
        """Show only GPUs and NICs whose name, model, address, interface or role contains the word."""
        self.selection.word = word.strip().lower()
        self._forget_drawings()

    # Drawing

    def arrange(self, width: int, height: int) -> Arrangement:
        """Return which panels there is room for, in so many rows below the head."""
        one_column = self._is_one_column(width, height)
        left = overview_layout.left_cells(width, one_column)
        right = overview_layout.right_cells(width, one_column)
        needs = {**self._needs(left, right, width), **dict.fromkeys(self.hidden, 0)}
        if not self.selection.end:
            needs["path"] = 0
        node = self.readings.node if "gpudirect" not in self.hidden else None
        if node is not None and self._panels.folded_modules(node, right - 2):
            needs["modules"] = 0
        return overview_layout.arrange(
            width,
            height,
            one_column,
            needs,
            lambda rows: self._fit(left - _GUTTER, rows).height,
            self._wishes(width, right),
        )

    @property
    def hidden(self) -> tuple[str, ...]:
        """The panels that the user does not want to see."""
        if not is_configured():
            return ()
        words = map(str.strip, str(current().configured(HIDE_PANELS).value).split(","))
        return tuple(name for name in words if name in HIDEABLE)

    def view(self, number: int, width: int, height: int) -> Arrangement:
        """Return the arrangement of a view with some of the panels."""
        column = width if width < overview_layout.TWO_COLUMNS else width // 2
        needs = self._needs(column, column, width)
        return overview_layout.view(overview_layout.VIEWS[number], width, height, needs)

    def _needs(self, left: int, right: int, top: int) -> dict[str, int]:
        """Return the rows that the content of each panel needs, in columns of so many cells."""
        cells = {"matrix": left, "path": right, "gpudirect": right, "modules": right, "jobs": right}
        cells["findings"] = top
        needs = {
            "topology": self._fit(left - _GUTTER, 0).height,
            "rates": len(self.readings.port_histories) + 1,
            "traffic": len(traffic.TOTALS) + (right - 2 >= traffic.ROOM_FOR_SCALE),
            **{name: len(self.lines(name, room - 2, False)) for name, room in cells.items()},
        }
        news = self._has_since_ok + min(_FEW_CHANGES, len(self.readings.changes))
        needs["findings"] = 0 if self._panels.has_nothing_to_list and not news else needs["findings"] + news
        return needs

    def _wishes(self, top: int, right: int) -> dict[str, int]:
        """Return the rows of what the panels show if nothing else needs the room."""
        findings = len(self.lines("findings", top - 2, False, _WHOLE))
        has_scale = right - 2 >= traffic.ROOM_FOR_SCALE
        return {
            "findings": findings + self._has_since_ok + len(self.readings.changes),
            "jobs": self._panels.job_rows(len(self.lines("jobs", right - 2, False)), right - 2),
            "traffic": _TALL_GRAPH_ROWS * len(traffic.TOTALS) + 1 if has_scale else len(traffic.TOTALS),
            "rates": self._panels.tall_rates_rows,
        }

    def _is_one_column(self, width: int, height: int) -> bool:
        """Return whether the topology gets the whole width: it is narrow, or more GPUs and NICs fit so."""

        def visible(one_column: bool) -> int:
            rows = overview_layout.most_topology_rows(height, one_column)
            cells = overview_layout.left_cells(width, one_column)
            return self._fit(cells - _GUTTER, rows).visible

        return width < overview_layout.TWO_COLUMNS or visible(one_column=False) < visible(one_column=True)

    def _fit(self, width: int, rows: int) -> _Fit:
        """Return the richest form of the topology within so many rows."""
        node, topology = self.readings.node, self.readings.topology
        if node is None or topology is None:
            return _Fit(Form(Style.LIST, Detail.SHORT), 1, 0)
        key = width, rows
        if key not in self._forms:
            live, highlights = self.readings.live, self._panels.highlights(topology)
            form = topology_drawing.choose(node, topology, width, rows, live, highlights)
            lines = topology_drawing.draw(node, topology, width, live, highlights, form)
            if topology_drawing.has_room_for_graphs(node, topology, width, live, highlights, form):
                form = replace(form, has_graphs=True)
            self._forms[key] = _Fit(form, len(lines), len(rows_of(lines[:rows])))
        return self._forms[key]

    def lines(self, panel: str, width: int, alone: bool, rows: int = 0) -> Sequence[Line]:
        """Return a panel's lines; `alone` with all details, topology and path as rich as `rows` allow."""
        node, topology = self.readings.node, self.readings.topology
        if node is None or topology is None:
            return []
        selected = self.selection.key
        if selected != self._drawn_for:
            self._drawn_for = selected
            self._forget_lines()
        is_still = panel in _STILL or (panel == "path" and not self.selection.end)
        if panel == "matrix" and self._panels.has_moving_matrix(topology, width):
            is_still = False
        drawn = self._still if is_still else self._fresh
        key = panel, width, alone, rows
        if key not in drawn:
            form = self._fit(width, rows).form if panel == "topology" else None
            drawn[key] = self._panels.draw(node, topology, panel, width, alone, rows, form)
        return drawn[key]

    @property
    def _has_since_ok(self) -> bool:
        verdict = self.verdict
        return self._since_ok is not None and verdict is not None and not verdict.is_green

    def findings_lines(self, width: int, rows: int) -> Sequence[Line]:
        """Return the findings, the news below, and impact and fix of each finding if there is room."""
        bare = self.lines("findings", width, False)
        news = self._news(width, rows - len(bare))
        kept = min(len(news), self._has_since_ok + _FEW_CHANGES)
        whole = self.lines("findings", width, False, rows - kept)
        return [*whole, *news[: max(0, rows - len(whole))]]

    def _news(self, width: int, rows: int) -> Sequence[Line]:
        """Return what stands below the findings: what has changed since the node last worked, and events."""
        lines: list[Line] = []
        if self._has_since_ok and self._since_ok is not None and rows > 0:
            from widgets.fleet.differences import draw_line

            lines.append(draw_line(self._since_ok, width))
        newest = self.readings.changes
        drawn = changes.draw(newest, _WHOLE) if newest else ()
        return [*lines, *(cut(self._with_short_names(line), width) for line in drawn)][: max(0, rows)]

    def _with_short_names(self, line: Line) -> Line:
        """Return a line with the programs of jobs instead of their names, where a program runs only once."""
        sample = self.readings.live_sample
        names = [job.name for job in sample.jobs] if sample is not None else []
        programs = [program_of(name) for name in names]
        for name, program in zip(names, programs, strict=True):
            if programs.count(program) == 1:
                line = tuple(run._replace(text=run.text.replace(name, program)) for run in line)
        return line

    def strips(self, panels: Iterable[str], width: int) -> list[Line]:
        """Return the panels for which there is no room, in a line each."""
        node = self.readings.node
        lines = (self._panels.strip(node, panel, width) for panel in panels if node is not None)
        return [line for of_panel in lines for line in of_panel]

    def topology_title(self, width: int, rows: int) -> str:
        """Return what the topology shows, and what its arrows and graphs mean."""
        node, topology = self.readings.node, self.readings.topology
        if node is None or topology is None:
            return ""
        return topology_drawing.heading(node, topology, self._fit(width, rows).form.has_graphs)
