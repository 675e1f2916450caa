"""How a test begins on a simulated node: which program is meant, and where it runs."""

from __future__ import annotations

from collections.abc import Sequence

from probes.base.text import printable
from probes.facts.system.tool_names import GDRCOPY, PERFTEST
from probes.simulation.bandwidth import command_line as called
from probes.simulation.bandwidth import far_end, gdrcopy, nccl_tests, nvbandwidth, perftest
from probes.simulation.bandwidth.node_pair import Stage
from probes.simulation.bandwidth.playback import Script, SimulatedTest, ended
from probes.simulation.commands.command_result import CommandResult

_NOTHING_FOUND_SECONDS = 0.02
_SSH_SECONDS = 0.35


def begin(stage: Stage, argv: Sequence[str], at: float | None = None) -> SimulatedTest:
    """Begins a program at a moment of the clock, at once unless told."""
    at = stage.clock() if at is None else at
    if argv and argv[0].rpartition("/")[2] == "ssh":
        return _by_ssh(stage, argv[1:], at)
    what = called.read(stage.tree, argv)
    if isinstance(what, CommandResult):
        lines = (printable(line) for line in what.lines)
        return stage.test(ended(at + _NOTHING_FOUND_SECONDS, what.exit_status, *lines))
    if what.tool in PERFTEST:
        return perftest.begin(stage, what, at)
    if what.tool in GDRCOPY:
        return stage.test(gdrcopy.script(stage, what, at))
    if what.tool == "nvbandwidth":
        return stage.test(nvbandwidth.script(stage, what, at))
    return nccl_tests.begin(stage, what, at)


def _by_ssh(stage: Stage, words: Sequence[str], at: float) -> SimulatedTest:
    command = far_end.parse(words)
    begun = at + _SSH_SECONDS
    if command is None:
        return stage.test(ended(at, far_end.FAILED, "usage: ssh [-46AaCfGgKkMNnqsTtVvXxYy] destination"))
    far = stage.named(command.host)
    if far is None:
        said = far_end.not_resolved(printable(command.host, 253))
        return stage.test(ended(begun, far_end.FAILED, said))
    if command.words in (("true",), (":",)):
        return stage.test(Script((), begun, 0))
    return begin(far, command.words, begun)
