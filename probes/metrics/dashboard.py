"""What monitoring systems make of the metrics: a Grafana dashboard, and alert rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files


def alert_rules() -> str:
    """Return the YAML of a rule file."""
    return _text("alert_rules.yaml")


def dashboard() -> str:
    """Return the dashboard; Grafana asks for the data source when it is imported."""
    return _text("dashboard.json")


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
