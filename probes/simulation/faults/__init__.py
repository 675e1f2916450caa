"""Faults that a simulated node can have: `--demo hgx-h100+acs-on,port-down`."""
