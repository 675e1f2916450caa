"""The smallest Textual app: what first paint is compared with."""

from textual.app import App, ComposeResult
from textual.widgets import Static


class EmptyApp(App[None]):
    """One line of text."""

    def compose(self) -> ComposeResult:
        yield Static("Overview")


if __name__ == "__main__":
    EmptyApp().run()
