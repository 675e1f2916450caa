"""The first line of what a command prints about a node."""

from __future__ import annotations

from probes.base.unknown import known
from probes.facts.node import Node
from probes.facts.system.platform import PlatformFacts
from widgets.base.lines import Line, line
from widgets.node import verdict as verdict_drawing


def heading(node: Node) -> Line:
    """Return the first line: gdrtop, the node's name, and where the facts are from."""
    host = known(node.platform.hostname, "?") if isinstance(node.platform, PlatformFacts) else "?"
    return line("gdrtop  ", host, " ", verdict_drawing.origin_run(node.origin))
