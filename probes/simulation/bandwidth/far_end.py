"""ssh to the far end, as far as a simulated node knows one: its twin, by the name `peer`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_VALUED = "BbcDEeFIiJLlmOoPpQRSWw"  # options of ssh(1) that take a value
FAILED = 255


@dataclass(frozen=True)
class FarCommand:
    """What ssh is to run, and where."""

    host: str
    words: tuple[str, ...]


def parse(words: Sequence[str]) -> FarCommand | None:
    """The destination and the command behind the options; None: there is no destination."""
    left = list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option == "--":
            break
        letter = next((place for place, one in enumerate(option[1:], 1) if one in _VALUED), None)
        if letter is not None and letter == len(option) - 1 and left:
            left.pop(0)
    if not left:
        return None
    host = left.pop(0).removeprefix("ssh://").rpartition("@")[2]
    if left[:1] == ["--"]:
        left.pop(0)
    # ssh joins the words, and the far shell takes them apart again.
    try:
        command = shlex.split(" ".join(left))
    except ValueError:
        command = left
    return FarCommand(host, tuple(command))


def not_resolved(host: str) -> str:
    """What ssh says of a name that nobody knows."""
    return f"ssh: Could not resolve hostname {host}: Name or service not known"
