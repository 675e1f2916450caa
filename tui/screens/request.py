"""What a screen asks the app for."""

from __future__ import annotations

from typing import Any

from textual.message import Message


class Request(Message):
    """A row of the app's table REQUESTS, by name, and the values that it takes."""

    def __init__(self, name: str, *values: Any) -> None:
        super().__init__()
        self.name, self.values = name, values
