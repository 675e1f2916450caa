"""What monitoring systems make of the metrics: a Grafana dashboard, and alert rules for Prometheus."""

from __future__ import annotations

from probes.base.data_files import read_text


def alert_rules() -> str:
    """Return the YAML of a rule file."""
    return read_text(__package__, "alert_rules.yaml")


def dashboard() -> str:
    """Return the dashboard; Grafana asks for the data source when it is imported."""
    return read_text(__package__, "dashboard.json")
