"""A node of which only a text is there: the outputs of its commands, as the answers of a host.

What a command printed is put where it had read it, so that the same probes and checks judge it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from probes.base.origin import Origin, Source
from probes.base.unknown import Maybe, Reason
from probes.facts.pci.functions import DEVICES
from probes.host.protocol import HostBase
from probes.host.values import RDMA_CLASS

PLACEHOLDER = "ffff:"
"""The PCI domain of functions that stand for devices whose address the text does not give."""


class PastedHost(HostBase):
    """Answers by kind and keys, as in a recording; everything else is not in the text."""

    UNANSWERED: ClassVar[tuple[Reason, str]] = (Reason.NOT_RECORDED, "not in the text")

    def __init__(self, answers: Mapping[tuple[str, ...], Any]) -> None:
        self.origin = Origin(Source.RECORDED, "a text")
        self._answers = answers
        self._names: dict[str, set[str]] = {}
        for kind, *keys in answers:
            if kind in ("file", "link"):
                self._add(keys[0])

    def _add(self, path: str) -> None:
        while "/" in path:
            path, _, name = path.rpartition("/")
            self._names.setdefault(path or "/", set()).add(name)

    def _answer(self, kind: str, *keys: str) -> Maybe[Any]:
        answer = self._answers.get((kind, *keys))
        if answer is not None:
            return answer
        if kind == "names" and keys[0] in self._names:
            return tuple(sorted(self._names[keys[0]]))
        if (kind, *keys) == ("names", RDMA_CLASS):
            return ()  # so that checks of GPUs alone run; those of missing devices never judge a text
        return super()._answer(kind, *keys)

    def is_root(self) -> bool:
        """Return that nothing more could be read by asking as root."""
        return True

    def monotonic(self) -> float:
        """Return the seconds of a clock, which no answer depends on."""
        return 0.0

    def wall_clock(self) -> float:
        """Return the seconds since 1970."""
        return time.time()


def gpu_answers(bdf: str, device: str = "") -> dict[tuple[str, ...], Any]:
    """Return the answers of a host about a GPU with the NVIDIA driver; the bridges above it are not known."""
    path = f"/sys/devices/pci{PLACEHOLDER}00/{bdf}"
    event = f"DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:{device}\n"
    return {
        ("link", f"{DEVICES}/{bdf}"): f"../../..{path.removeprefix('/sys')}",
        ("file", f"{path}/uevent"): event.encode(),
    }
