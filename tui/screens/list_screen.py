"""Base classes of the screens with panes and lists: moving, the selected entry, the filter.

A subclass names its panes. A list that can be filtered has a `#summary` above it and an Input `#word` below.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from tui.screens.head import HeadView, draw_head
from tui.screens.key_footer import KeyFooter
from tui.screens.keys import bind, move_keys
from tui.screens.list_state import ExaminedListState, FilteredListState, ListState
from tui.screens.request import Request
from tui.terminal.partial_compositor import draw_partially
from widgets.base.lines import Run, Tone, rows_of
from widgets.base.lines_view import LinesView

L = TypeVar("L", bound=ListState)
F = TypeVar("F", bound=FilteredListState)
E = TypeVar("E", bound=ExaminedListState)

_SCROLLS = {
    "up": LinesView.action_scroll_up,
    "down": LinesView.action_scroll_down,
    "page_up": LinesView.action_page_up,
    "page_down": LinesView.action_page_down,
    "first": LinesView.action_scroll_home,
    "last": LinesView.action_scroll_end,
}


def scroll(view: LinesView, how: str) -> None:
    """Scroll a pane: "up", "down", "page_up", …."""
    _SCROLLS[how](view)


FILTER_KEY = bind("filter", "filter")
REFRESH_KEY = bind("refresh", "refresh")
ZOOM_KEY = bind("zoom", "zoom", show=False)  # of screens with several panes


def static_view(id: str, title: str = "") -> LinesView:  # noqa: A002 - Textual's own word
    """Return a view that takes no focus."""
    view = LinesView(title, id=id)
    view.can_focus = False
    return view


class PanesScreen(Screen[None]):
    """Panes of text. The keys scroll the focused one."""

    CSS_PATH = Path(__file__).with_name("panes.tcss")
    BINDINGS = [*move_keys()]  # noqa: RUF012 - Textual's own type
    CONDITIONAL: ClassVar[tuple[str, ...]] = ()  # actions that cannot always be done
    _enabled: tuple[bool | None, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        draw_partially(self)

    def _view(self, name: str) -> LinesView:
        """Return a pane by its id."""
        return self.query_one(f"#{name}", LinesView)

    @property
    def is_question(self) -> bool:
        """Whether the app's own commands are dead until the screen is answered."""
        return False

    def _refresh_changed_bindings(self) -> None:
        """Update the footer if keys were enabled or disabled; doing it on each draw is expensive."""
        enabled = tuple(self.check_action(action, ()) for action in self.CONDITIONAL)
        if enabled != self._enabled:
            self._enabled = enabled
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the keys of what cannot be done now."""
        called = f"{action}({', '.join(map(repr, parameters))})" if parameters else action
        return self.why_not(called) is None

    def why_not(self, action: str) -> str | None:
        """Return why an action, such as "change(1)", cannot be done now, or ""; None: it can be done."""
        del action
        return None

    def on_screen_resume(self) -> None:
        """Draw in the head what is new since another screen covered this one."""
        draw_head(self)

    def action_move(self, how: str) -> None:
        if isinstance(self.focused, LinesView):
            scroll(self.focused, how)

    @property
    def _is_zoomed(self) -> bool:
        return self.has_class("zoomed")

    def action_zoom(self) -> None:
        focused = self.focused
        if self._is_zoomed or isinstance(focused, LinesView):
            self._zoom(None if self._is_zoomed else focused)

    def _zoom(self, shown: Widget | None) -> None:
        """Show a pane alone; None: all panes."""
        self.set_class(shown is not None, "zoomed")
        for view in self.query(LinesView):
            view.set_class(view is shown, "zoomed")

    def action_leave(self) -> None:
        """Close what is open in the screen, else leave the screen."""
        if self._is_zoomed:
            self._zoom(None)
        else:
            self.action_close()

    def action_close(self) -> None:
        self.dismiss()


class ListScreen(PanesScreen, Generic[L]):
    """A list, and below it the selected entry."""

    BINDINGS = [bind("open", "open"), ZOOM_KEY]  # noqa: RUF012 - Textual's own type
    LIST: ClassVar[str]  # the panes' ids
    DETAILS: ClassVar[str]
    TITLES: ClassVar[tuple[str, str, str]]  # of the screen in the head, and of the panes
    FILTER: ClassVar[str] = ""  # what the input of the filter asks for, if the list can be filtered

    def __init__(self, state: L) -> None:
        super().__init__()
        self._state = state

    def compose(self) -> ComposeResult:
        """Compose the head, the list and the details; a list that can be filtered has a summary, too."""
        screen, listed, details = self.TITLES
        yield HeadView(screen)
        if self.FILTER:
            yield static_view("summary")
        with Vertical():
            yield LinesView(listed, id=self.LIST)
            yield LinesView(details, id=self.DETAILS)
        yield from self._inputs()
        yield KeyFooter()

    def _inputs(self) -> ComposeResult:
        if self.FILTER:
            yield Input(placeholder=self.FILTER, id="word")

    def on_mount(self) -> None:
        """Draw what is known. Textual has called the subclass's `on_mount` before."""
        self._list.focus()
        self.draw()

    def on_lines_view_resized(self) -> None:
        self.draw()

    @property
    def _list(self) -> LinesView:
        return self._view(self.LIST)

    @property
    def _details(self) -> LinesView:
        return self._view(self.DETAILS)

    def draw(self) -> None:
        """Draw what is known, once the panes exist."""
        if self.is_mounted:
            self._draw_panes()

    def _draw_panes(self) -> None:
        listed, details = self._list, self._details
        if listed.room:
            listed.show(self._state.list_lines(listed.room))
            self._show_selected()
        if details.room:
            details.show(self._state.detail_lines(details.room) or [(Run("", Tone.DIM),)])
        self.refresh_bindings()

    def _show_selected(self) -> None:
        row = rows_of(self._list.lines).get(self._state.selected)
        if row is not None:
            self._list.scroll_to_row(row)

    def _draw_from_top(self) -> None:
        """Draw, and scroll the lower pane to the top."""
        self._details.scroll_to(y=0, animate=False)
        self.draw()

    # Keys

    def action_move(self, how: str) -> None:
        """Move the selection, or scroll the lower pane."""
        if self._details.has_focus:
            super().action_move(how)
            return
        self._state.select(self._list.rows_moved(how))
        self._draw_from_top()

    def on_lines_view_picked(self, picked: LinesView.Picked) -> None:
        if picked.view is self._list:
            self._state.choose(picked.id)
            self._draw_from_top()

    def why_not(self, action: str) -> str | None:
        can_open = self._state.selected and not self.has_class("opened")
        return "" if action == "open" and not can_open else super().why_not(action)

    def action_open(self) -> None:
        """Show only the selected entry."""
        if self._state.selected:
            self._set_opened(True)

    def _set_opened(self, is_opened: bool) -> None:
        self._zoom(None)
        self.set_class(is_opened, "opened")
        (self._details if is_opened else self._list).focus()
        self.refresh_bindings()

    def action_leave(self) -> None:
        """Go back to the list, else leave the screen."""
        if self.has_class("opened"):
            self._set_opened(False)
        else:
            super().action_leave()


class FilteredListScreen(ListScreen[F]):
    """A list with a summary above it and a filter."""

    def on_mount(self) -> None:
        """Show the filter, also after coming back to the screen."""
        self._word.value = self._state.word
        self._word.display = bool(self._state.word)

    @property
    def _word(self) -> Input:
        return self.query_one("#word", Input)

    def _draw_panes(self) -> None:
        self._view("summary").show(self._state.summary(self.size.width))
        super()._draw_panes()

    # Keys

    def action_filter(self) -> None:
        self._zoom(None)
        self.remove_class("opened")
        self._word.display = True
        self.set_focus(self._word)

    def on_input_changed(self, changed: Input.Changed) -> None:
        if changed.input is self._word:
            self._state.filter(changed.value)
            self.draw()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        if submitted.input is self._word:
            self._leave_filter()

    def _leave_filter(self) -> None:
        self._word.display = bool(self._word.value.strip())  # fast typists: not filtered yet
        self._focus_pane()

    def _focus_pane(self) -> None:
        self._list.focus()

    def _clear_filter(self) -> None:
        self._word.value = ""
        self._state.filter("")
        self._leave_filter()
        self.draw()

    def action_leave(self) -> None:
        """Clear the filter, else go back to the list, else leave the screen."""
        if self._word.has_focus or (self._word.display and not self.has_class("opened")):
            self._clear_filter()
        else:
            super().action_leave()


class ExaminedListScreen(FilteredListScreen[E]):
    """A list from an examination, with a summary above it and a filter."""

    def action_refresh(self) -> None:
        self._state.begin()
        self.draw()
        self.post_message(Request("check"))
