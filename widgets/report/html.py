"""The report as one HTML file: no scripts, no requests, its style sheet and pictures inside.

Jinja2 escapes every value. The Content-Security-Policy allows the page's own style sheet, by its hash, and
nothing else.
"""

from __future__ import annotations

import base64
from functools import cache
from hashlib import sha256
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probes.setup.report import Report
from widgets.report.page import HOW_TO_MEASURE, NO_CHANGES, conclusions_of, page_of, results_of
from widgets.report.svg import draw_bandwidth, draw_topology


def html_of(report: Report, version: str) -> str:
    """Return the HTML document; `version`: of gdrtop."""
    style = _style()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page_of(report, version),
            style=Markup(style),  # the package's own file
            style_hash=base64.b64encode(sha256(style.encode()).digest()).decode(),
            topology=Markup(draw_topology(report)),  # ElementTree has escaped it
            bandwidth=Markup(draw_bandwidth([measured.result for measured in report.measured])),
            results=results_of(report),
            conclusions=conclusions_of(report),
            how_to_measure=HOW_TO_MEASURE,
            no_changes=NO_CHANGES,
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("widgets.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _style() -> str:
    return resources.files("widgets.report").joinpath("page.css").read_text(encoding="utf-8")
