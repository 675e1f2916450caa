"""Results on disk: every one that was measured, and the baseline of each machine type.

$XDG_DATA_HOME/gdrtop/results.jsonl has a JSON object a line (probes/bandwidth/results/result_json.py), and
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
from typing import Any

from probes.bandwidth.model.result import Result
from probes.bandwidth.results.baseline import other_type_hint, product_of, updated_baseline
from probes.bandwidth.results.result_json import SCHEMA, from_json, to_json
from probes.bandwidth.tools.command import Refused
from probes.base.origin import Origin, Source
from probes.base.text import printable
from tui.bandwidth.session import MemoryResultsStore, ResultsStore, StoreError
from tui.files.append_file import AppendFile
from tui.files.new_file import NewFile, shown_path, why, why_not_as_root
from tui.files.xdg import DATA, NO_HOME, own_directory

_MOST_RESULTS = 1000
_READ_BYTES = 8 << 20
_SLUG_LIMIT = 120
_TYPE_LIMIT = 200
_MOST_TYPES = 32  # baselines of one product that are looked at
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_results_store(origin: Origin) -> ResultsStore:
    """On disk for this machine; a simulated node's are kept as long as the program runs."""
    return DiskResultsStore() if origin.source is Source.LIVE else MemoryResultsStore()


def slug(machine: str) -> str:
    """A machine type as a file's name: "supermicro-sys-821ge-tnhr-8-h100"."""
    words = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return words[:_SLUG_LIMIT].rstrip("-") or "unknown-type"


class DiskResultsStore:
    """The files below a directory; a user's own by default."""

    def __init__(self, directory: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self._directory = own_directory(DATA) if directory is None else directory
        self._clock = clock
        path = os.path.join(self._directory, "results.jsonl")
        self._file = AppendFile(path, "the results' file", StoreError, _READ_BYTES)

    @property
    def path(self) -> str:
        """Where the results are."""
        return self._file.path

    def add(self, result: Result) -> None:
        """Keeps one; StoreError, with a sentence, where it cannot be."""
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
            return tuple(one for one in self._listed(machine) if one is not None)
        except StoreError:
            return ()

    def no_baseline(self, machine: str) -> str:
        """That its file cannot be read, or that there is one of another type; "" where it is read."""
        try:
            found = self._listed(machine)
        except StoreError as error:
            return str(error)
        return "" if found else other_type_hint(machine, self._types_like(machine))

    def _listed(self, machine: str) -> list[Result | None]:
        """A baseline as it stands in its file, None what is no result; StoreError where it cannot be read."""
        path = self._baseline_path(machine)
        if not self._directory:
            return []
        try:
            content = _object(path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"the baseline {shown_path(path)} cannot be read: {_why(error)}") from None
        if content.get("schema") != SCHEMA or not isinstance(content.get("results"), list):
            raise StoreError(f"the baseline {shown_path(path)} is not one that this gdrtop understands")
        if content.get("machine") != machine:
            whose = printable(str(content.get("machine")), _SLUG_LIMIT)
            raise StoreError(f"the baseline {shown_path(path)} is of another type: {whose}")
        return [from_json(one) for one in content["results"]]

    def _before(self, machine: str) -> tuple[Result, ...]:
        """A baseline that is about to be replaced: of what is not understood nothing may be lost."""
        listed = self._listed(machine)
        found = tuple(one for one in listed if one is not None)
        if len(found) != len(listed):
            path = shown_path(self._baseline_path(machine))
            raise StoreError(f"{len(listed) - len(found)} results of the baseline {path} are not understood")
        return found

    def _types_like(self, machine: str) -> tuple[str, ...]:
        """The machine types of the baselines whose files' names begin as this product's."""
        if not self._directory:
            return ()
        directory, begins = os.path.join(self._directory, "baselines"), slug(product_of(machine))
        try:
            names = sorted(name for name in os.listdir(directory) if name.startswith(begins))
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
        """Puts what was measured in its machine type's baseline; the file. StoreError where it cannot be."""
        try:
            new = updated_baseline(results, self._before)
        except StoreError as error:
            raise StoreError(f"{error}: it is not overwritten; move it away first") from None
        if isinstance(new, Refused):
            raise StoreError(new.reason)
        content = {
            "schema": SCHEMA,
            "machine": new.machine,
            "saved_at": self._clock(),
            "results": [to_json(one) for one in new.results],
        }
        path = self._baseline_path(new.machine)
        refusal = why_not_as_root(os.path.dirname(path)) if self._directory else NO_HOME
        if refusal:
            raise StoreError(refusal)
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{shown_path(os.path.dirname(path))} cannot be made: {why(error)}") from None
        file = NewFile(path, StoreError, replaces=True)
        try:
            file.write((json.dumps(content, ensure_ascii=True, indent=1) + "\n").encode())
            file.keep()
        finally:
            file.drop()
        return shown_path(path)

    def _baseline_path(self, machine: str) -> str:
        return os.path.join(self._directory, "baselines", f"{slug(machine)}.json")


@lru_cache(maxsize=_MOST_RESULTS)
def _parsed(line: str) -> Result | None:
    try:
        return from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _object(path: str) -> dict[str, Any]:
    """A file's JSON object; ValueError where it has none."""
    try:
        content = json.loads(_content(path))
    except RecursionError:
        content = None
    except ValueError:
        raise ValueError("it is not whole JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    return content


def _why(error: OSError | ValueError) -> str:
    return why(error) if isinstance(error, OSError) else str(error)


def _content(path: str) -> bytes:
    """A file's bytes; OSError where it is no regular file, or far too large for what it should be."""
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _READ_BYTES:
            raise OSError(0, "it is no regular file, or too large for a baseline")
        return os.pread(descriptor, _READ_BYTES, 0)
    finally:
        os.close(descriptor)
