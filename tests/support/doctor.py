"""Findings of simulated nodes, and the files to edit where a finding is not as a test expects."""

import ast
import sys
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from probes.checks.registry import CHECKS, findings
from probes.live.job_examination import examine_with_jobs
from probes.queries.finding import Area, Finding, Status
from probes.simulation.faults.catalogue import AREAS
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import Examination

_ROOT = Path(__file__).parents[2]


@cache
def examination_of(name: str) -> Examination:
    """Return the examination of a simulated node with its faults and its jobs."""
    return examine_with_jobs(SimulatedHost(name, clock=lambda: 1000.0))


@cache
def findings_on(name: str) -> dict[str, Finding]:
    """Return all findings by id, for example on "hgx-h100+acs-on"."""
    return {finding.id: finding for finding in findings(examination_of(name))}


def found_on(name: str) -> set[str]:
    """Return the ids of the found findings."""
    return {finding.id for finding in findings_on(name).values() if finding.status is Status.FOUND}


def place_of_fault(name: str) -> str:
    """Return file and line of a fault, as probes/simulation/faults/nic.toml:24."""
    module = next(area for area in AREAS if any(fault.name == name for fault in area.FAULTS))
    table = _path(module).with_suffix(".toml")
    tables = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    if f"[{name}]" in tables:
        return f"{table.relative_to(_ROOT)}:{tables.index(f'[{name}]') + 1}"
    return f"{_path(module).relative_to(_ROOT)}:{_lines(_path(module)).get(name, 1)}"


@cache
def _lines(path: Path) -> dict[object, int]:
    """Return the line of each call whose first argument is a text, by this text."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    heads = [(call.args[0], call.lineno) for call in calls if call.args]
    return {head.value: line for head, line in heads if isinstance(head, ast.Constant)}


def place_of_check(id_: str) -> str:
    """Return file and line of a check, or the file alone if a function such as `add_log_check` made it."""
    check = next((check for check in CHECKS if check.id == id_), None)
    if check is None:
        return f"probes/checks has no check {id_}"
    judge = check.judge
    while isinstance(judge, partial):
        judge = judge.func
    if "<locals>" not in judge.__qualname__:
        code = judge.__code__
        return f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_firstlineno}"
    for name, module in sys.modules.items():
        areas = [value for value in vars(module).values() if isinstance(value, Area)]
        if name.startswith("probes.checks.") and any(check in area.checks for area in areas):
            return str(_path(module).relative_to(_ROOT))
    return judge.__module__


def _path(module: ModuleType) -> Path:
    return Path(str(module.__file__))
