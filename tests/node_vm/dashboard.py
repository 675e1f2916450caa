"""The dashboard in the guest's tmux: real keys, the real screen."""

import time
from collections.abc import Callable

from tests.node_vm.guest import COMMAND_SECONDS, Guest

_TMUX = ("tmux", "-L", "test")


class Dashboard:
    """gdrtop started in a terminal of the guest; leave the context to end it."""

    def __init__(self, guest: Guest, *arguments: str, columns: int = 120, rows: int = 40) -> None:
        self._guest = guest
        size = ("-x", str(columns), "-y", str(rows))
        guest.run(*_TMUX, "-f", "/dev/null", "new-session", "-d", *size, "gdrtop", *arguments)
        # The screen stays when the program ends, so that a test sees its last words.
        guest.run(*_TMUX, "set-option", "-g", "remain-on-exit", "on")

    def __enter__(self) -> "Dashboard":
        return self

    def __exit__(self, *_: object) -> None:
        self._guest.ask(*_TMUX, "kill-server")

    def press(self, *keys: str) -> None:
        """Sends keys, as tmux names them."""
        self._guest.run(*_TMUX, "send-keys", *keys)

    def screen(self) -> str:
        """What is to be seen now."""
        return self._guest.run(*_TMUX, "capture-pane", "-p")

    def pid(self) -> int:
        """The program's process."""
        return int(self._guest.run(*_TMUX, "list-panes", "-F", "#{pane_pid}"))

    def has_ended(self) -> bool:
        """Whether the program has left."""
        return self._guest.run(*_TMUX, "list-panes", "-F", "#{pane_dead}").strip() == "1"

    def until(self, condition: Callable[[str], bool], seconds: float = COMMAND_SECONDS) -> str:
        """Waits until the screen is as wanted, and gives it; what it showed last where it never is."""
        deadline = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if condition(screen):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {seconds:.0f} s; the screen:\n{screen}")
            time.sleep(0.1)

    def until_shown(self, *texts: str) -> str:
        """Waits until all of the texts are to be seen."""
        return self.until(lambda screen: all(text in screen for text in texts))
