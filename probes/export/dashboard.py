"""A Grafana dashboard of the metrics, as its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from probes.base.frozen import frozen

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = '{instance=~"$instance"}'
_WIDTH = 24  # columns of Grafana's grid


@frozen
class _Panel:
    """One panel: its queries with their legends, and how large it is."""

    title: str
    kind: str  # "stat", "timeseries", "table", "state-timeline"
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    height: int = 8
    unit: str = "short"
    description: str = ""


_PANELS = (
    _Panel(
        "Verdict",
        "state-timeline",
        (("gdrtop_verdict" + _HERE + " == 1", "{{instance}} {{state}}"),),
        width=24,
        description="Run gdrtop check on a node to see cause and fix.",
    ),
    _Panel(
        "GPUs with a direct path",
        "timeseries",
        ((f"gdrtop_gpus_direct{_HERE}", "{{instance}}"), (f"gdrtop_gpus{_HERE}", "{{instance}}, all GPUs")),
    ),
    _Panel("Active findings", "timeseries", ((f"gdrtop_findings{_HERE}", "{{instance}} {{severity}}"),)),
    _Panel("Active findings by device", "table", ((f"gdrtop_finding{_HERE}", ""),), width=24, height=9),
    _Panel(
        "Running jobs by path",
        "timeseries",
        ((f"sum by (path) (gdrtop_jobs{_HERE})", "{{path}}"),),
        description="staged: GPU memory is copied through host memory.",
    ),
    _Panel(
        "References to nvidia_peermem",
        "timeseries",
        ((f"gdrtop_peermem_refcnt{_HERE}", "{{instance}}"), (f"gdrtop_peermem_loaded{_HERE}", "loaded")),
    ),
    _Panel(
        "Ports paused",
        "timeseries",
        (
            (
                f"max by (instance, device, port) (rate(gdrtop_port_pause_seconds_total{_HERE}[5m]))",
                "{{instance}} {{device}}",
            ),
        ),
        unit="percentunit",
        description="Share of time; the priority and direction paused the longest.",
    ),
    _Panel(
        "Ports that wait for credits",
        "timeseries",
        ((f"gdrtop_port_transmit_wait_ratio{_HERE}", "{{instance}} {{device}}"),),
        description="Wait ticks / (wait ticks + words sent). Compare only ports of the same NIC model.",
    ),
    _Panel(
        "PCIe stalls of NICs",
        "timeseries",
        ((f"gdrtop_port_pcie_stall_ratio{_HERE}", "{{instance}} {{device}}"),),
        unit="percentunit",
    ),
    _Panel(
        "Age of the last check",
        "timeseries",
        ((f"time() - gdrtop_last_check_timestamp_seconds{_HERE}", "{{instance}}"),),
        unit="s",
    ),
    _Panel(
        "Values that could not be read",
        "table",
        ((f"gdrtop_unknown_values{_HERE} > 0", ""),),
        description="Most need root.",
    ),
    _Panel("Paths between GPUs and NICs", "table", ((f"gdrtop_path_info{_HERE}", ""),), width=12),
)


def dashboard() -> str:
    """Return the dashboard; Grafana asks for the data source when it is imported."""
    content = {
        "title": "GPUDirect RDMA (gdrtop)",
        "uid": "gdrtop",
        "schemaVersion": 39,
        "tags": ["gdrtop", "rdma", "gpu"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(gdrtop_verdict, instance)",
                    "multi": True,
                    "includeAll": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": list(_placed()),
    }
    return f"{json.dumps(content, indent=1)}\n"


def _placed() -> Iterator[dict[str, Any]]:
    """Yield the panels in rows, from left to right."""
    x = y = height = 0
    for number, panel in enumerate(_PANELS, 1):
        if x + panel.width > _WIDTH:
            x, y, height = 0, y + height, 0
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.description,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
            "datasource": _SOURCE,
            "targets": [
                _target(place, query, legend, panel.kind)
                for place, (query, legend) in enumerate(panel.queries)
            ],
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        }
        x, height = x + panel.width, max(height, panel.height)


def _target(place: int, query: str, legend: str, kind: str) -> dict[str, Any]:
    target = {"refId": "ABC"[place], "expr": query, "legendFormat": legend, "datasource": _SOURCE}
    return {**target, "format": "table", "instant": True} if kind == "table" else target
