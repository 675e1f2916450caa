"""What `gdrtop env` recommends: settings with their reasons, and what it decided against."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.nccl.variables.variable import Version

STATED, OF_JOBS, ASSUMED = "stated", "running jobs", "assumed"  # where a version is from


class State(Enum):
    """Why a variable is not among the settings; the value is the word in JSON."""

    NOT_NEEDED = "not needed"
    IN_FILE = "in /etc/nccl.conf"
    UNKNOWN = "unknown"  # one node cannot show it, or the fact could not be read
    VENDOR = "set by the cloud's software"
    FIX_FIRST = "fix the node first"
    MEASURE = "measure first"  # it helps some nodes and slows or hangs others


@frozen
class Setting:
    """One variable that the node needs."""

    name: str
    value: str
    reason: str  # one sentence without a full stop
    source: str = ""  # the vendor's file or manual; "": derived from this node


@frozen
class Note:
    """One variable that is not set here, and why."""

    variable: str
    state: State
    text: str


@frozen
class Advice:
    """Everything that gdrtop recommends for jobs of this node."""

    version: Version  # the NCCL whose defaults apply
    version_from: str  # STATED, OF_JOBS, ASSUMED
    settings: tuple[Setting, ...] = ()
    notes: tuple[Note, ...] = ()
    vendor: str = ""  # "AWS with EFA": its own settings come first
    source_script: str = ""  # a script of the vendor to source before anything else
    nothing: str = ""  # why nothing can be said: no GPU, no NIC
    is_unread: bool = False  # because the GPUs or NICs are unknown

    @property
    def is_complete(self) -> bool:
        """Return whether the node has shown everything that could need a variable."""
        undecided = (State.UNKNOWN, State.MEASURE)
        return not self.nothing and all(note.state not in undecided for note in self.notes)
