"""The contract of each consumer, by the name that `gdrtop check --for` accepts."""

from __future__ import annotations

from collections.abc import Mapping

from tui.commands.consumers.checked_node import Contract
from tui.commands.consumers.drain import nhc, slurm
from tui.commands.consumers.junit import junit
from tui.commands.consumers.nagios import nagios
from tui.commands.consumers.node_problem_detector import node_problem_detector

CONTRACTS: Mapping[str, Contract] = {
    "nagios": nagios,
    "npd": node_problem_detector,
    "nhc": nhc,
    "slurm": slurm,
    "junit": junit,
}
