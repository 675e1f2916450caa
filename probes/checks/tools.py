"""Checks of area tools."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("tools")
