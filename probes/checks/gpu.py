"""Checks of area gpu."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("gpu")
