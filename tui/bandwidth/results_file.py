"""Results on disk: every one that was measured, and the baseline of each machine type.

$XDG_DATA_HOME/gdrtop/results.jsonl has a JSON object a line (probes/bandwidth/result_json.py), and
$XDG_DATA_HOME/gdrtop/baselines/TYPE.json is one object with the results of a type: plain files, of which a
baseline may be copied to other nodes of the same type.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable
from functools import lru_cache

from probes.bandwidth.result import Ending, Result
from probes.bandwidth.result_json import SCHEMA, from_json, to_json
from probes.origin import Origin, Source
from probes.text import printable
from tui.bandwidth.bench import KeptInMemory, KeptResults, NotKept
from tui.lines_file import LinesFile
from tui.new_file import NewFile, told, why
from tui.xdg import DATA, own_directory

_MOST_RESULTS = 1000
_READ_BYTES = 8 << 20
_SLUG_LIMIT = 120
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def kept_results(origin: Origin) -> KeptResults:
    """On disk for this machine; a simulated node's are kept as long as the program runs."""
    return KeptOnDisk() if origin.source is Source.LIVE else KeptInMemory()


def slug(machine: str) -> str:
    """A machine type as a file's name: "supermicro-sys-821ge-tnhr-8-h100"."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return words[:_SLUG_LIMIT].rstrip("-") or "unknown-type"


class KeptOnDisk:
    """The files below a directory; a user's own by default."""

    def __init__(self, directory: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self._directory = own_directory(DATA) if directory is None else directory
        self._clock = clock
        path = os.path.join(self._directory, "results.jsonl")
        self._file = LinesFile(path, "the results' file", NotKept, _READ_BYTES)

    @property
    def path(self) -> str:
        """Where the results are."""
        return self._file.path

    def add(self, result: Result) -> None:
        """Keeps one; NotKept, with a sentence, where it cannot be."""
        self._file.append(json.dumps(to_json(result), ensure_ascii=True, separators=(",", ":")))

    def results(self) -> tuple[Result, ...]:
        """The newest that are kept, the oldest first; lines that are no results are passed over."""
        lines = [line for line in self._file.lines() if line]
        if len(lines) < _MOST_RESULTS:
            lines = [*(line for line in self._file.earlier_lines() if line), *lines]
        found = [_parsed(line) for line in lines[-_MOST_RESULTS:]]
        return tuple(one for one in found if one is not None)

    def why_unread(self) -> str:
        """Why the results' file is there and not read, a sentence; "" where it is read, or is not there."""
        return self._file.why_unread()

    def baseline(self, machine: str) -> tuple[Result, ...]:
        """What nodes of this type are expected to give; () where nothing that can be read was saved."""
        try:
            content = json.loads(_content(self._baseline_path(machine)))
        except (OSError, ValueError, RecursionError):
            return ()
        if not isinstance(content, dict) or content.get("machine") != machine:
            return ()
        listed = content.get("results")
        found = [from_json(one) for one in listed[:_MOST_RESULTS]] if isinstance(listed, list) else []
        return tuple(one for one in found if one is not None)

    def save_baseline(self, results: tuple[Result, ...]) -> str:
        """Puts what was measured in its machine type's baseline; the file. NotKept where it cannot be."""
        done = tuple(one for one in results if one.ending is Ending.DONE)
        if not done:
            raise NotKept("nothing was measured that could be a baseline")
        machine = done[0].machine
        merged = {one.key: one for one in (*self.baseline(machine), *done)}
        content = {
            "schema": SCHEMA,
            "machine": machine,
            "saved_at": self._clock(),
            "results": [to_json(one) for one in merged.values()],
        }
        path = self._baseline_path(machine)
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        except OSError as error:
            raise NotKept(f"{told(os.path.dirname(path))} cannot be made: {why(error)}") from None
        file = NewFile(path, NotKept, replaces=True)
        try:
            file.write((json.dumps(content, ensure_ascii=True, indent=1) + "\n").encode())
            file.keep()
        finally:
            file.drop()
        return told(path)

    def _baseline_path(self, machine: str) -> str:
        return os.path.join(self._directory, "baselines", f"{slug(machine)}.json")


@lru_cache(maxsize=_MOST_RESULTS)
def _parsed(line: str) -> Result | None:
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _content(path: str) -> bytes:
    """A file's bytes; OSError where it is no regular file, or far too large for what it should be."""
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _READ_BYTES:
            raise OSError(0, f"{printable(path)} is no baseline")
        return os.pread(descriptor, _READ_BYTES, 0)
    finally:
        os.close(descriptor)
