"""`gdrtop live --json` in the guest: one for many tests, for a start costs emulation ten seconds."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tests.node_vm.guest import COMMAND_SECONDS, Guest

Sample = dict[str, Any]


class LiveStream:
    """The samples that one user's gdrtop prints."""

    def __init__(self, guest: Guest, output: str) -> None:
        self._guest, self._output = guest, output
        self.samples: list[Sample] = []
        self._read = 0  # bytes

    def update(self) -> None:
        """Fetches the samples that have come."""
        text = self._guest.run("tail", "-c", f"+{self._read + 1}", self._output)
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole)  # it is ASCII
        self.samples += map(json.loads, whole.splitlines())

    def until(self, condition: Callable[[Sample], bool], seconds: float = COMMAND_SECONDS) -> Sample:
        """The first sample from the latest on that is as wanted."""
        place = max(0, len(self.samples) - 1)
        deadline = time.monotonic() + seconds
        while True:
            for sample in self.samples[place:]:
                if condition(sample):
                    return sample
                place += 1
            if time.monotonic() > deadline:
                told = json.dumps(self.samples[-1:]) or self._guest.run("cat", f"{self._output}.errors")
                raise AssertionError(f"not seen within {seconds:.0f} s; the last of {place} samples:\n{told}")
            time.sleep(0.5)
            self.update()

    def event(
        self,
        since: float,
        kind: str,
        subject: str,
        source: str | None = None,
        counted_from: float | None = None,
    ) -> tuple[dict[str, Any], int]:
        """The event after `since`, and in which sample it is: 1 is the first after `counted_from`.

        Times are the guest's, in seconds. Samples do not count of which gdrtop says that `source` has not
        answered yet.
        """

        def found(sample: Sample) -> list[dict[str, Any]]:
            return [
                event
                for event in sample["events"]
                if event["kind"] == kind and event["subject"].startswith(subject)
            ]

        # It may have come while another stream was read.
        self.update()
        last = next((s for s in self.samples if time_of(s) > since and found(s)), None) or self.until(
            lambda sample: time_of(sample) > since and bool(found(sample))
        )
        began = since if counted_from is None else counted_from
        later = [sample for sample in self.samples if began < time_of(sample) <= time_of(last)]
        late = [sample for sample in later if source and is_late(sample, source)]
        return found(last)[0], len(later) - len(late)


def time_of(sample: Sample) -> float:
    """The time of a sample, in seconds since 1970."""
    return datetime.fromisoformat(sample["time"]).timestamp()


def is_late(sample: Sample, source: str) -> bool:
    """Whether a sample says that it repeats an answer of a source."""
    return any(limit.startswith("No response from") and source in limit for limit in sample["limits"])


@contextmanager
def live_stream(guest: Guest, name: str) -> Iterator[LiveStream]:
    """The samples of a gdrtop of this user, which ends with the context."""
    output = f"/tmp/live-{name}"
    pid = guest.shell(f"gdrtop live --json >{output} 2>{output}.errors </dev/null & echo $!").strip()
    try:
        yield LiveStream(guest, output)
    finally:
        guest.ask("kill", pid)


def process_of(sample: Sample, pid: int) -> dict[str, Any] | None:
    """What a sample says of a process."""
    found: dict[str, Any] | None = next(
        (process for process in sample["processes"] or () if process["pid"] == pid), None
    )
    return found
