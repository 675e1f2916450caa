"""Simulated nodes with and without bandwidth tools, for plans of tests."""

from dataclasses import replace
from functools import lru_cache

from probes.bandwidth.model.planned_series import PlannedTest, Series
from probes.bandwidth.model.request import Request
from probes.bandwidth.planning.series import plan_series
from probes.base.unknown import Reason, Unknown
from probes.facts.system.tools import Perftest, ToolFacts
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination, examine

HOSTILE = (
    "-oProxyCommand=reboot",
    "a;reboot",
    "$(reboot)",
    "root@-v",
    "-l@node2",
    "a b",
    "a\nb",
    "root@a@b",
    "@node2",
    "",
    "x" * 300,
    "fe80::1%eth0",
)


@lru_cache(maxsize=8)
def node(name: str = "hgx-h100") -> Examination:
    return examine(SimulatedHost(name, clock=lambda: 1000.0))


def planned(request: Request, examination: Examination | None = None) -> Series:
    series = plan_series(examination or node(), request, 18600)
    assert isinstance(series, Series), series
    return series


def only(request: Request, examination: Examination | None = None) -> PlannedTest:
    (test,) = planned(request, examination).tests
    return test


def lacking(name: str, *tools: str, **changed: object) -> Examination:
    """A node without some tools, or with another build of perftest."""
    examination = node(name)
    facts = examination.tools
    assert isinstance(facts, ToolFacts)
    assert isinstance(facts.perftest, Perftest)
    gone = {tool: Unknown(Reason.NOT_THERE, tool, "not installed") for tool in tools}
    build = replace(facts.perftest, **changed)  # type: ignore[arg-type]
    return replace(examination, tools=replace(facts, paths={**facts.paths, **gone}, perftest=build))
