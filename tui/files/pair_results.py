"""The results of tests between nodes, so that a run that was interrupted can go on.

One file for the same nodes and settings, in $XDG_DATA_HOME/gdrtop/fleet-bench/. Each pair appends one line; a
last line says that the run is complete, and then the next run begins again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from probes.bandwidth.model.rating import Assessment, Rating
from probes.base.unknown import Unknown
from probes.fleet.attribution import PairEnd, PairMemory, PairResult
from probes.fleet.collective import NodeChannels, RingResult, Transport
from probes.fleet.fault_search import Group
from probes.fleet.pairs import PairSettings
from tui.files import NotWritten
from tui.files.append_file import AppendFile, objects_of
from tui.files.xdg import DATA, own_directory

FORMAT = "gdrtop/fleet-bench-results/1"
RING_FORMAT = "gdrtop/fleet-bench-nccl/1"
_READ_BYTES = 64 << 20  # 256 nodes, each with each: 16 MB
_MOST_LINES = 20_000  # of earlier runs
_MOST_SECONDS = 12 * 3600.0  # an older result says little about now


class PairResultsFile:
    """The results of one set of nodes and settings."""

    def __init__(
        self, nodes: Iterable[str], settings: PairSettings, directory: str | None = None, kind: str = ""
    ) -> None:
        """`directory`: by default gdrtop's own; `kind`: of other tests than of pairs."""
        own = own_directory(DATA)
        place = os.path.join(own, "fleet-bench") if directory is None and own else directory or ""
        keys = [sorted(nodes), asdict(settings), *filter(None, (kind,))]
        key = json.dumps(keys, default=lambda value: value.value, sort_keys=True)
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.path = os.path.join(place, f"{name}.jsonl")
        self._file = AppendFile(
            self.path, "the file of results", NotWritten, _READ_BYTES, full_bytes=_READ_BYTES
        )

    def unfinished(self, now: float | None = None) -> tuple[PairResult, ...]:
        """Return the measured results of the last run, oldest first, if it was interrupted; else ().

        Results older than 12 hours do not count, nor do failed tests: they are run again.
        """
        return tuple(result for line in self._unfinished_lines(FORMAT, now) for result in _results(line))

    def _unfinished_lines(self, form: str, now: float | None) -> list[Mapping[str, Any]]:
        at = time.time() if now is None else now
        found: list[Mapping[str, Any]] = []
        for line in objects_of(self._file.lines()):
            if line.get("complete") is True:
                found.clear()
            elif line.get("format") == form and 0.0 <= at - _number(line.get("at")) <= _MOST_SECONDS:
                found.append(line)
        return found

    def earlier(self) -> tuple[tuple[PairResult, ...], ...]:
        """Return the results of each complete run, oldest first, of the newest lines."""
        runs: list[tuple[PairResult, ...]] = [()]
        for line in objects_of(self._file.lines()[-_MOST_LINES:]):
            if line.get("complete") is True:
                runs.append(())
            elif line.get("format") == FORMAT:
                runs[-1] += tuple(_results(line))
        return tuple(filter(None, runs[:-1]))

    def add(self, results: Iterable[PairResult], now: float | None = None) -> None:
        """Append the results of a round, a line for each pair and memory; or raise NotWritten."""
        pairs: dict[tuple[str, str, PairMemory], list[PairResult]] = {}
        for result in results:
            if not isinstance(result.gbps, Unknown):
                pairs.setdefault((result.server.node, result.client.node, result.memory), []).append(result)
        for (server, client, memory), rails in pairs.items():
            line = {
                "format": FORMAT,
                "at": time.time() if now is None else now,
                "server": server,
                "client": client,
                "memory": memory.value,
                "rails": [
                    [rail.rail, rail.server.nic, rail.client.nic, rail.gbps, rail.limit_gbps]
                    for rail in rails
                ],
            }
            self._file.append(json.dumps(line))

    def complete(self) -> None:
        """Note that the run is complete; or raise NotWritten."""
        self._file.append(json.dumps({"complete": True}))


class RingResultsFile(PairResultsFile):
    """The results of all-reduce over one set of nodes."""

    def ring_results(self, now: float | None = None) -> dict[Group, RingResult]:
        """Return the measured results of the last run, if it was interrupted; those that failed run again."""
        results = (_ring_result(line) for line in self._unfinished_lines(RING_FORMAT, now))
        return {result.group: result for result in results if result is not None}

    def add_ring(self, result: RingResult, now: float | None = None) -> None:
        """Append a result, unless it failed; or raise NotWritten."""
        if isinstance(result.bus_gbps, Unknown):
            return
        line = {
            "format": RING_FORMAT,
            "at": time.time() if now is None else now,
            **{name: getattr(result, name) for name in _RING_FIELDS},
            "nodes": result.group.nodes,
            "rails": result.group.rails,
            "rating": [result.assessment.verdict.value, result.assessment.words],
            "transport": result.transport.value,
            "channels": [[each.node, each.gdr, each.total, each.staged_nics] for each in result.channels],
        }
        self._file.append(json.dumps(line))


_RING_FIELDS = ("gpus", "bus_gbps", "size_bytes", "nic_gbps", "limit_gbps", "why", "diagnostics")


def _ring_result(line: Mapping[str, Any]) -> RingResult | None:
    """Return the result of a line; None for a damaged one."""
    try:
        channels = [
            NodeChannels(str(node), int(gdr), int(total), tuple(map(str, nics)))
            for node, gdr, total, nics in line["channels"]
        ]
        verdict, words = line["rating"]
        figures = [None if line[name] is None else _finite(line[name]) for name in ("nic_gbps", "limit_gbps")]
        return RingResult(
            group=Group(tuple(map(str, line["nodes"])), tuple(map(int, line["rails"]))),
            gpus=int(line["gpus"]),
            bus_gbps=_finite(line["bus_gbps"]),
            size_bytes=None if line["size_bytes"] is None else int(line["size_bytes"]),
            nic_gbps=figures[0],
            limit_gbps=figures[1],
            assessment=Assessment(Rating(verdict), str(words)),
            transport=Transport(line["transport"]),
            why=str(line["why"]),
            channels=tuple(channels),
            diagnostics=tuple(map(str, line["diagnostics"])),
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _finite(value: object) -> float:
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _number(value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else -math.inf  # type: ignore[arg-type]


def _results(line: Mapping[str, Any]) -> list[PairResult]:
    """Return the results of a line; none of a damaged one."""
    found = []
    try:
        server, client, memory = str(line["server"]), str(line["client"]), PairMemory(line["memory"])
        for rail, near, far, gbps, limit in line["rails"]:
            if type(rail) is int and math.isfinite(gbps) and (limit is None or math.isfinite(limit)):
                ends = PairEnd(server, str(near)), PairEnd(client, str(far))
                found.append(PairResult(*ends, rail, memory, float(gbps), limit))
    except (KeyError, ValueError, TypeError, OverflowError):
        return []
    return found
