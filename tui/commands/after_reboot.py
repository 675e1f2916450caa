"""`gdrtop check --after-reboot`: the forecast as text and as JSON."""

from __future__ import annotations

from typing import Any, TextIO

from probes.base.text import printable
from probes.base.unknown import Unknown
from probes.facts.kernel import boot
from probes.facts.system import distribution
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host
from probes.queries.finding import Status
from probes.setup.forecast import Forecast, KernelForecast, exit_status, forecast
from probes.snapshot.examination import Examination, examine
from tui.commands.arguments import UsageError
from tui.commands.finding_json import finding_json
from tui.runtime.json_values import document, host_name, object_of, verdict_json, write_json
from tui.runtime.node_heading import heading
from tui.runtime.printing import print_lines, text_width
from widgets.doctor.forecast import draw

_SECONDS = 30.0


def write_forecast(
    host: Host, out: TextIO, release: str = "", as_json: bool = False, ascii_only: bool = False
) -> int:
    """Print what a reboot brings and return the exit status; `release`: the kernel to show in detail.

    Raises:
        UsageError: the kernel is not installed.
    """
    examination = examine(host)
    found = read_forecast(host, examination, release)
    kernel = found.chosen(release)
    if kernel is None and release and found.kernels:
        installed = ", ".join(found.installed)
        raise UsageError(f"kernel {printable(release, 80)!r} is not installed; installed: {installed}")
    status = exit_status(kernel)
    if as_json:
        write_json(forecast_json(host, examination, found, kernel), out)
        return status
    lines = [heading(examination.node), *draw(found, kernel, text_width(out))]
    print_lines(lines, out, ascii_only)
    return status


def read_forecast(host: Host, examination: Examination, release: str = "") -> Forecast:
    """Start a copy of the node with each kernel, in at most 30 s, and judge it."""

    def read() -> Forecast:
        system = distribution.probe(host)
        facts = boot.probe(host, system, examination.node.kernel_release)
        return forecast(host, examination, facts, release)

    answer = start_probe(host, "forecast", read).answer(_SECONDS)
    return (
        Forecast((), answer, f"the next boot could not be read ({answer})")
        if isinstance(answer, Unknown)
        else answer
    )


def forecast_json(
    host: Host, examination: Examination, found: Forecast, kernel: KernelForecast | None
) -> dict[str, Any]:
    """Return the JSON document; `kernel`: the one that decides the exit status."""
    content = object_of({"next_kernel": found.next_kernel})
    content |= {
        "exit_status": exit_status(kernel),
        "kernel": None if kernel is None else kernel.release,
        "not_applicable": found.not_applicable,
        "kernels": [kernel_json(one) for one in found.kernels],
        "installed": list(found.installed),
        "not_known": list(found.not_known),
    }
    node = examination.node
    return document("forecast", host_name(node), node.origin, host.wall_clock(), content)


def kernel_json(kernel: KernelForecast) -> dict[str, Any]:
    """Return one kernel's forecast."""
    return {
        **object_of({"release": kernel.release, "running": kernel.is_running, "next": kernel.is_next}),
        "outlook": kernel.outlook,
        "exit_status": exit_status(kernel),
        "verdict": verdict_json(kernel.verdict),
        "findings": [finding_json(one) for one in kernel.findings if one.status is Status.FOUND],
        "assumed": kernel.missing,
    }
