"""Faults of area nic."""

from __future__ import annotations

from probes.simulation.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
