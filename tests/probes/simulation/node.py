"""A simulated node that is given commands."""

from probes.base.plan import Step
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine


def node(name: str) -> SimulatedHost:
    """A node whose clock stands still."""
    return SimulatedHost(name, clock=lambda: 1000.0)


def told(host: SimulatedHost, command: str, given: str = "") -> tuple[int, str]:
    """The exit status of a command without blanks in its words, and all that it printed."""
    performed = host.perform(command.split(), given)
    return performed.exit_status, "\n".join(performed.lines)


def found_on(host: SimulatedHost) -> dict[str, Finding]:
    """What the doctor finds, by id."""
    return {one.id: one for one in findings(examine(host)) if one.status is Status.FOUND}


def run_step(host: SimulatedHost, step: Step) -> CommandResult:
    """A step of a plan, as a runner of plans does it."""
    if step.file is None:
        return host.perform(step.argv)
    if step.file.text is None:
        return host.perform(("rm", "-f", step.file.path))
    return host.perform(("tee", step.file.path), step.file.text)


def end_job(host: SimulatedHost) -> None:
    """The training job ends: its processes go, and what they hold of modules."""
    host.tree.drop_references("job")
    for name in list(host.tree.directories["/proc"]):
        if name.isdecimal() and int(name) >= 41000:
            host.tree.remove(f"/proc/{name}")
