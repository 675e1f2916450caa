"""Nodes that were saved: recordings of `gdrtop record`, and JSON documents of `gdrtop diff` and others."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import BinaryIO

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.checks.judgment import judge
from probes.fleet.compare import Unanswered
from probes.fleet.node_set import MOST_NODES
from probes.fleet.summary import NodeSummary, from_json, summarize, with_shared_traits
from probes.fleet.traits import Trait
from probes.host.protocol import Host
from probes.host.remote.connection import interrupts_deferred
from probes.host.remote.transport import NODE_NAME
from tui.bandwidth.slow_results import saved_results
from tui.commands.check import examine_host
from tui.files.new_file import shown_path, why
from tui.files.read_file import read_small
from tui.runtime.memory import end_with_parent
from tui.runtime.open_host import NoSuchHost, open_host

_MOST_BYTES = 256 << 20
_SUFFIXES = (".tar.gz", ".tgz", ".json")
_MOST_LINE_BYTES = 4 << 20  # of a node
_WHAT = "a document of gdrtop"
_RECORDINGS_AT_ONCE = 4  # that a process is given


@frozen
class Named:
    """Nodes from one place: a file, a host, a simulated node. Most places have one node."""

    label: str  # by which a node is called if others have the same name
    origin: Origin
    summaries: tuple[NodeSummary, ...]
    unanswered: tuple[Unanswered, ...] = ()
    recording: str = ""  # the path of a recording


@frozen
class SavedNodes:
    """All nodes of a directory or of the input."""

    summaries: tuple[NodeSummary, ...]
    unanswered: tuple[Unanswered, ...]
    is_simulated: bool = False  # one of them at least


def read_host(host: Host, label: str) -> Named:
    """Examine and judge a host, or the last moment of a recording."""
    return Named(label, host.origin, (summary_of_host(host),))


def summary_of_host(host: Host, name: str = "") -> NodeSummary:
    """Examine a host as `gdrtop check` does, and return its summary; `name`: instead of its own."""
    examination = examine_host(host)
    return summarize(examination, judge(examination, called=name), name, saved_results(host.origin))


def read_saved(path: str, options: argparse.Namespace) -> Named:
    """Return the node of a recording, or all nodes of a JSON document.

    NoSuchHost: the file cannot be read, or is neither.
    """
    label = label_of(path)
    if path.lower().endswith(".json"):
        return _read_document(path, label)
    own = {"replay": path, "demo": None, "root": "/", "host": "", "at": ""}
    chosen = argparse.Namespace(**{**vars(options), **own})
    return replace(read_host(open_host(chosen), label), recording=path)


def label_of(path: str) -> str:
    """Return the name of a file without its suffix."""
    name = os.path.basename(path.rstrip("/"))
    suffix = next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), "")
    return printable(name[: len(name) - len(suffix)] or name, 120)


def _read_document(path: str, label: str) -> Named:
    try:
        content = json.loads(read_small(path, _MOST_BYTES, _WHAT))
    except OSError as error:
        raise NoSuchHost(f"{shown_path(path)} cannot be read: {why(error)}") from None
    except (ValueError, RecursionError):
        raise NoSuchHost(f"{shown_path(path)} is not valid JSON; write it with --json") from None
    found = _nodes_of(content, label)
    if not found.summaries:
        hint = "gdrtop check --for fleet, gdrtop diff --json or gdrtop record"
        raise NoSuchHost(f"{shown_path(path)} has no node; save one with {hint}")
    return found


def _nodes_of(content: object, label: str) -> Named:
    """Return the nodes of a document, or the one node that it is."""
    fields = content if isinstance(content, dict) else {}
    listed, left_out = fields.get("nodes"), fields.get("unanswered")
    found = [from_json(node) for node in (listed[:MOST_NODES] if isinstance(listed, list) else [fields])]
    unanswered = [_unanswered(node) for node in (left_out[:MOST_NODES] if isinstance(left_out, list) else [])]
    source = Source.SIMULATED if fields.get("source") == Source.SIMULATED.value else Source.RECORDED
    return Named(
        label,
        Origin(source, label),
        tuple(summary for summary in found if summary is not None),
        tuple(node for node in unanswered if node is not None),
    )


def read_lines(stream: BinaryIO, progress: Callable[[int, int], object] = lambda *_: None) -> SavedNodes:
    """Judge the nodes in lines of `gdrtop check --for fleet`, before which clush and pdsh write "NODE: ".

    What else a node printed is why it has not answered. NoSuchHost: there is no node, or too many.
    """
    sides: list[Named] = []
    said: dict[str, str] = {}  # by node, without a document
    seen: dict[Trait, Trait] = {}
    while line := stream.readline(_MOST_LINE_BYTES):
        before, brace, _ = line.partition(b"{")
        name = printable(before.decode("utf-8", "replace").strip().rstrip(":").strip(), 255)
        found = _line_of(line[len(before) :], name) if brace and NODE_NAME.fullmatch(name or "-") else None
        if found is None:
            node, colon, text = line.decode("utf-8", "replace").partition(":")
            if colon and NODE_NAME.fullmatch(node.strip()):
                said[node.strip()] = printable(text.strip(), 255)
            continue
        shared = tuple(with_shared_traits(summary, seen) for summary in found.summaries)
        sides.append(replace(found, summaries=shared))
        if len(sides) > MOST_NODES:
            raise NoSuchHost(f"the input has more than {MOST_NODES} nodes")
        progress(len(sides), len(sides))
    if not sides:
        raise NoSuchHost("the input has no node; pipe what gdrtop check --for fleet prints on each node")
    summaries = with_own_names(sides)
    answered = {summary.name for summary in summaries}
    silent = (Unanswered(name, text) for name, text in said.items() if name not in answered)
    listed = (node for side in sides for node in side.unanswered)
    return SavedNodes(summaries, (*silent, *listed), _is_simulated(sides))


def _line_of(text: bytes, name: str) -> Named | None:
    try:
        found = _nodes_of(json.loads(text), name)
    except (ValueError, RecursionError):
        return None
    if name and len(found.summaries) == 1:  # as it was asked
        found = replace(found, summaries=(replace(found.summaries[0], name=name),))
    return found if found.summaries else None


def _unanswered(content: object) -> Unanswered | None:
    if not isinstance(content, dict):
        return None
    node, reason = content.get("node"), content.get("reason")
    if not isinstance(node, str) or not isinstance(reason, str):
        return None
    return Unanswered(printable(node, 255), printable(reason, 255))


def judge_saved(
    directory: str,
    options: argparse.Namespace,
    executor: Executor,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> SavedNodes:
    """Judge the recordings and JSON documents in a directory, as `read_directory` does."""
    sides, unanswered = read_directory(directory, options, progress, executor)
    return SavedNodes(with_own_names(sides), unanswered, _is_simulated(sides))


def _is_simulated(sides: Iterable[Named]) -> bool:
    return any(side.origin.source is Source.SIMULATED for side in sides)


def read_directory(
    directory: str, options: argparse.Namespace, progress: Callable[[int, int], object], executor: Executor
) -> tuple[list[Named], tuple[Unanswered, ...]]:
    """Read the recordings and JSON documents in a directory; a file that cannot be read is unanswered.

    `progress` is called with the number of files that were read and of all files; `executor`: its processes
    judge recordings.
    NoSuchHost: the directory cannot be read, or has no such file, or too many.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.lower().endswith(_SUFFIXES))
    except (OSError, ValueError) as error:
        raise NoSuchHost(f"{shown_path(directory)} cannot be read: {why(error)}") from None
    names = [name for name in names if not name.startswith(".")]
    if not names or len(names) > MOST_NODES:
        amount = "more than 10000 recordings" if names else "no recording (.tar.gz) and no document (.json)"
        raise NoSuchHost(f"{shown_path(directory)} has {amount}")
    sides: list[Named] = []
    unanswered: list[Unanswered] = []
    seen: dict[Trait, Trait] = {}
    paths = [os.path.join(directory, name) for name in names]
    for number, read in enumerate(_read_all(paths, options, executor)):
        progress(number, len(names))
        if isinstance(read, Unanswered):
            unanswered.append(read)
        else:
            shared = tuple(with_shared_traits(summary, seen) for summary in read.summaries)
            sides.append(replace(read, summaries=shared))
    progress(len(names), len(names))
    unanswered.extend(node for side in sides for node in side.unanswered)
    return sides, tuple(unanswered)


def _read_all(
    paths: Sequence[str], options: argparse.Namespace, executor: Executor
) -> Iterator[Named | Unanswered]:
    """Read the files in their order; recordings, which have to be judged, in the processes."""
    recordings = [path for path in paths if not path.lower().endswith(".json")]
    judged = executor.map(partial(_read_apart, options=options), recordings, chunksize=_RECORDINGS_AT_ONCE)
    for path in paths:
        yield _read_or_not(path, options) if path.lower().endswith(".json") else next(judged)


def _read_apart(path: str, options: argparse.Namespace) -> Named | Unanswered:
    """Read a recording in a process, after what is left of the last one is freed."""
    gc.collect()
    gc.freeze()
    return _read_or_not(path, options)


def _read_or_not(path: str, options: argparse.Namespace) -> Named | Unanswered:
    try:
        return read_saved(path, options)
    except NoSuchHost as error:
        return Unanswered(label_of(path), str(error))


@contextmanager
def judging_processes() -> Iterator[Executor]:
    """Give as many processes as there are cores; they are forked before any thread runs.

    At the end they finish the node that they judge: Python ends a pool that still runs with a traceback.
    """
    executor = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork"), _end_with_gdrtop)
    try:
        with interrupts_deferred():
            executor.submit(os.getpid).result()
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _end_with_gdrtop() -> None:
    """Leave Ctrl-C to gdrtop, and end when it is killed; in a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    gc.freeze()  # what gdrtop has loaded before is no garbage
    gc.disable()


def with_own_names(sides: Sequence[Named]) -> tuple[NodeSummary, ...]:
    """Return all nodes; those with the same name are called by where they come from."""
    count = Counter(summary.name for side in sides for summary in side.summaries)
    renamed = [
        (side, summary, summary.name if count[summary.name] == 1 else _longer(side, summary))
        for side in sides
        for summary in side.summaries
    ]
    return tuple(
        replace(summary, name=name)
        for (_, summary, _), name in zip(renamed, _numbered(name for _, _, name in renamed), strict=True)
    )


def _longer(side: Named, summary: NodeSummary) -> str:
    """Return the label of the place, with the node's name if the place has several nodes."""
    return side.label if len(side.summaries) == 1 else f"{summary.name} in {side.label}"


def _numbered(names: Iterable[str]) -> list[str]:
    """Return the names; one that was there before gets a number: "node", "node (2)"."""
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        number, distinct = 1, name
        while distinct in seen:
            number += 1
            distinct = f"{name} ({number})"
        seen.add(distinct)
        found.append(distinct)
    return found
