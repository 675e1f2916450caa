"""Checks of area modules."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("modules")
