"""What monitoring systems make of the metrics: a Grafana dashboard, and alert rules for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from probes.base.data_file import read_data
from probes.base.frozen import frozen
from probes.snapshot.verdict import State

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = '{instance=~"$instance"}'
_WIDTH = 24  # columns of Grafana's grid


@frozen
class _Panel:
    """One panel: its queries with their legends, and how large it is."""

    title: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"  # "table", "state-timeline"
    width: int = 12
    height: int = 8
    unit: str = "short"
    description: str = ""
    words: tuple[tuple[str, str], ...] = ()  # what the values 1, 2, … mean, and their colors


# A state that could be missed must not have the color of a good one, so each has its own.
_COLORS = {
    State.ACTIVE: "dark-green",
    State.READY: "green",
    State.DEGRADED: "yellow",
    State.BROKEN: "red",
    State.UNKNOWN: "purple",
    State.NOT_APPLICABLE: "#808080",
}


def _verdict() -> str:
    """Return the query for the number of a node's state, in the order of _COLORS from 1."""
    return " + ignoring (state) ".join(
        f'{number} * gdrtop_verdict{{state="{state.name.lower()}",instance=~"$instance"}}'
        for number, state in enumerate(_COLORS, 1)
    )


_PANELS = (
    _Panel(
        "Verdict",
        ((_verdict(), "{{instance}}"),),
        "state-timeline",
        width=24,
        description="Run gdrtop check on a node to see cause and fix.",
        words=tuple((state.value, color) for state, color in _COLORS.items()),
    ),
    _Panel(
        "GPUs with a direct path",
        ((f"gdrtop_gpus_direct{_HERE}", "{{instance}}"), (f"gdrtop_gpus{_HERE}", "{{instance}}, all GPUs")),
    ),
    _Panel("Active findings", ((f"gdrtop_findings{_HERE}", "{{instance}} {{severity}}"),)),
    _Panel("Active findings by device", ((f"gdrtop_finding{_HERE}", ""),), "table", width=24, height=9),
    _Panel(
        "Nodes with running jobs by path",
        # Each node counts a job: their sum would be a job times its nodes.
        ((f"sum by (path) (gdrtop_jobs{_HERE} > bool 0)", "{{path}}"),),
        description="staged: GPU memory is copied through host memory. A job on 64 nodes counts as 64 nodes.",
    ),
    _Panel(
        "Jobs that wait without traffic",
        ((f"gdrtop_job_silent_seconds{_HERE}", "{{instance}}"),),
        unit="s",
        description="The longest on each node. Run gdrtop hang there. Needs gdrtop metrics --listen.",
    ),
    _Panel(
        "References to nvidia_peermem",
        ((f"gdrtop_peermem_refcnt{_HERE}", "{{instance}}"), (f"gdrtop_peermem_loaded{_HERE}", "loaded")),
    ),
    _Panel(
        "Ports paused",
        (
            (
                "max by (instance, device, port, direction)"
                f" (rate(gdrtop_port_pause_seconds_total{_HERE}[5m]))",
                "{{instance}} {{device}} {{direction}}",
            ),
        ),
        unit="percentunit",
        description="Share of time, of the priority paused the longest. received: the port must wait;"
        " transmitted: it makes its peers wait.",
    ),
    _Panel(
        "Ports that wait for credits",
        ((f"gdrtop_port_transmit_wait_ratio{_HERE}", "{{instance}} {{device}}"),),
        description="Wait ticks / (wait ticks + words sent). Compare only ports of the same NIC model.",
    ),
    _Panel(
        "PCIe stalls of NICs",
        ((f"gdrtop_port_pcie_stall_ratio{_HERE}", "{{instance}} {{device}}"),),
        unit="percentunit",
    ),
    _Panel(
        "Age of the last check",
        ((f"time() - gdrtop_last_check_timestamp_seconds{_HERE}", "{{instance}}"),),
        unit="s",
    ),
    _Panel(
        "Values that could not be read",
        ((f"gdrtop_unknown_values{_HERE} > 0", ""),),
        "table",
        description="Most need root.",
    ),
    _Panel("Paths between GPUs and NICs", ((f"gdrtop_path_info{_HERE}", ""),), "table"),
)


def alert_rules() -> str:
    """Return the YAML of a rule file."""
    return read_data(__package__, "alert_rules.yaml")


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
            "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        }
        x, height = x + panel.width, max(height, panel.height)


def _defaults(panel: _Panel) -> dict[str, Any]:
    if not panel.words:
        return {"unit": panel.unit}
    options = {
        str(number): {"text": text, "color": color, "index": number}
        for number, (text, color) in enumerate(panel.words, 1)
    }
    return {"mappings": [{"type": "value", "options": options}]}


def _target(place: int, query: str, legend: str, kind: str) -> dict[str, Any]:
    target = {"refId": "ABC"[place], "expr": query, "legendFormat": legend, "datasource": _SOURCE}
    return {**target, "format": "table", "instant": True} if kind == "table" else target
