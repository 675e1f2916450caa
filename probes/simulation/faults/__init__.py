"""Faults of simulated nodes: `--demo hgx-h100+acs-on,port-down`."""
