"""Checks of area pcie."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("pcie")
