"""Which node is meant: this machine, a tree, or a simulated one."""

from __future__ import annotations

import argparse
import os

from probes.host import Host, LocalHost


class NoSuchHost(Exception):
    """The node asked for is not there; the message tells the admin what to do."""


def choose_host(options: argparse.Namespace) -> Host:
    """The host that the options name; NoSuchHost where it is not there."""
    if options.demo is not None:
        from probes.simulation import SimulatedHost, simulated_names

        names = simulated_names()
        name = options.demo or names[0]
        if name not in names:
            raise NoSuchHost(f"no simulated node {name!r}; there are: {', '.join(names)}")
        return SimulatedHost(name, options.seed)
    root = options.root
    if not os.path.isdir(root):
        raise NoSuchHost(f"--root {root!r} is not a directory")
    return LocalHost(root)
