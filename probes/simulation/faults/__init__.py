"""Faults that a simulated node can have: `--demo hgx-h100+acs-on,port-down`."""

from probes.simulation.faults.catalogue import FAULTS, NoSuchFault, split_name
from probes.simulation.faults.fault import Fault

__all__ = ["FAULTS", "Fault", "NoSuchFault", "split_name"]
