"""Results on disk: all that were measured, and the baseline of each machine type.

$XDG_DATA_HOME/gdrtop/results.jsonl has one JSON object per line (probes/bandwidth/model/result.py);
$XDG_DATA_HOME/gdrtop/baselines/TYPE.json is one object with the results of a machine type. They are plain
files: a baseline can be copied to other nodes of the same type.
"""

from __future__ import annotations

import json
import os
import re
import time
from functools import lru_cache
from typing import Any

from probes.bandwidth.model.command import Refused
from probes.bandwidth.model.result import SCHEMA, Result, from_json, to_json
from probes.bandwidth.results.against_earlier import other_type_hint, product_of, updated_baseline
from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from tui.files.append_file import AppendFile
from tui.files.new_file import NewFile, shown_path, why, why_not_as_root
from tui.files.read_file import read_small
from tui.files.xdg import DATA, NO_HOME, own_directory, results_path

MOST_RESULTS = 1000
MOST_HISTORY = 5000  # for percentiles; reading as many takes a second
_READ_BYTES = 8 << 20
_SLUG_LIMIT = 120
_TYPE_LIMIT = 200
_MOST_TYPES = 32  # baselines of one product that are read


class StoreError(Exception):
    """A result could not be saved; the message says why."""


class MemoryResultsStore:
    """The results of a simulated node: they are gone when gdrtop ends."""

    def __init__(self) -> None:
        self._results: list[Result] = []
        self._baselines: dict[str, tuple[Result, ...]] = {}

    def add(self, result: Result) -> None:
        """Save a result, or raise StoreError."""
        self._results.append(result)

    def results(self, most: int = MOST_RESULTS) -> tuple[Result, ...]:
        """Return the newest saved results, oldest first."""
        return tuple(self._results[-most:])

    def why_unread(self) -> str:
        """Return why existing results cannot be read, as a sentence; "" if they can or there are none."""
        return ""

    def baseline(self, machine: str) -> tuple[Result, ...]:
        """Return the baseline of a machine type; () if there is none."""
        return self._baselines.get(machine, ())

    def no_baseline(self, machine: str) -> str:
        """Return a hint if only another type of the same product has a baseline, else ""."""
        return "" if machine in self._baselines else other_type_hint(machine, tuple(self._baselines))

    def save_baseline(self, results: tuple[Result, ...]) -> str:
        """Add results to the baseline of their machine type; return its place, or raise StoreError.

        A result replaces the baseline's result of the same test; all others stay.
        """
        new = updated_baseline(results, self.baseline)
        if isinstance(new, Refused):
            raise StoreError(new.reason)
        self._baselines[new.machine] = new.results
        return "in memory only, because the node is simulated"


def slug(machine: str) -> str:
    """Return the file name of a machine type: "supermicro-sys-821ge-tnhr-8-h100"."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return words[:_SLUG_LIMIT].rstrip("-") or "unknown-type"


class DiskResultsStore:
    """The files below a directory; by default the user's data directory."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = own_directory(DATA) if directory is None else directory
        self._file = AppendFile(results_path(directory), "the results file", StoreError, _READ_BYTES)

    @property
    def path(self) -> str:
        return self._file.path

    def add(self, result: Result) -> None:
        self._file.append(json.dumps(to_json(result), ensure_ascii=True, separators=(",", ":")))

    def results(self, most: int = MOST_RESULTS) -> tuple[Result, ...]:
        """Return the newest saved results, oldest first; skip lines that are not results."""
        lines = [line for line in self._file.lines() if line]
        if len(lines) < most:
            lines = [*(line for line in self._file.earlier_lines() if line), *lines]
        found = [_parsed(line) for line in lines[-most:]]
        return tuple(result for result in found if result is not None)

    def why_unread(self) -> str:
        return self._file.why_unread()

    def baseline(self, machine: str) -> tuple[Result, ...]:
        try:
            return tuple(result for result in self._read_baseline(machine) if result is not None)
        except StoreError:
            return ()

    def no_baseline(self, machine: str) -> str:
        """Return why the baseline cannot be read, or that another machine type has one, else ""."""
        try:
            found = self._read_baseline(machine)
        except StoreError as error:
            return str(error)
        return "" if found else other_type_hint(machine, self._types_like(machine))

    def _read_baseline(self, machine: str) -> list[Result | None]:
        """Return the results of a baseline file, None for what is not a result; or raise StoreError."""
        path = self._baseline_path(machine)
        if not self._directory:
            return []
        try:
            content = _object(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            reason = why(error) if isinstance(error, OSError) else str(error)
            message = f"the baseline {shown_path(path)} cannot be read: {reason}"
            raise StoreError(message) from None
        if content.get("schema") != SCHEMA or not isinstance(content.get("results"), list):
            raise StoreError(f"the baseline {shown_path(path)} has an unknown format")
        if content.get("machine") != machine:
            other = printable(str(content.get("machine")), _SLUG_LIMIT)
            raise StoreError(f"the baseline {shown_path(path)} is for a different machine type: {other}")
        return [from_json(result) for result in content["results"]]

    def _before(self, machine: str) -> tuple[Result, ...]:
        """Return a baseline that is about to be replaced, or raise StoreError: nothing in it may be lost."""
        listed = self._read_baseline(machine)
        found = tuple(result for result in listed if result is not None)
        if len(found) != len(listed):
            path = shown_path(self._baseline_path(machine))
            unknown = plural(len(listed) - len(found), "result")
            raise StoreError(f"the baseline {path} has {unknown} in an unknown format")
        return found

    def _types_like(self, machine: str) -> tuple[str, ...]:
        """Return the machine types of the baselines whose file names begin with the product's name."""
        if not self._directory:
            return ()
        directory, prefix = os.path.join(self._directory, "baselines"), slug(product_of(machine))
        try:
            names = sorted(name for name in os.listdir(directory) if name.startswith(prefix))
        except OSError:
            return ()
        types = []
        for name in names[:_MOST_TYPES]:
            try:
                content = _object(os.path.join(directory, name))
            except (OSError, ValueError):
                continue
            if isinstance(content.get("machine"), str) and content.get("schema") == SCHEMA:
                types.append(printable(content["machine"], _TYPE_LIMIT))
        return tuple(types)

    def save_baseline(self, results: tuple[Result, ...]) -> str:
        try:
            new = updated_baseline(results, self._before)
        except StoreError as error:
            raise StoreError(f"{error}. Rename or remove it first; gdrtop does not overwrite it") from None
        if isinstance(new, Refused):
            raise StoreError(new.reason)
        content = {
            "schema": SCHEMA,
            "machine": new.machine,
            "saved_at": time.time(),
            "results": [to_json(result) for result in new.results],
        }
        path = self._baseline_path(new.machine)
        refusal = why_not_as_root(os.path.dirname(path)) if self._directory else NO_HOME
        if refusal:
            raise StoreError(refusal)
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        except OSError as error:
            directory = shown_path(os.path.dirname(path))
            raise StoreError(f"{directory} could not be created: {why(error)}") from None
        text = json.dumps(content, ensure_ascii=True, indent=1) + "\n"
        NewFile(path, StoreError, replaces=True).save(text.encode())
        return shown_path(path)

    def _baseline_path(self, machine: str) -> str:
        return os.path.join(self._directory, "baselines", f"{slug(machine)}.json")


ResultsStore = MemoryResultsStore | DiskResultsStore


def open_results_store(origin: Origin) -> ResultsStore:
    """Return the store of a host: on disk for this machine, in memory for a simulated node."""
    return DiskResultsStore() if origin.source is Source.LIVE else MemoryResultsStore()


@lru_cache(maxsize=MOST_RESULTS)
def _parsed(line: str) -> Result | None:
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _object(path: str) -> dict[str, Any]:
    """Return the JSON object of a file, or raise ValueError or OSError."""
    try:
        content = json.loads(read_small(path, _READ_BYTES, "a baseline"))
    except RecursionError:
        content = None
    except ValueError:
        raise ValueError("it is not valid JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content
