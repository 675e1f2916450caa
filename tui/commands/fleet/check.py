"""`gdrtop fleet check`: judge many nodes, and show which differ from the rest."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from probes.base.frozen import frozen
from probes.base.origin import Origin, Source
from probes.base.text import plural, printable
from probes.fleet.compare import Unanswered, compare, fleet_status
from probes.fleet.node_set import MOST_NODES
from probes.fleet.summary import NodeSummary, with_shared_traits
from probes.fleet.traits import Trait
from probes.host.protocol import Host
from tui.command_line.arguments import (
    EXIT_WRONG_USAGE,
    UsageError,
    add_arguments,
    add_table_options,
    duration,
    whole_number,
)
from tui.commands.fleet.nodes import demo_fleet, named_nodes, names_nodes, targets
from tui.commands.fleet.output import print_cables, print_fleet
from tui.commands.fleet.saved_nodes import judge_saved, judging_processes, read_lines, summary_of_host
from tui.files.new_file import make_directory
from tui.runtime.open_host import open_simulated
from tui.runtime.printing import ProgressLine

if TYPE_CHECKING:
    from probes.host.remote.fan_out import FanOut
    from probes.host.remote.remote_host import Answers, Missing

_MOST_NOT_SAVED = 5  # that are named
_MOST_WAITED_FOR = 3  # that are named


@frozen
class Judged:
    """A node, and why the recording of it was not written."""

    summary: NodeSummary
    not_saved: str = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_table_options(parser, "fleet")
    add_reading_options(parser)
    add_arguments(
        parser,
        {
            "--save DIR": "write a recording of each node to DIR",
            "--redact": "with --save: replace names, addresses and serial numbers",
            "--cables": "print where each cable ends, and which are swapped",
            "--csv": "with --cables: comma-separated, for a spreadsheet",
            "--tolerate N": "ignore the N worst nodes in the exit status",
        },
        save={"default": ""},
        tolerate={"type": whole_number(0, MOST_NODES, "nodes"), "default": 0},
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of how the nodes are read."""
    add_arguments(
        parser,
        {
            "--from DIR": "judge the recordings and documents in DIR; with check, - reads what gdrtop check "
            "--for fleet printed on each node",
            "--fan-out N": "ask N nodes at once (default: 64)",
            "--timeout TIME": "give up on a node after this time (default: 60)",
        },
        from_={"dest": "saved", "default": ""},
        fan_out={"type": whole_number(1, 1000, "nodes"), "default": 64},
        timeout={"type": duration(1, 3600), "default": 60},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Judge the nodes that the options name, and return the exit status."""
    if options.redact and not options.save:
        raise UsageError("--redact needs --save DIR; the answer itself names nodes")
    if options.cables and (options.json or options.rows):
        raise UsageError("--cables excludes --json and --rows; JSON has the cables of each node anyway")
    if options.csv and not options.cables:
        raise UsageError("--csv needs --cables")
    progress = ProgressLine(sys.stderr)

    running: list[FanOut[Judged]] = []
    is_interrupted = False

    def show(done: int, total: int) -> None:
        progress.show(f"{done} of {plural(total, 'node')}{_waiting(running, total - done)}")

    if options.saved:
        if options.save or options.demo is not None or names_nodes(options):
            raise UsageError(
                "--from judges saved nodes; it cannot be used with --save, --demo or names of nodes"
            )
        if options.saved == "-":
            saved = read_lines(sys.stdin.buffer, lambda done, _: show(done, done))
        else:
            with judging_processes() as executor:
                saved = judge_saved(options.saved, options, executor, show)
        judged, unanswered = tuple(map(Judged, saved.summaries)), saved.unanswered
        label = "standard input" if options.saved == "-" else printable(options.saved, 200)
        origin = Origin(Source.SIMULATED if saved.is_simulated else Source.RECORDED, label)
    elif options.demo is not None:
        fleet = demo_fleet(options.demo)
        judged, unanswered = _simulated(fleet, options, show), ()
        origin = Origin(Source.SIMULATED, plural(len(fleet), "node"))
    else:
        names = named_nodes(options)
        files = _files(options, names)
        with judging_processes() as executor:
            try:
                judged, unanswered = read_fleet(
                    options, names, show, executor, running.append, files=files, redact=options.redact
                )
            except KeyboardInterrupt:
                judged, unanswered = _by_name(names, *running[0].stopped()) if running else ((), ())
                is_interrupted = True
        origin = Origin(Source.REMOTE, plural(len(names), "node"))
    progress.show("")
    if is_interrupted and not judged:
        raise KeyboardInterrupt
    found = compare([each.summary for each in judged], unanswered)
    not_saved = [each.not_saved for each in judged if each.not_saved]
    status = EXIT_WRONG_USAGE if not_saved else fleet_status(found, options.tolerate)
    if options.cables:
        of_cables = print_cables(found, out, options)
        status = status if not_saved else of_cables
    else:
        print_fleet(found, out, status, options, origin)
    for why in not_saved[:_MOST_NOT_SAVED]:
        print(f"gdrtop: not saved: {why}", file=sys.stderr)
    if (more := len(not_saved) - _MOST_NOT_SAVED) > 0:
        print(f"gdrtop: not saved: {plural(more, 'more node')}", file=sys.stderr)
    if is_interrupted:
        raise KeyboardInterrupt  # whose exit status is that of a command that was interrupted
    return status


def _waiting(running: Sequence[FanOut[Judged]], count: int) -> str:
    """Return which nodes keep the answer waiting, if they are few."""
    if not running or not 0 < count <= _MOST_WAITED_FOR:
        return ""
    return f", waiting for {', '.join(running[0].waited_for)} (Ctrl-C prints the others)"


def read_fleet(
    options: argparse.Namespace,
    names: tuple[str, ...],
    show: Callable[[int, int], None],
    executor: Executor,
    begun: Callable[[FanOut[Judged]], object] = lambda _: None,
    files: Mapping[str, str] | None = None,
    redact: bool = False,
    found: Callable[[NodeSummary], object] = lambda _: None,
) -> tuple[tuple[Judged, ...], tuple[Unanswered, ...]]:
    """Ask and judge the nodes; return what was concluded, and why others could not be judged.

    `begun` gets what is running, to stop it, and `found` each node that is judged; `files`: where a
    recording of each node is written.
    """
    from probes.host.remote.fan_out import FanOut, FanOutOptions

    fan_out = FanOut(
        targets(options, names),
        partial(_judged, files=files or {}, redact=redact),
        executor,
        show,
        FanOutOptions(fan_out=options.fan_out, seconds=options.timeout),
        partial(_with_shared_traits, seen={}, found=found),
    )
    begun(fan_out)
    return _by_name(names, *fan_out.run())


def _by_name(
    names: Sequence[str], judged: Mapping[str, Judged], failures: Mapping[str, str]
) -> tuple[tuple[Judged, ...], tuple[Unanswered, ...]]:
    return (
        tuple(judged[name] for name in names if name in judged),
        tuple(Unanswered(name, printable(failures[name], 255)) for name in names if name in failures),
    )


def _judged(answers: Answers, files: Mapping[str, str], redact: bool) -> Judged | Missing:
    """Judge and save a node, after what is left of the last one is freed; that of several would take memory.

    What is kept of it is left out of later collections, which would take a third of the time.
    """
    from probes.host.remote.remote_host import BatchHost, Missing

    gc.collect()
    gc.freeze()
    found = judge_answers(answers)
    if isinstance(found, Missing):
        return found
    return Judged(found, save_node(BatchHost(answers), files[answers.host], redact) if files else "")


def _with_shared_traits(
    judged: Judged, seen: dict[Trait, Trait], found: Callable[[NodeSummary], object]
) -> Judged:
    shared = replace(judged, summary=with_shared_traits(judged.summary, seen))
    found(shared.summary)
    return shared


def judge_answers(answers: Answers) -> NodeSummary | Missing:
    """Judge a node by its answers, or return what it has still to be asked; in a process of the pool."""
    from probes.host.remote.remote_host import BatchHost, Missing
    from probes.host.remote.transport import ConnectionFailed

    try:
        host = BatchHost(answers)
    except ConnectionFailed as error:
        return Missing([], str(error))
    summary = summary_of_host(host, answers.host)
    if host.missing:
        # In order, whichever probe asked first: like paths are next to each other, which compresses better.
        return Missing(sorted(host.missing, key=repr))
    return summary


def save_node(host: Host, path: str, redact: bool = False) -> str:
    """Write a recording of the node; return why it cannot be written, or ""."""
    from probes.recording.format import RecordingError
    from tui.runtime.recorder import Recorder

    try:
        recorder = Recorder(host, path, redact)
    except RecordingError as error:
        return str(error)
    try:
        recorder.host.note_probe()
        summary_of_host(recorder.host)
        recorder.host.end_moment()
        recorder.finish()
    except RecordingError as error:
        return str(error)
    finally:
        recorder.drop()
    return ""


def _files(options: argparse.Namespace, names: Iterable[str]) -> dict[str, str]:
    """Return the file for the recording of each node; without its name if recordings are redacted.

    NotWritten: the directory cannot be created.
    """
    if not options.save:
        return {}
    make_directory(options.save)
    called = [f"node{number:04}" if options.redact else name for number, name in enumerate(names, 1)]
    return {
        name: os.path.join(options.save, f"{file}.tar.gz") for name, file in zip(names, called, strict=True)
    }


def _simulated(
    fleet: Mapping[str, str], options: argparse.Namespace, show: Callable[[int, int], None]
) -> tuple[Judged, ...]:
    files = _files(options, fleet)
    found: list[Judged] = []
    for number, (name, simulated) in enumerate(fleet.items()):
        show(number, len(fleet))
        seed = options.seed + number
        summary = judge_simulated(name, simulated, seed)
        failure = save_node(open_simulated(simulated, seed), files[name], options.redact) if files else ""
        found.append(Judged(summary, failure))
    return tuple(found)


def judge_simulated(name: str, simulated: str, seed: int) -> NodeSummary:
    """Judge a simulated node; NoSuchHost: there is none with this name."""
    return summary_of_host(open_simulated(simulated, seed), name)
