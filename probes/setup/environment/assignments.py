"""What a file sets: variables with their lines, and mistakes of the file's own syntax."""

from __future__ import annotations

from enum import Enum

from probes.base.frozen import frozen
from probes.queries.finding import Severity

LIMIT_BYTES = 1 << 20
MAX_ASSIGNMENTS = 512
MAX_ENVIRONMENTS = 32  # different ones in one file; the checks run once for each
VALUE_LIMIT = 256


class FileKind(Enum):
    """The files that can be judged; the value is the name on the command line."""

    SBATCH = "sbatch"
    SHELL = "shell"
    POD = "pod"
    NCCL_CONF = "nccl-conf"


@frozen
class Assignment:
    """One variable that a file sets."""

    name: str
    value: str | None  # None: known only when the job runs ("$NICS", valueFrom)
    line: int
    is_exported: bool = True  # programs get it


@frozen
class Problem:
    """One mistake, or one remark."""

    line: int  # 0: the whole file
    severity: Severity
    title: str
    detail: str = ""
    fix: str = ""
    variable: str = ""


TOO_MANY = Problem(
    0,
    Severity.WARNING,
    f"The file sets too many variables; only the first {MAX_ASSIGNMENTS} are checked",
)


@frozen
class Group:
    """The variables of one environment: some commands of a script, one container, one nccl.conf."""

    name: str  # "container trainer"; "" where a file has no containers
    assignments: tuple[Assignment, ...]  # in the order of the file

    def effective(self, first_wins: bool = False) -> dict[str, Assignment]:
        """Return the assignment of each name that counts: the last one, in nccl.conf the first."""
        found: dict[str, Assignment] = {}
        for assignment in self.assignments:
            if not (first_wins and assignment.name in found):
                found[assignment.name] = assignment
        return found


@frozen
class GpuContainer:
    """A container of a pod that requests GPUs, and what it has for RDMA."""

    name: str
    line: int
    gpus: int | None  # None: the number is a template
    has_rdma: bool  # a device of a plugin or of a claim, all devices, or a mount of /dev/infiniband
    locks_memory: bool  # privileged, or with the capability IPC_LOCK
    has_own_network: bool  # neither the host's network nor one that is attached to the pod


@frozen
class ParsedFile:
    """A file as its reader sees it."""

    kind: FileKind
    groups: tuple[Group, ...]
    problems: tuple[Problem, ...] = ()
    containers: tuple[GpuContainer, ...] = ()
