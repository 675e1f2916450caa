"""The overview: the whole node on one screen, live."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Footer

from probes.checks.verdict import Verdict
from probes.gpudirect import PeermemReading
from probes.history import History
from probes.host import Origin
from probes.node import Node
from probes.platform import PlatformFacts
from probes.rates import PortRate, Reading, port_rates
from probes.topology import Path, Topology
from probes.unknown import Maybe, Unknown, known
from tui.sampler import Failed, Probed, Report, Sampled
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
from widgets.lines import Line, Run, Tone, fit, rows_of, width_of, wrapped
from widgets.lines_view import LinesView
from widgets.topology_drawing import Lit

PANELS = ("topology", "matrix", "modules", "gpudirect", "traffic", "path")
TITLES = ("Topology", "GPU × NIC", "Modules · refcnt", "GPUDirect RDMA", "Traffic", "Path")
NARROW = 100


class OverviewScreen(Screen[None]):
    """Verdict, topology, matrix, ladder, GPUDirect state, traffic, and the path of what is selected."""

    BINDINGS = [  # noqa: RUF012 - Textual's own type
        Binding("down,j", "select(1)", "Select", key_display="↑↓", tooltip="Select a GPU or NIC", id="next"),
        Binding("up,k", "select(-1)", "Select", show=False, id="previous"),
        Binding("left", "partner(-1)", "Partner", show=False, id="partner_before"),
        Binding(
            "right", "partner(1)", "Partner", key_display="←→", tooltip="Another partner of it", id="partner"
        ),
        *(
            Binding(str(number), f"zoom('{panel}')", "Panel", show=number == 1, key_display="1-6", id=panel)
            for number, panel in enumerate(PANELS, 1)
        ),
        Binding("escape", "back", "Back", show=False, id="back"),
        Binding("pagedown", "page(1)", "Page", show=False, id="page_down"),
        Binding("pageup", "page(-1)", "Page", show=False, id="page_up"),
    ]

    def __init__(self, origin: Origin, clock: Callable[[], float]) -> None:
        super().__init__()
        self._origin = origin
        self._clock = clock
        self._node: Node | None = None
        self._topology: Topology | None = None
        self._verdict: Verdict | None = None
        self._reading: Reading | None = None
        self._rates: dict[tuple[str, int], PortRate] = {}
        self._histories = {name: History() for name in ("refcnt", "NIC ▲", "NIC ▼", "GPU ▲", "GPU ▼")}
        self._selected = ""
        self._partner = 0
        self._zoomed = ""
        self._pace = ""
        self._silence = 0.0
        self._failure = ""
        self.readings = 0

    def compose(self) -> ComposeResult:
        """The panels; what each shows comes with the readings."""
        titles = dict(zip(PANELS, TITLES, strict=True))
        verdict = LinesView(id="verdict")
        verdict.can_focus = False
        yield verdict
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield LinesView(titles["topology"], id="topology")
                yield LinesView(titles["matrix"], id="matrix")
            with Vertical(id="right"):
                for panel in PANELS[2:]:
                    yield LinesView(titles[panel], id=panel)
        strips = LinesView(id="strips")
        strips.can_focus = False
        yield strips
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Says at once that it is reading."""
        self._panel("topology").show([(Run("Reading the node …", Tone.DIM),)])
        self._panel("topology").focus()
        self._draw_verdict()

    def on_resize(self) -> None:
        """Draws anew: every drawing depends on the width."""
        self.call_after_refresh(self.draw)

    # What the sampler reports

    def take(self, report: Report) -> None:
        """Shows what was read."""
        if isinstance(report, Failed):
            self._failure = report.what
            self._draw_verdict()
            return
        self._failure = ""
        if isinstance(report, Probed):
            self._node, self._topology = report.node, report.topology
            self._reading, self._rates = None, {}
            ends = self._order()
            if self._selected not in ends:
                self._selected = ""
            return
        self._take_sample(report)
        self.readings += 1
        self.draw()

    def _take_sample(self, sampled: Sampled) -> None:
        before, self._reading = self._reading, sampled.reading
        self._verdict = sampled.verdict
        self._rates = port_rates(before, sampled.reading) if before else {}
        at = sampled.reading.at
        refcnt = sampled.reading.peermem.refcnt
        self._histories["refcnt"].add(at, refcnt if isinstance(refcnt, Unknown) else float(refcnt))
        for name, total in traffic_drawing.totals(self._live()).items():
            self._histories[name].add(at, total)

    def tell_pace(self, interval: float | None, paused: bool) -> None:
        """Shows the interval, or that readings have stopped."""
        self._pace = "PAUSED" if paused else "" if interval is None else f"every {interval:g} s"
        if self.is_mounted:
            self._draw_verdict()

    def tell_silence(self, seconds: float) -> None:
        """Shows for how long the node has not answered; 0: it answers."""
        if int(seconds) != int(self._silence):
            self._silence = seconds
            self._draw_verdict()

    # Selection

    def _order(self) -> list[str]:
        """Endpoints as they stand on the screen from top to bottom."""
        return list(rows_of(self._panel("topology").lines)) or self._all_ends()

    def _all_ends(self) -> list[str]:
        if self._topology is None:
            return []
        return [end.id for end in (*self._topology.gpus, *self._topology.nics)]

    def action_select(self, step: int) -> None:
        """Selects the next GPU or NIC, drawn below or above."""
        order = self._order()
        if not order:
            return
        at = order.index(self._selected) + step if self._selected in order else 0 if step > 0 else -1
        self._selected = order[at % len(order)]
        self._partner = 0
        self.draw()
        row = rows_of(self._panel("topology").lines).get(self._selected)
        if row is not None:
            self._panel("topology").scroll_to_row(row)

    def action_partner(self, step: int) -> None:
        """Shows the path to the next of the partners, nearest first."""
        if self._selected:
            self._partner += step
            self.draw()

    def action_back(self) -> None:
        """Leaves a panel shown alone, else gives the selection up."""
        if self._zoomed:
            self.action_zoom(self._zoomed)
        else:
            self._selected = ""
            self.draw()

    def action_page(self, step: int) -> None:
        """Scrolls the focused panel by a page."""
        if isinstance(self.focused, LinesView):
            (self.focused.action_page_down if step > 0 else self.focused.action_page_up)()

    def action_zoom(self, panel: str) -> None:
        """Shows one panel alone, or all again."""
        for name in PANELS:
            self.remove_class(f"zoom-{name}")
        self._zoomed = "" if self._zoomed == panel else panel
        self.set_class(bool(self._zoomed), "zoomed")
        if self._zoomed:
            self.add_class(f"zoom-{panel}")
            self._panel(panel).focus()
        self.call_after_refresh(self.draw)

    def _partners(self) -> list[str]:
        """Who the selected endpoint can pair with, nearest first."""
        topology = self._topology
        if topology is None or not self._selected:
            return []
        if self._selected in topology.best_nics:
            return list(topology.best_nics[self._selected])
        ranks = {
            gpu: nics.index(self._selected)
            for gpu, nics in topology.best_nics.items()
            if self._selected in nics
        }
        return sorted(ranks, key=ranks.__getitem__)

    def _path(self) -> Path | None:
        """The path that the path panel shows: of the selection, else of the first GPU and its best NIC."""
        topology = self._topology
        if topology is None:
            return None
        partners = self._partners()
        if self._selected and partners:
            return topology.path(self._selected, partners[self._partner % len(partners)])
        for gpu in topology.gpus:
            for nic in topology.best_nics.get(gpu.id, ())[:1]:
                return topology.path(gpu.id, nic)
        return None

    # Drawing

    def _panel(self, name: str) -> LinesView:
        return self.query_one(f"#{name}", LinesView)

    def _live(self) -> Live:
        reading = self._reading
        if reading is None:
            return NOTHING_LIVE
        states = {
            port: state for port, state in reading.port_states.items() if not isinstance(state, Unknown)
        }
        return Live({} if isinstance(reading.gpus, Unknown) else reading.gpus, self._rates, states)

    def draw(self) -> None:
        """Draws every panel that is seen."""
        self._draw_verdict()
        node, topology = self._node, self._topology
        if node is None or topology is None:
            return
        live = self._live()
        path = self._path()
        lit = Lit()
        if self._selected and path is not None:
            lit = Lit(self._selected, frozenset((path.b,)), frozenset(hop.id for hop in path.hops[1:-1]))
        refcnts: dict[str, Maybe[int]] = self._reading.module_refcnts if self._reading else {}
        peermem = self._reading.peermem if self._reading else None
        refcnt_history = self._histories["refcnt"]
        zoomed = self._zoomed

        def show(name: str, lines: list[Line]) -> None:
            self._panel(name).show(lines)

        for name in PANELS:
            panel = self._panel(name)
            if not panel.display or not panel.room:
                continue
            width = panel.room
            if name == "topology":
                as_list = self.size.width < NARROW and not zoomed
                drawing = topology_drawing.draw_list if as_list else topology_drawing.draw
                show(name, drawing(node, topology, width, live, lit))
            elif name == "matrix":
                show(name, matrix_drawing.draw(topology, width, lit=lit))
            elif name == "modules":
                show(name, ladder_drawing.draw(node, refcnts, width, full=zoomed == name))
            elif name == "gpudirect":
                show(name, gpudirect_drawing.draw(node, peermem, refcnt_history, width, full=zoomed == name))
            elif name == "traffic":
                show(name, traffic_drawing.draw(live, self._histories, width, full=zoomed == name))
            elif name == "path":
                show(name, self._path_lines(topology, path, width))
        self._draw_strips(node, refcnts, peermem)

    def _path_lines(self, topology: Topology, path: Path | None, width: int) -> list[Line]:
        if path is None:
            return wrapped("No GPU and NIC to go between.", width, Tone.DIM)
        lines = path_drawing.draw(topology, path, width)
        if self._selected:
            lines = [*path_drawing.partners_line(topology, self._selected, width), *lines]
        return lines

    def _draw_strips(
        self, node: Node, refcnts: dict[str, Maybe[int]], peermem: PeermemReading | None
    ) -> None:
        strips = self._panel("strips")
        if strips.display:
            width = self.size.width
            lines = ladder_drawing.strip(node, refcnts, width)
            lines.extend(gpudirect_drawing.strip(node, peermem, self._histories["refcnt"], width))
            strips.show(lines)

    def _draw_verdict(self) -> None:
        width = self.size.width
        host = ""
        if self._node is not None and isinstance(self._node.platform, PlatformFacts):
            host = known(self._node.platform.hostname, "")
        if self._origin.label == host:
            host = ""
        left: Line = (Run("gdrtop ", Tone.TITLE), Run(f"{host} " if host else ""))
        left = (*left, verdict_drawing.origin_run(self._origin), Run(" "))
        reason = ""
        if self._failure:
            left = (*left, Run(f"✗ reading failed: {self._failure}", Tone.BAD))
        elif self._verdict is not None:
            left = (*left, *verdict_drawing.draw(self._verdict))
            reason = self._verdict.reason
        else:
            left = (*left, Run("reading …", Tone.DIM))
        clock = time.strftime("%H:%M:%S", time.gmtime(self._clock())) if self.readings else ""
        silence = f" no answer for {self._silence:.0f} s " if self._silence else ""
        right: Line = (Run(silence, Tone.BAD), Run(f" {self._pace} {clock}", Tone.DIM))
        told: Line = (*left, Run(f" · {reason}" if reason else ""))
        room = width - width_of(right)
        if width_of(told) <= room:
            lines: list[Line] = [(*fit(told, room), *right)]
        else:
            lines = [(*fit(left, room), *right), *wrapped(reason, width - 2, Tone.PLAIN, "  ")]
        self._panel("verdict").show(lines)
