"""Open the node that the options choose: this machine, a tree, a simulated or a recorded node."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from probes.base.origin import Origin, Source
from probes.base.text import did_you_mean, printable
from probes.simulation.node.model.names import SIMULATED_NAMES
from tui.settings.current import current

if TYPE_CHECKING:
    from probes.base.unknown import Maybe
    from probes.host.component_history import ComponentHistory
    from probes.host.protocol import Host
    from probes.host.remote.connection import Connections
    from probes.host.remote.remote_host import QuestionLists, RemoteHost
    from probes.host.remote.transport import Target
    from probes.queries.finding import Finding
    from probes.recording.archive import Recording
    from probes.recording.replay_host import ReplayHost
    from probes.simulation.faults.fault import Fault


class NoSuchHost(Exception):
    """The requested node does not exist; the message says why."""


def chosen_origin(options: argparse.Namespace) -> Origin:
    """Return where the facts will be from; NoSuchHost: there is no such node."""
    if options.demo is not None:
        return Origin(Source.SIMULATED, _simulated_name(options.demo))
    if options.host:
        return Origin(Source.REMOTE, printable(options.host))
    root = os.path.realpath(options.root)
    if not os.path.isdir(root):
        raise NoSuchHost(f"--root {options.root!r} is not a directory")
    return Origin(Source.LIVE) if root == "/" else Origin(Source.TREE, printable(root))


def _simulated_name(asked: str) -> str:
    """Return the name of a simulated node with its faults after a "+"."""
    node, plus, wanted = asked.partition("+")
    node = node or SIMULATED_NAMES[0]
    if node not in SIMULATED_NAMES:
        raise NoSuchHost(f"unknown simulated node {node!r}{_node_hint(node)}")
    if wanted:
        from probes.simulation.faults.catalogue import FAULTS, NoSuchFault

        try:
            idle = fault_without_effect(node, wanted)
        except NoSuchFault as error:
            if error.args[0] in FAULTS:
                other = f"{FAULTS[error.args[0]].on}+{error.args[0]}"
                raise NoSuchHost(
                    f"fault {error.args[0]!r} cannot be simulated on {node}; try {other}"
                ) from None
            hint = did_you_mean(error.args[0], FAULTS, 0.4, otherwise="; gdrtop --demo list shows all")
            raise NoSuchHost(f"unknown fault {error.args[0]!r}{hint}") from None
        if idle:
            fault, reason = idle
            if node == fault.on:
                raise NoSuchHost(f"fault {fault.name!r} has no effect with these other faults")
            raise NoSuchHost(
                f"fault {fault.name!r} has no effect on {node}: {reason}; try {fault.on}+{fault.name}"
            )
    return f"{node}{plus}{wanted}"


def _node_hint(node: str) -> str:
    """Return the nodes that were meant; without a similar one, all of them."""
    name, comma, faults = node.partition(",")
    if comma and name in SIMULATED_NAMES:
        return f"; the first fault follows a plus sign: {name}+{faults}"
    return did_you_mean(node, SIMULATED_NAMES, 0.6, otherwise=f"; choose one of {', '.join(SIMULATED_NAMES)}")


@lru_cache(maxsize=64)
def fault_without_effect(node: str, wanted: str) -> tuple[Fault, str] | None:
    """Return the first of the faults "acs-on,port-down" that no check finds on a node, and why.

    A fault without checks shows in the live view; it has an effect if it changes anything. That a fault is
    found on the node that it is described for is not checked here: tests prove it.
    NoSuchFault: there is no fault of this name, or this node cannot have it.
    """
    from probes.checks.registry import findings
    from probes.live.job_examination import examine_with_jobs
    from probes.queries.finding import Status
    from probes.simulation.faults.catalogue import faults_of
    from probes.simulation.host import SimulatedHost

    host = SimulatedHost(f"{node}+{wanted}")
    idle = host.faults_without_effect
    doubtful = [fault for fault in faults_of(wanted) if fault.name in idle or fault.on != node]
    checks = frozenset[str]().union(*(fault.finds for fault in doubtful))
    outcomes: dict[str, Finding] = {}
    if checks:
        outcomes = {finding.id: finding for finding in findings(examine_with_jobs(host), checks)}
    for fault in doubtful:
        own = [outcomes[name] for name in sorted(fault.finds)]
        is_found = any(finding.status is Status.FOUND for finding in own)
        if fault.name in idle or (own and not is_found):
            return fault, _reason(own[0]) if own else "this node has no job or part that it could affect"
    return None


def _reason(finding: Finding) -> str:
    """Return what a check says that has not found a fault."""
    if finding.cause:
        return f"{finding.id} could not run ({finding.cause})"
    seen = f" ({finding.evidence[0].value})" if finding.evidence and finding.evidence[0].value else ""
    return f"{finding.ok}{seen}"


def open_host(options: argparse.Namespace, is_whole: bool = False) -> Host:
    """Return the host that the options choose; a recording at one moment, or with `is_whole` all of it."""
    if options.replay is not None:
        host = open_recording(options)
        if host.recording.damage:
            print(f"gdrtop: {printable(options.replay)} is {host.recording.damage}", file=sys.stderr)
        if not is_whole:
            show_moment(host, moment_of(host.recording, options.at))
        return host
    if options.at:
        raise NoSuchHost("--at needs --replay")
    if options.host:
        if options.demo is not None or options.root != "/":
            raise NoSuchHost("--host cannot be used with --demo, --root or --replay")
        return connect(target_of(options.host, over=options.over, is_sudo=options.sudo))
    origin = chosen_origin(options)
    if origin.source is Source.SIMULATED:
        from probes.simulation.host import SimulatedHost

        return SimulatedHost(origin.label, options.seed)
    from probes.host.machine.local import LocalHost

    return LocalHost(options.root, _history)


def _history() -> Maybe[ComponentHistory]:
    from tui.files.reliability.reading import read_history

    return read_history()


def open_simulated(name: str, seed: int = 0) -> Host:
    """Return a simulated node, with its faults after a "+"; NoSuchHost: there is none."""
    from probes.simulation.host import SimulatedHost

    return SimulatedHost(_simulated_name(name), seed)


def target_of(host: str, over: str = "", is_sudo: bool = False) -> Target:
    """Return how to reach a node; NoSuchHost: its name or the command cannot be used."""
    from probes.host.remote.transport import NODE_NAME, SSH, Target

    if not NODE_NAME.fullmatch(host):
        raise NoSuchHost(f"--host {printable(host)!r} is not the name of a node")
    if not over:
        return Target(host, SSH, is_sudo)
    try:
        transport = tuple(shlex.split(over))
    except ValueError as error:
        raise NoSuchHost(f"--over {printable(over)!r}: {error}") from None
    if not any("{host}" in word for word in transport):
        raise NoSuchHost(f"--over {printable(over)!r} has no {{host}}, which stands for the node")
    return Target(host, transport, is_sudo)


def connect(target: Target) -> RemoteHost:
    """Return a node that is elsewhere, of which all has been asked once; NoSuchHost: it does not answer."""
    from probes.host.remote.transport import ConnectionFailed

    try:
        return reach(target)
    except ConnectionFailed as error:
        raise NoSuchHost(f"cannot read {target.host}: {error}") from None


def reach(
    target: Target,
    among: Connections | None = None,
    read: Callable[[RemoteHost], object] | None = None,
    lists: QuestionLists | None = None,
) -> RemoteHost:
    """Return the same node; ConnectionFailed: it does not answer, in words that do not name it.

    It ends with the connections that it is `among`. `read`: what is asked, by default all; `lists`: as for
    `read_ahead`.
    """
    from probes.host.remote.remote_host import RemoteHost
    from probes.live.job_examination import examine_with_jobs

    host = RemoteHost(target, among, float(current().configured("fleet.timeout").value))
    host.read_ahead(examine_with_jobs if read is None else read, lists)
    return host


def moment_of(recording: Recording, text: str) -> int:
    """Return the last moment up to a time: 14:03:11, an ISO 8601 time or +SECONDS; "" means the last one.

    NoSuchHost: the text does not name a time, or the recording begins later or ends earlier.
    """
    times = [moment.at for moment in recording.moments]
    if not text:
        return len(times) - 1
    at = _seconds(text, times[0])
    if at is None:
        raise NoSuchHost(f"--at {text!r} is not a time; write 14:03:11, 2026-11-23T14:03:11 or +90")
    number = bisect_right(times, at + 0.999) - 1  # 14:03:11 includes the whole second
    if at >= times[-1] + 1.0:
        raise NoSuchHost(f"--at {text!r}: the recording ends at {_clock(times[-1])}")
    if number < 0:
        raise NoSuchHost(f"--at {text!r}: the recording begins at {_clock(times[0])}")
    return number


def _seconds(text: str, began_at: float) -> float | None:
    """Return seconds since 1970; a time of day is the first one after the recording's begin."""
    if re.fullmatch(r"\+[0-9]{1,6}", text):
        return began_at + int(text[1:])
    try:
        if not re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text):
            return datetime.fromisoformat(text).timestamp()
        hour, minute, second = (int(part) for part in (*text.split(":"), "0")[:3])
        began = datetime.fromtimestamp(began_at).astimezone()
        chosen = began.replace(hour=hour, minute=minute, second=second, microsecond=0)
        # An hour of tolerance: a time shortly before the begin is a mistake, not the next day.
        return (chosen + timedelta(days=chosen < began - timedelta(hours=1))).timestamp()
    except (ValueError, OverflowError):
        return None


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def show_moment(host: ReplayHost, number: int) -> None:
    """Go to a moment of a recording, and name it in the origin that every output begins with."""
    host.seek(number)
    moments = host.recording.moments
    which = f"moment {number + 1} of {len(moments)}, {_clock(moments[number].at)}"
    host.origin = Origin(host.origin.source, f"{host.origin.label}, {which}")


def open_hardware(name: str, seed: int = 0) -> Host:
    """Return a simulated node with its faults, or the node of a recording; NoSuchHost: there is neither."""
    if os.path.isfile(name):
        return _replay(name)
    return open_simulated(name, seed)


def open_recording(options: argparse.Namespace) -> ReplayHost:
    """Return the recorded node; NoSuchHost: the file cannot be used."""
    if options.demo is not None or options.root != "/" or options.host:
        raise NoSuchHost("--replay cannot be used with --demo, --root or --host")
    return _replay(options.replay)


def _replay(path: str) -> ReplayHost:
    from probes.recording.archive import read_archive
    from probes.recording.format import RecordingError
    from probes.recording.replay_host import ReplayHost
    from tui.files.new_file import chunks_of

    try:
        return ReplayHost(read_archive(chunks_of(path)))
    except RecordingError as error:
        raise NoSuchHost(f"cannot replay {printable(path)}: {error}") from None
