"""New nodes of each distribution, set up by the commands of the plans of setup, and rebooted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from probes.base.plan import Step
from probes.checks.judgment import judge
from probes.setup.step import REBOOT, SetupRecord
from probes.setup.steps.guide import Guide, read_guide
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine
from tests.support.tiers import usual
from tui.actions.manual_steps import as_simulated, runnable
from tui.actions.runner import file_commands

NODES = {
    # name: the program that installs the driver
    "hgx-b200+new-node": "apt-get",  # Ubuntu 24.04
    "pcie-l40s+new-node": "dnf",  # Rocky Linux 9
    "pcie-l40s+new-node-debian": "apt-get",
    "pcie-l40s+new-node-sles": "zypper",
    "azure-nd-h100+new-node": "apt-get",
    "aws-p5+new-node": "apt-get",
}
MOST_STEPS = 12


def guide_of(host: SimulatedHost, record: SetupRecord | None = None) -> Guide:
    examination = examine(host)
    return read_guide(host, examination, judge(examination).findings, (), record or SetupRecord())


def run(host: SimulatedHost, steps: Sequence[Step]) -> Iterator[str]:
    """Run steps, and yield their programs."""
    for step in steps:
        for argv, text in file_commands(host, step.file, "") if step.file else [(step.argv, "")]:
            result = host.perform(argv, text)
            assert result.exit_status == 0, (argv, result.lines)
            yield argv[0]


def set_up(host: SimulatedHost) -> tuple[Guide, list[str]]:
    """Run the plan of each next step, and return the guide at the end and the programs that ran."""
    programs: list[str] = []
    done: list[tuple[object, ...]] = []
    for _ in range(MOST_STEPS):
        guide = guide_of(host)
        ready = (step for step in guide.steps if step.can_begin and step.id not in (REBOOT, "others"))
        plans = [as_simulated(step.plan) for step in ready if step.plan is not None]
        steps = next((runnable(plan) for plan in plans if runnable(plan) not in done), ())
        if not steps:
            return guide, programs
        done.append(steps)
        programs += run(host, steps)
    raise AssertionError("no end")


@pytest.mark.parametrize("name", ["talos", "openshift"])
def test_an_immutable_node_ends_at_the_step_that_its_image_or_an_operator_completes(name: str) -> None:
    guide, programs = set_up(SimulatedHost(f"pcie-l40s+new-node-{name}"))
    assert programs == []
    assert guide.next_step is not None
    assert guide.next_step.id == "gpu-driver"
    assert not guide.is_prepared
    tools = guide.step("tools")
    assert tools is not None
    assert tools.plan is not None
    assert [step.why.partition(":")[0] for step in tools.plan.steps] == ["Run perftest in a container"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", usual(NODES, {name for name in NODES if not name.startswith(("aws", "azure"))})
)
def test_setup_takes_a_new_node_to_a_path_that_outlives_a_reboot(name: str) -> None:
    host = SimulatedHost(name)
    guide, programs = set_up(host)
    assert NODES[name] in programs
    assert guide.is_prepared, [step for step in guide.steps if step.is_open]
    boot = guide.boot_id
    assert isinstance(boot, str)
    host.perform(("systemctl", "reboot"))
    step = guide_of(host, SetupRecord(boots={boot: False})).step(REBOOT)
    assert step is not None
    assert (step.state.value, step.reason) == ("done", "the path is usable after a reboot")
