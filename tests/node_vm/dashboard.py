"""The dashboard in the guest's tmux: real keys, the real screen."""

import time
from collections.abc import Callable

from tests.node_vm.guest import Guest

# A start takes emulation thirty seconds of a CPU, of which a busy machine gives it a quarter.
SEEN_SECONDS = 240.0


class Dashboard:
    """gdrtop started in a terminal of the guest; leave the context to end it.

    `reset-node` ends the sessions whose names begin with "test".
    """

    def __init__(
        self, guest: Guest, *arguments: str, columns: int = 120, rows: int = 40, session: str = "test"
    ) -> None:
        self._guest = guest
        # A server of its own: tmux ends it with its last session.
        self._tmux = ("tmux", "-L", session)
        start = ("new-session", "-d", "-x", str(columns), "-y", str(rows), "gdrtop", *arguments)
        # The screen stays when the program ends, so that a test sees its last words.
        keep = (";", "set-option", "-g", "remain-on-exit", "on")
        guest.run(*self._tmux, "-f", "/dev/null", *start, *keep)

    def __enter__(self) -> "Dashboard":
        return self

    def __exit__(self, *_: object) -> None:
        self._guest.ask(*self._tmux, "kill-server")

    def press(self, *keys: str) -> None:
        """Sends keys, as tmux names them."""
        self._guest.run(*self._tmux, "send-keys", *keys)

    def screen(self) -> str:
        """What is to be seen now."""
        return self._guest.run(*self._tmux, "capture-pane", "-p")

    def pid(self) -> int:
        """The program's process."""
        return int(self._guest.run(*self._tmux, "list-panes", "-F", "#{pane_pid}"))

    def has_ended(self) -> bool:
        """Whether the program has left."""
        return self._guest.run(*self._tmux, "list-panes", "-F", "#{pane_dead}").strip() == "1"

    def until(self, condition: Callable[[str], bool], seconds: float = SEEN_SECONDS) -> str:
        """Waits until the screen is as wanted, and gives it; what it showed last where it never is."""
        deadline = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if condition(screen):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen within {seconds:.0f} s; the screen:\n{screen}")
            # Each look starts three processes in the guest, which cost it as much as gdrtop's own work.
            time.sleep(0.5)

    def until_shown(self, *texts: str) -> str:
        """Waits until all of the texts are to be seen."""
        return self.until(lambda screen: all(text in screen for text in texts))
