"""The names of Slurm jobs and Kubernetes pods, asked once for each in a thread."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from probes.base.text import printable
from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.probe_thread import start_probe
from probes.host.protocol import Host

COMMAND_SECONDS = 5.0
_MAX_JOBS = 4096  # asked for in one run of gdrtop
_NAME_LIMIT = 64
SLURM_JOB = re.compile(r"Slurm job ([0-9]{1,10})")
_POD = re.compile(r"pod ([0-9a-f]{8})")


class JobNames:
    """Ask `scontrol` and `crictl` where they are installed; a sample never waits for them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._asked: set[str] = set()
        self._queue: deque[str] = deque()
        self._missing: set[str] = set()  # commands that are not installed

    def update(self, host: Host, jobs: Iterable[str]) -> None:
        """Ask for the names of new jobs."""
        for job in sorted(set(jobs) - self._asked):
            if len(self._asked) < _MAX_JOBS and _question(job)[0]:
                self._asked.add(job)
                self._queue.append(job)
        if self._queue:
            start_probe(host, "live job names", lambda: self._work(host))

    def name(self, job: str) -> str:
        """Return "Slurm job 4711 (llama)", or the job as it is if it has no name."""
        name = self._names.get(job)
        return f"{job} ({name})" if name else job

    def _work(self, host: Host) -> Maybe[None]:
        while self._queue:
            job = self._queue.popleft()
            argv, parse = _question(job)
            if argv[0] in self._missing:
                continue
            output = host.run(argv, COMMAND_SECONDS)
            if isinstance(output, Unknown):
                if output.reason is Reason.NOT_THERE:
                    self._missing.add(argv[0])
            elif output.exit_status == 0 and job in (names := parse(output.stdout)):
                self._names[job] = names[job]
        return None


def _question(job: str) -> tuple[tuple[str, ...], Callable[[str], Mapping[str, str]]]:
    if match := SLURM_JOB.fullmatch(job):
        return ("scontrol", "--oneliner", "show", "job", match[1]), parse_scontrol
    if _POD.fullmatch(job):
        return ("crictl", "pods", "--output", "json"), parse_crictl
    return (), parse_scontrol


def parse_scontrol(text: str) -> dict[str, str]:
    """Return the name of each job from `scontrol --oneliner show job`, which prints Name=value pairs."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        job = re.match(r"JobId=([0-9]{1,10}) ", line)
        name = re.search(r" (?:JobName|Name)=(.{1,256}?) (?:UserId|WCKey)=", line)
        if job and name:
            found[f"Slurm job {job[1]}"] = printable(name[1], _NAME_LIMIT)
    return found


def parse_crictl(text: str) -> dict[str, str]:
    """Return namespace and name of each pod from `crictl pods --output json`."""
    try:
        items = json.loads(text)["items"]
        pods = [item["metadata"] for item in items]
        return {
            f"pod {str(pod['uid'])[:8]}": printable(f"{pod['namespace']}/{pod['name']}", _NAME_LIMIT)
            for pod in pods[:1024]
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
