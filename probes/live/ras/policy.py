"""When NCCL's RAS service may be asked, because a question can crash or disturb the job.

Sources: NCCL's release notes and issues #1669, #1718, #1762, #2346, and src/ras of 2.24 to 2.32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from probes.base.frozen import frozen
from probes.base.unknown import Maybe, Unknown
from probes.nccl.variables.catalogue import NEWER, is_newer

YOUNGEST_SECONDS = 120.0
LEAST_INTERVAL_SECONDS = 10.0
Version = tuple[int, int, int]
_HAS_RAS: Version = (2, 24, 0)
_INIT_RACE_FIXED: Version = (2, 27, 3)
_MISSING_RANKS_FIXED: Version = (2, 29, 2)  # and the first version with MONITOR
_HAS_DIAGNOSTICS: Version = (2, 31, 0)
_RUNS_PROGRAMS: Version = (2, 32, 0)


class RasUse(Enum):
    """How RAS is used."""

    ONCE = "once"
    REPEATED = "repeated"
    EVENTS = "events"  # MONITOR: the job gathers nothing
    DIAGNOSTICS = "diagnostics"  # checks that run inside the job


@frozen
class RasJob:
    """A job that may answer at an address; all jobs of a user share a port."""

    name: str
    version: Maybe[str]  # of NCCL, "2.29.7"
    youngest_seconds: Maybe[float]  # since its last process started
    stopped: tuple[int, ...] = ()  # pids of stopped processes


@frozen
class RasDecision:
    """Whether to ask, why not, and what may happen; sentences without a period."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_allowed(self) -> bool:
        """Return whether RAS may be asked."""
        return not self.refusals


def decide(jobs: Sequence[RasJob], use: RasUse, since_last: float | None = None) -> RasDecision:
    """Decide on one question; the kernel chooses which job gets it, so every job must permit it.

    `since_last`: seconds since the last question to this address; None: not asked yet.
    """
    refusals: list[str] = []
    warnings: list[str] = []
    if not jobs:
        refusals.append("no known NCCL job could respond")
    if use is not RasUse.EVENTS and since_last is not None and since_last < LEAST_INTERVAL_SECONDS:
        refusals.append(
            f"RAS was queried {max(0.0, since_last):.0f} s ago; gdrtop waits {LEAST_INTERVAL_SECONDS:.0f} s"
        )
    for job in jobs:
        refusals += [f"{job.name}: {why}" for why in _refusals(job, use)]
        warnings += [] if use is RasUse.EVENTS else _warnings(job, use)
    return RasDecision(tuple(dict.fromkeys(refusals)), tuple(dict.fromkeys(warnings)))


def _refusals(job: RasJob, use: RasUse) -> list[str]:
    found = []
    version = None if isinstance(job.version, Unknown) else parse_version(job.version)
    if version is None:
        why = f" ({job.version})" if isinstance(job.version, Unknown) else ""
        found.append(f"the NCCL version is unknown{why}, and some versions crash when RAS is queried")
    elif version < _HAS_RAS:
        found.append(f"NCCL {job.version} has no RAS (added in NCCL 2.24)")
    elif version < _INIT_RACE_FIXED:
        found.append(
            f"NCCL {job.version} can crash if RAS is queried during communicator creation (fixed in 2.27.3)"
        )
    elif use is RasUse.DIAGNOSTICS and version < _HAS_DIAGNOSTICS:
        found.append(f"NCCL {job.version} has no DIAGNOSTICS (added in NCCL 2.31)")
    elif version < _MISSING_RANKS_FIXED:
        if use is RasUse.REPEATED:
            found.append(
                f"NCCL {job.version} crashes if a rank does not respond to a RAS query;"
                " repeated queries need 2.29.2"
            )
        elif use is RasUse.EVENTS:
            found.append(f"NCCL {job.version} has no MONITOR (added in NCCL 2.29.2)")
        elif job.stopped:
            pids = ", ".join(map(str, job.stopped[:4]))
            found.append(
                f"NCCL {job.version} crashes if a rank does not respond to a RAS query,"
                f" and pid {pids} is stopped"
            )
    age = job.youngest_seconds
    if isinstance(age, Unknown):
        found.append(
            f"the start time of its processes is unknown ({age}),"
            " and RAS must not be queried in the first 2 minutes"
        )
    elif age < YOUNGEST_SECONDS:
        found.append(f"the job is {max(0.0, age):.0f} s old; RAS must not be queried in the first 2 minutes")
    return found


def _warnings(job: RasJob, use: RasUse) -> list[str]:
    version = None if isinstance(job.version, Unknown) else parse_version(job.version)
    if version is None or version < _INIT_RACE_FIXED:
        return []
    found = []
    if use is RasUse.DIAGNOSTICS:
        found.append(f"NCCL {job.version}: {_what_diagnostics_run(version)}")
    if version < _MISSING_RANKS_FIXED:
        found.append(
            f"NCCL {job.version}: if a rank does not respond, the query can crash the job"
            " (nccl#1762, fixed in 2.29.2)"
        )
    if is_newer(version):
        found.append(f"NCCL {job.version} is {NEWER}; it may have other faults")
    found.append(
        f"NCCL {job.version}: while communicators are created or destroyed, the query can crash a job"
        " with hundreds of GPUs (nccl#2346, open)"
    )
    return found


def _what_diagnostics_run(version: Version) -> str:
    """Return what DIAGNOSTICS does in the job.

    Source: of 2.32 the texts in its library, of 2.31 NVIDIA's guide.
    """
    if version < _RUNS_PROGRAMS:
        return "every process of the job checks and compares its GPU, its driver and its NCCL settings"
    return (
        "every process of the job checks GPU, driver, settings and paths, runs lspci -D -vvv and"
        " rdma_topo check, and reads /dev/kmsg and /var/log, as the job's user. Each answer has only the Xids"
        " since the one before. The next client does not see these Xids. Save the answer."
    )


def parse_version(text: str) -> Version | None:
    """Return the parts of "2.29.7" or "2.29.7+cuda12.9"; None if it is none."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?![0-9])", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
