"""Events of NCCL's RAS service: a process of the job that does not answer, is dead, or is back."""

from __future__ import annotations

import re

from probes.base.frozen import frozen
from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.nccl.ras.facts import RasProcess

_EVENT = re.compile(
    r"\[(?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})\] (?P<kind>PEER_[A-Z_]{1,40}):"
    r"(?: Process (?P<pid>[0-9]{1,10}) on node (?P<node>\S{1,64}) managing GPUs? (?P<gpus>[0-9][0-9,]{0,200})"
    r"(?: \(NVML (?P<nvml>[0-9][0-9,]{0,200})\))?)?(?P<details>.*)"
)
MEANINGS = {
    "PEER_NEW": "joined the job",
    "PEER_DEAD": "is considered dead: RAS gives up after 60 s and never asks it again",
    "PEER_UNRESPONSIVE": "does not answer RAS",
    "PEER_DISCONNECTED": "closed its RAS connection; its process may have ended",
    "PEER_RECOVERED": "answers RAS again",
    "PEER_KEEPALIVE_TIMEOUT": "has not answered RAS for 20 s",
}
BAD = ("PEER_DEAD", "PEER_UNRESPONSIVE", "PEER_DISCONNECTED", "PEER_KEEPALIVE_TIMEOUT")


@frozen
class RasEvent:
    """One line of MONITOR."""

    at: str  # local time of the process that answers, "2026-11-22 01:20:57"
    kind: str  # "PEER_DEAD"
    process: Maybe[RasProcess]
    details: str

    @property
    def meaning(self) -> str:
        """What happened to the process; RAS's own words for a kind without an explanation."""
        return MEANINGS.get(self.kind, self.details or self.kind)


def parse_event(line: str) -> RasEvent | None:
    """Return the event of a line; None if it is none."""
    match = _EVENT.fullmatch(line[:1024].strip())
    if match is None:
        return None
    process: Maybe[RasProcess] = Unknown(Reason.NOT_THERE, "RAS event", "names no process")
    if match["pid"]:
        gpus = tuple(int(number) for number in match["gpus"].split(",") if 0 < len(number) < 10)
        nvml = tuple(int(number) for number in (match["nvml"] or "").split(",") if 0 < len(number) < 10)
        process = RasProcess(int(match["pid"]), printable(match["node"], 64), gpus, nvml or gpus)
    return RasEvent(match["at"], match["kind"], process, printable(match["details"].strip(), 200))
