"""The processes of tests on other nodes."""

from __future__ import annotations

from typing import Protocol

from tui.bandwidth.processes import ProcessStarter

UNCONFIRMED = "cannot tell whether the test has ended there"
"""In `ProcessExit.why` of a process whose node answers no more."""


class NodeProcesses(ProcessStarter, Protocol):
    """Starts the processes of tests on one node, and ends them.

    `start` and `lines(0.0)` must return at once: one thread starts and reads the processes of all nodes. If
    the node does not answer, `start` returns a process that has ended, with the reason. The node itself must
    end a process after its time limit, and when the connection to gdrtop is lost.
    """

    def close(self) -> None:
        """End all processes that still run on the node, and the connection; any number of times."""
