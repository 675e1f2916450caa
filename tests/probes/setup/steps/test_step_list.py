"""The list of setup steps: what it refuses, and that nothing which belongs in it is missing."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pkgutil import iter_modules
from typing import get_type_hints

import pytest

from probes.checks.registry import CHECKS, findings
from probes.setup import steps as folder
from probes.setup.situation import read_situation
from probes.setup.step import BuiltStep, SetupRecord, SetupStep, StepState
from probes.setup.steps import guide
from probes.setup.steps.checked import CheckedStep
from probes.setup.steps.guide import build_guide
from probes.setup.steps.step_list import STEPS, check_steps, definition_of
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine


def test_every_check_that_a_step_names_exists() -> None:
    ids = {finding.id for finding in findings(examine(SimulatedHost("hgx-h100")))}
    names = [name for step in STEPS if isinstance(step, CheckedStep) for name in step.checks]
    assert [name for name in names if not any(fnmatch(id_, name) for id_ in ids)] == []
    assert [name for name in names if "*" in name[:-1]] == []  # a * has an effect only at the end


def test_a_module_that_is_not_loaded_is_loaded_in_the_step_that_loads_modules() -> None:
    """On EFA and Slingshot, the step was done although their drivers were missing."""
    (step,) = (step for step in STEPS if isinstance(step, CheckedStep) and step.id == "modules")
    ids = {check.id for check in CHECKS if check.id.endswith("-not-loaded")}
    assert ids <= set(step.checks)


def test_every_fault_of_a_module_belongs_to_a_step_about_modules() -> None:
    """ "Modules match the kernel" was said beside a module file that cannot be loaded."""
    of_a_job = {"peermem-reference-leak", "peermem-lock-inversion", "peermem-invalid-context-flood"}
    steps = [step for step in STEPS if isinstance(step, CheckedStep)]
    ids = {check.id for check in CHECKS if check.area == "modules"} - of_a_job
    assert [id_ for id_ in sorted(ids) if not any(step.covers(id_) for step in steps)] == []


@pytest.mark.parametrize(
    ("node", "driver", "build"),
    [
        ("pcie-l40s+module-file-unusable", StepState.DONE, StepState.TO_DO),
        ("pcie-l40s+dkms-not-built-for-kernel", StepState.DONE, StepState.TO_DO),
        ("hgx-h100+new-node", StepState.TO_DO, StepState.BLOCKED),
    ],
)
def test_modules_of_an_installed_driver_are_built_and_those_of_none_do_not_match(
    node: str, driver: StepState, build: StepState
) -> None:
    host = SimulatedHost(node)
    examination = examine(host)
    made = build_guide(read_situation(host, examination), findings(examination), (), SetupRecord(), "boot")
    states = {step.id: step.state for step in made.steps}
    assert (states["gpu-driver"], states["build"]) == (driver, build)


def test_the_order_of_the_list_is_one_in_which_each_step_comes_after_those_that_it_needs() -> None:
    check_steps(STEPS)
    with pytest.raises(ValueError, match="'gpu-driver' comes after 'nic-driver', which is not an earlier"):
        check_steps([step for step in STEPS if step.id != "nic-driver"])
    with pytest.raises(ValueError, match="which is not an earlier step"):
        check_steps(STEPS[::-1])


def test_a_step_that_waits_for_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="'acs' comes after 'iomu', which is not an earlier step"):
        check_steps([*STEPS[:5], replace(definition_of("acs"), after=("iomu",))])


def test_an_id_that_two_steps_have_is_refused() -> None:
    with pytest.raises(ValueError, match="two steps have the id 'acs'"):
        check_steps([*STEPS, definition_of("acs")])


def test_the_guide_shows_every_step_of_the_list_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimulatedHost("pcie-l40s+gpu-too-old-for-gdr")
    examination = examine(host)

    def ids_of_guide() -> list[str]:
        situation = read_situation(host, examination)
        made = build_guide(situation, findings(examination), (), SetupRecord(), "boot")
        return [step.id for step in made.steps]

    assert ids_of_guide() == [step.id for step in STEPS]
    new = replace(definition_of("pcie"), id="new-step")
    monkeypatch.setattr(guide, "STEPS", (*STEPS, new))
    assert ids_of_guide() == [*(step.id for step in STEPS), "new-step"]


def test_every_function_that_builds_or_completes_a_step_belongs_to_one() -> None:
    used = {step.function for step in STEPS if isinstance(step, BuiltStep)}
    used |= {step.complete for step in STEPS if isinstance(step, CheckedStep) and step.complete}
    modules = [import_module(f"{folder.__name__}.{module.name}") for module in iter_modules(folder.__path__)]
    own = {
        value
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
        if callable(value)
        and not isinstance(value, type)
        and get_type_hints(value).get("return") is SetupStep
    }
    assert own <= used
