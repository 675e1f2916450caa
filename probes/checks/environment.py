"""Checks of area environment."""

from __future__ import annotations

from probes.checks.finding import Area

AREA = Area("environment")
