"""Checks of area nic."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("nic")
