"""Helpers that run commands on a simulated node."""

from probes.base.plan import Step
from probes.checks.registry import findings
from probes.queries.finding import Finding, Status
from probes.simulation.commands.command_result import CommandResult
from probes.simulation.host import SimulatedHost
from probes.snapshot.examination import examine


def node(name: str) -> SimulatedHost:
    """Return a node whose clock stands still."""
    return SimulatedHost(name, clock=lambda: 1000.0)


def run(host: SimulatedHost, command: str, stdin: str = "") -> tuple[int, str]:
    """Return the exit status and the output of a command whose words have no spaces."""
    result = host.perform(command.split(), stdin)
    return result.exit_status, "\n".join(result.lines)


def found_on(host: SimulatedHost) -> dict[str, Finding]:
    """Return the findings by id."""
    return {finding.id: finding for finding in findings(examine(host)) if finding.status is Status.FOUND}


def run_step(host: SimulatedHost, step: Step) -> CommandResult:
    """Run a step of a plan like the action runner."""
    if step.file is None:
        return host.perform(step.argv)
    if step.file.text is None:
        return host.perform(("rm", "-f", step.file.path))
    return host.perform(("tee", step.file.path), step.file.text)


def end_job(host: SimulatedHost) -> None:
    """End the training job: its processes and their references to modules."""
    host.tree.drop_references("job")
    for name in list(host.tree.directories["/proc"]):
        if name.isdecimal() and int(name) >= 41000:
            host.tree.remove(f"/proc/{name}")
