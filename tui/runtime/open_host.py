"""Open the node that the options choose: this machine, a tree, a simulated or a recorded node."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from probes.base.origin import Origin, Source
from probes.base.text import printable
from probes.simulation.node.model.names import SIMULATED_NAMES

if TYPE_CHECKING:
    from probes.host.protocol import Host
    from probes.recording.replay_host import ReplayHost


class NoSuchHost(Exception):
    """The requested node does not exist; the message says why."""


def chosen_origin(options: argparse.Namespace) -> Origin:
    """Return where the facts will be from; NoSuchHost: there is no such node."""
    if options.demo is not None:
        return Origin(Source.SIMULATED, _simulated_name(options.demo))
    root = os.path.realpath(options.root)
    if not os.path.isdir(root):
        raise NoSuchHost(f"--root {options.root!r} is not a directory")
    return Origin(Source.LIVE) if root == "/" else Origin(Source.TREE, printable(root))


def _simulated_name(asked: str) -> str:
    """Return the name of a simulated node with its faults after a "+"."""
    node, plus, wanted = asked.partition("+")
    node = node or SIMULATED_NAMES[0]
    if node not in SIMULATED_NAMES:
        raise NoSuchHost(f"unknown simulated node {node!r}; choose one of {', '.join(SIMULATED_NAMES)}")
    if wanted:
        from probes.simulation.faults.catalogue import FAULTS, NoSuchFault
        from probes.simulation.host import SimulatedHost

        try:
            idle = SimulatedHost(f"{node}{plus}{wanted}").faults_without_effect
        except NoSuchFault as error:
            from difflib import get_close_matches

            if error.args[0] in FAULTS:
                other = f"{FAULTS[error.args[0]].on}+{error.args[0]}"
                raise NoSuchHost(
                    f"fault {error.args[0]!r} cannot be simulated on {node}; try {other}"
                ) from None
            near = get_close_matches(error.args[0], FAULTS, cutoff=0.4)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            raise NoSuchHost(f"unknown fault {error.args[0]!r}{hint}; gdrtop --demo list shows all") from None
        if idle:
            fault = FAULTS[idle[0]]
            if node == fault.on:
                raise NoSuchHost(f"fault {fault.name!r} changes nothing with these other faults")
            raise NoSuchHost(
                f"fault {fault.name!r} changes nothing on {node}; try {fault.on}+{fault.name}"
            )
    return f"{node}{plus}{wanted}"


def open_host(options: argparse.Namespace) -> Host:
    """Return the host that the options choose."""
    if options.replay is not None:
        host = open_recording(options)
        if host.recording.damage:
            print(f"gdrtop: {printable(options.replay)} is {host.recording.damage}", file=sys.stderr)
        return host
    origin = chosen_origin(options)
    if origin.source is Source.SIMULATED:
        from probes.simulation.host import SimulatedHost

        return SimulatedHost(origin.label, options.seed)
    from probes.host.local import LocalHost

    return LocalHost(options.root)


def open_hardware(name: str, seed: int = 0) -> Host:
    """Return a simulated node with its faults, or the node of a recording; NoSuchHost: there is neither."""
    if os.path.isfile(name):
        return _replay(name)
    from probes.simulation.host import SimulatedHost

    return SimulatedHost(_simulated_name(name), seed)


def open_recording(options: argparse.Namespace) -> ReplayHost:
    """Return the recorded node; NoSuchHost: the file cannot be used."""
    if options.demo is not None or options.root != "/":
        raise NoSuchHost("--replay cannot be used with --demo or --root")
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
