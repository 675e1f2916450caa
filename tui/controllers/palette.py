"""The command palette: screens, commands and actions, found by words of their names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from textual.app import ComposeResult
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from tui.screens.actions.state import ActionsState
from tui.screens.key_footer import KeyFooter, typing_items
from tui.screens.keys import KEYS, bind

_PATIENCE_SECONDS = 2.0
# Names of the key table, in the order in which they are listed, and the application's actions of other names.
_COMMANDS = (
    *("overview", "doctor", "live", "nccl", "setup", "bandwidth", "prove", "actions", "history"),
    *("ras", "ras_events", "help", "refresh", "pause", "record", "exit"),
)
_ACTIONS = {"refresh": "probe", "exit": "quit"}
# Where the other keys work, by names of the key table; the first one is opened if it is not there already.
ON_SCREENS = {
    "fix": ("doctor", "overview"),
    "explain": ("doctor", "overview"),
    "all": ("doctor",),
    "load": ("overview",),
    "event": ("live",),
    "columns": ("live", "overview"),
    "view": ("live", "setup"),
    "file": ("nccl",),
    "path": ("setup",),
    "leave_out": ("setup",),
    "peer": ("bandwidth",),
    "undo": ("history",),
}


class _Actions(Protocol):
    state: ActionsState

    def refresh(self) -> Awaitable[Any]: ...


class _Gdrtop(Protocol):
    """What the palette uses of the application."""

    theme: str

    @property
    def actions(self) -> _Actions: ...
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None: ...
    def run_action(self, action: str) -> Awaitable[bool]: ...
    def action_act(self, offer: str) -> Any: ...
    def action_theme(self, name: str) -> Any: ...
    def action_start_view(self) -> Any: ...


class _Command(NamedTuple):
    title: str
    help: str
    run: partial[Any]
    is_possible: bool = True


class _Commands(Provider):
    """A list of commands, found by the words of their names."""

    @property
    def _gdrtop(self) -> _Gdrtop:
        app: Any = self.app
        gdrtop: _Gdrtop = app
        return gdrtop

    def _commands(self) -> Iterable[_Command]:
        raise NotImplementedError

    async def _wait_for_commands(self) -> None:
        """Wait until the commands are known. A search that waits is canceled by the next letter."""

    async def discover(self) -> Hits:
        """List all that is possible, before anything is typed."""
        await self._wait_for_commands()
        for command in self._commands():
            if command.is_possible:
                yield DiscoveryHit(command.title, command.run, help=_plain(command.help))

    async def search(self, query: str) -> Hits:
        """List what has every typed word in its name; last what is impossible."""
        await self._wait_for_commands()
        matcher = self.matcher(query)
        words = query.lower().split()
        for command in self._commands():
            title = command.title.lower()
            if all(word in title for word in words):
                begins = title.startswith(tuple(words[:1]))
                score = 0.5 + 0.25 * begins if command.is_possible else 0.1 + 0.1 * begins
                shown = matcher.highlight(command.title)
                yield Hit(score, shown, command.run, text=command.title, help=_plain(command.help))


class CommandsProvider(_Commands):
    """The program's commands, and every action. An action opens its plan; nothing runs from the palette."""

    _refreshing: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Begin to ask for what is possible now. Waiting here would end with the first letter, for good."""
        self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._gdrtop.actions.refresh(), _PATIENCE_SECONDS)

    async def _wait_for_commands(self) -> None:
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    def _commands(self) -> Iterable[_Command]:
        app = self._gdrtop
        for name in _COMMANDS:
            action = _ACTIONS.get(name, name)
            if app.check_action(action, ()):
                key = KEYS[name]
                meaning = key.meaning.removeprefix(f"{key.label}: ")
                yield _Command(key.label, f"{key.display}  {meaning}", partial(app.run_action, action))
        for name, screens in ON_SCREENS.items():
            key, where = KEYS[name], " and ".join(KEYS[screen].label for screen in screens)
            yield _Command(key.label, f"{key.display} in {where}  {key.meaning}", partial(self._press, name))
        yield _Command("Theme", f"Choose the colors. Now: {app.theme}", partial(app.run_action, "themes"))
        yield _Command("Start view", "Start with the view that is shown now", partial(app.action_start_view))
        for offer in app.actions.state.offers:
            why_not = "" if offer.plan is not None else f"Not possible: {offer.why_not}"
            yield _Command(offer.title, why_not, partial(app.action_act, offer.id), offer.plan is not None)

    async def _press(self, name: str) -> None:
        """Press a key of the table where it works; on other screens, open the one that has it."""
        key = KEYS[name].keys.split(",")[0]
        if key in self.app.screen.active_bindings:
            self.app.simulate_key(key)
        else:
            await self.app.run_action(ON_SCREENS[name][0])


class ThemesProvider(_Commands):
    """The themes; the chosen one is used at once and saved."""

    def _commands(self) -> Iterable[_Command]:
        from widgets.base.themes import theme_meanings

        app = self._gdrtop
        for name, meaning in theme_meanings().items():
            yield _Command(name, meaning, partial(app.action_theme, name))


def _plain(text: str) -> str:
    """Escape a text: names of devices and files may look like Textual's markup."""
    return text.replace("[", "\\[")


class Palette(CommandPalette):
    """Textual's palette with our commands and words."""

    BINDINGS = [bind("exit", "app.quit", priority=True)]  # noqa: RUF012 - Textual's own type

    def __init__(self, provider: type[Provider] = CommandsProvider, what: str = "command") -> None:
        super().__init__({provider}, placeholder=f"Type a {what} name. Esc: close")

    def compose(self) -> ComposeResult:
        """Compose Textual's palette, and its own keys over those of the screen below."""
        yield from super().compose()
        yield KeyFooter(typing_items("Run"))

    def _action_command_list(self, action: str) -> None:
        # Right after a key the list has no lines yet, and Textual 8.2 looks for the row to page from.
        with suppress(KeyError, IndexError):
            super()._action_command_list(action)
