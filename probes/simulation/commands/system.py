"""TODO."""

from probes.simulation.commands.performed import Obeyed

COMMANDS: dict[str, Obeyed] = {}
