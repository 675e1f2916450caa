"""Simulated nodes: made up, described in nodes/*.toml, and marked SIMULATED wherever they are shown."""

from probes.simulation.commands import Performed
from probes.simulation.description import simulated_names, title
from probes.simulation.host import SimulatedHost, SimulatedTest

__all__ = ["Performed", "SimulatedHost", "SimulatedTest", "simulated_names", "title"]
