"""The commands that a simulated node obeys."""

from probes.simulation.commands.catalogue import perform
from probes.simulation.commands.performed import Performed

__all__ = ["Performed", "perform"]
