"""Faults of area modules."""

from __future__ import annotations

from probes.simulation.faults.fault import Fault

FAULTS: tuple[Fault, ...] = ()
