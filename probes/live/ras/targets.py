"""When and where NCCL jobs of a node may be asked through RAS, and which process a report means."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from probes.base.data_files import read_toml_once
from probes.base.frozen import frozen
from probes.base.text import version_numbers
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.facts.jobs.nccl_conf import read_nccl_conf
from probes.facts.network.routes import TABLES
from probes.host.protocol import Host
from probes.host.ras import PORT, parse_addresses
from probes.live.model.sample import LiveProcess, LiveSample, Role
from probes.live.processes.job_logs import own_pid, setting
from probes.nccl.ras import RasProcess
from probes.nccl.variables.catalogue import NEWER, is_newer

# When NCCL's RAS service may be asked, because a question can crash or disturb the job.

YOUNGEST_SECONDS = 120.0
LEAST_INTERVAL_SECONDS = 10.0
Version = tuple[int, int, int]
_WARNED_FROM: Version = (2, 27, 3)  # of older versions, refusals say all


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
    found = _of_version(job, use, "refusal")[:1]
    if isinstance(job.version, Unknown) or parse_version(job.version) is None:
        why = f" ({job.version})" if isinstance(job.version, Unknown) else ""
        found.append(f"the NCCL version is unknown{why}, and some versions crash when RAS is queried")
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
    version = parse_version(known(job.version, "")) or (0, 0, 0)
    if version < _WARNED_FROM:
        return []
    newer = [f"NCCL {job.version} is {NEWER}; it may have other faults"] if is_newer(version) else []
    found = _of_version(job, use, "warning")
    return [*found[:-1], *newer, *found[-1:]]


def _of_version(job: RasJob, use: RasUse, kind: str) -> list[str]:
    """Return the texts of policy.toml that are true of a job's version of NCCL, and of this use."""
    version = parse_version(known(job.version, ""))
    pids = ", ".join(map(str, job.stopped[:4]))
    found = []
    for row in read_toml_once(__package__, "policy.toml")[kind] if version else ():
        least, end = parse_version(row.get("from", "0.0")), parse_version(row.get("below", "999.0"))
        is_meant = row.get("use", use.value) == use.value and (pids or "{pids}" not in row["text"])
        if is_meant and least and end and version and least <= version < end:
            found.append(row["text"].format(version=job.version, pids=pids))
    return found


def parse_version(text: str) -> Version | None:
    """Return the parts of "2.29.7" or "2.29.7+cuda12.9"; None if it is none."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?![0-9])", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


_DEFAULT = f"localhost:{PORT}"
# Local address, port, then of a listener: queues, timer, retransmits, and the uid of who listens.
_LISTENS = re.compile(
    r"^ *\d+: ([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4}) \S+ 0A \S+ \S+ +\S+ +(\d{1,10}) ", re.M
)
_LOCAL = re.compile(r"\|-- ([0-9.]{7,15})\n\s+/32 host LOCAL")
_FILE_LIMIT = 4 << 20


@frozen
class RasTarget:
    """A port of this host, and the jobs that may answer there."""

    addresses: tuple[str, ...]  # in the order to try
    jobs: tuple[RasJob, ...]
    pids: tuple[int, ...]
    problem: str = ""  # why it cannot answer; "": nothing is known against it

    @property
    def name(self) -> str:
        """The port as shown."""
        return f"port {self.addresses[0].rpartition(':')[2]}" if self.addresses else "RAS"


def no_job(sees_all: bool, wanted: str = "", processes: object = ()) -> str:
    """Return the sentence for nodes without a job that matches; `sees_all`: as root."""
    if isinstance(processes, Unknown):
        return f"jobs are unknown ({processes})"
    text = f"no NCCL job is {wanted!r}" if wanted else "no NCCL job found"
    return text if sees_all else f"{text}; only root sees other users' jobs"


def find_targets(host: Host, sample: LiveSample, version: str = "") -> tuple[RasTarget, ...]:
    """Return the ports of all NCCL jobs, which may share one; `version`: of NCCL, if it is unreadable."""
    processes = known(sample.processes, ())
    of_node = map_known(read_nccl_conf(host), lambda conf: conf.values.get("NCCL_RAS_ADDR", ""))
    listeners = _listeners(host)
    own = host.link("/proc/self/ns/net")
    found: dict[tuple[object, str], _Port] = {}
    users = {process.pid: process.process.uid for process in processes}
    for job in sample.jobs:
        members = [process for process in processes if process.job == job.id and process.role is Role.NCCL]
        if not members:
            continue
        texts = [known(setting(member.process, "NCCL_RAS_ADDR"), "") for member in members]
        stripped = (text.strip() for text in (*texts, known(of_node, "")))
        text, problem = next(filter(None, stripped), _DEFAULT), _problem(host, members, own)
        # What differs only in how the address is written is one port: every job on it may get the question.
        parsed = dict.fromkeys(map(str, parse_addresses(text)))
        ports = frozenset(address.rpartition(":")[2] for address in parsed)
        port = found.setdefault((ports or text, problem), _Port(text))
        port.addresses |= parsed
        stopped = tuple(member.pid for member in members if member.is_stopped)
        age = _youngest(members, sample.taken_at)
        port.jobs.append(RasJob(job.name, _lowest_version(members, version), age, stopped))
        port.pids += [member.pid for member in members]
    targets = []
    for (_, problem), port in found.items():
        addresses = tuple(port.addresses)
        if not problem and not addresses:
            problem = f"NCCL_RAS_ADDR={port.text} is not a loopback address"
        elif not problem and listeners is not None:
            number = min(int(address.rpartition(":")[2]) for address in addresses)
            there = {address: _owners(listeners, address) for address in addresses}
            mine = {known(users[pid], 0) for pid in port.pids} | {0}
            addresses = tuple(address for address in addresses if there[address] and there[address] <= mine)
            others = sorted(set().union(*there.values()) - mine)
            if not addresses and others:
                problem = f"user {others[0]} listens on port {number}, who is not the job's user"
            elif not addresses:
                problem = f"nothing listens on port {number}; RAS needs NCCL 2.24 or newer"
        targets.append(RasTarget(addresses, tuple(port.jobs), tuple(port.pids), problem))
    return tuple(targets)


@dataclass
class _Port:
    text: str  # of the first job's variable
    addresses: dict[str, None] = field(default_factory=dict)  # in their order
    jobs: list[RasJob] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)


_Listeners = Mapping[tuple[str, int], frozenset[int]]


def _listeners(host: Host) -> _Listeners | None:
    """Return who listens, as uids by address and port; None: unknown."""
    texts = [host.read(path, _FILE_LIMIT) for path in TABLES]
    if isinstance(texts[0], Unknown):
        return None
    found: dict[tuple[str, int], frozenset[int]] = {}
    for text in texts:
        for digits, port, uid in _LISTENS.findall(known(text, "")):
            # 32-bit words in the byte order of the CPU, which is little-endian wherever there are GPUs.
            words = bytes.fromhex(digits)
            packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
            key = str(ipaddress.ip_address(packed)), int(port, 16)
            found[key] = found.get(key, frozenset()) | {int(uid)}
    return found


def _owners(listeners: _Listeners, address: str) -> frozenset[int]:
    """Return who gets a connection to an address: the kernel prefers a listener on just this address."""
    name, _, port = address.rpartition(":")
    name = name.strip("[]")
    wildcards = ("::",) if ":" in name else ("0.0.0.0", "::")
    answers = (listeners.get((choice, int(port))) for choice in (name, *wildcards))
    return next((uids for uids in answers if uids), frozenset())


def _problem(host: Host, members: Sequence[LiveProcess], own: Maybe[str]) -> str:
    first = members[0]
    space = host.link(f"/proc/{first.pid}/ns/net")
    if not isinstance(space, Unknown) and not isinstance(own, Unknown) and space != own:
        return f"pid {first.pid} is in another network namespace; run gdrtop in its container"
    if known(setting(first.process, "NCCL_RAS_ENABLE"), "").strip() == "0":
        return "NCCL_RAS_ENABLE=0 disables it"
    return ""


def _lowest_version(members: Sequence[LiveProcess], otherwise: str) -> Maybe[str]:
    versions: list[str] = []
    for member in members:
        libraries = member.process.libraries
        missing = Unknown(Reason.NOT_THERE, f"/proc/{member.pid}/maps", "libnccl may be linked statically")
        version: Maybe[str] = libraries if isinstance(libraries, Unknown) else missing
        for library in known(libraries, ()):
            if library.name == "libnccl":
                version = library.version
                break
        if isinstance(version, Unknown):
            if not otherwise:
                return version
            version = otherwise
        versions.append(version)
    return min(versions, key=lambda text: version_numbers(text)[:3])


def _youngest(members: Sequence[LiveProcess], now: float) -> Maybe[float]:
    started = (map_known(member.process.usage, lambda usage: usage.started_at) for member in members)
    ages = (map_known(at, lambda at: now - at) for at in started)
    return min(ages, key=lambda age: known(age, -math.inf))  # an unknown one comes first


@frozen
class LocalProcesses:
    """The NCCL processes of this node, by what RAS says about a process: its node's address and its pid."""

    processes: tuple[LiveProcess, ...] = ()
    pids: Mapping[int, int] = field(default_factory=dict)  # in its own PID namespace, by pid
    addresses: frozenset[str] = frozenset()  # of this node, as its processes see them
    gpu_numbers: Mapping[str, int] = field(default_factory=dict)  # NVML's, by BDF

    def find(self, process: Maybe[RasProcess]) -> LiveProcess | None:
        """Return the live process; None: on another node, or not certain.

        Processes in containers of several nodes often have the same pids, so the address decides first.
        """
        if isinstance(process, Unknown) or process.node not in self.addresses:
            return None
        same = [listed for listed in self.processes if self.pids.get(listed.pid) == process.pid]
        if len(same) > 1:
            same = [listed for listed in same if set(process.nvml) & {*self._gpus(listed)}]
        return same[0] if len(same) == 1 else None

    def text(self, process: LiveProcess) -> str:
        """Return a process as shown: "rank 5 (GPU5, mlx5_5)"."""
        what = [f"GPU{number}" for number in self._gpus(process)[:2]] + list(process.ready_nics[:2])
        what = what or [f"pid {process.pid}"]
        return f"{process.rank_name} ({', '.join(what)})"

    def _gpus(self, process: LiveProcess) -> list[int]:
        return [self.gpu_numbers[bdf] for bdf in process.gpus if bdf in self.gpu_numbers]


def local_processes(host: Host, sample: LiveSample, pids: Iterable[int]) -> LocalProcesses:
    """Return what is needed to find the processes of these pids in a report."""
    wanted = set(pids)
    found = tuple(process for process in known(sample.processes, ()) if process.pid in wanted)
    inner = {process.pid: own_pid(host, process.pid) for process in found}
    numbers = {gpu.bdf: gpu.index for gpu in sample.gpus if not isinstance(gpu.index, Unknown)}
    return LocalProcesses(found, inner, _addresses(host), numbers)


def _addresses(host: Host) -> frozenset[str]:
    """Return the addresses of this network namespace; RAS of another one is never asked."""
    found = set(_LOCAL.findall(known(host.read("/proc/net/fib_trie", _FILE_LIMIT), "")))
    for line in known(host.read("/proc/net/if_inet6", _FILE_LIMIT), "").splitlines():
        digits = line.partition(" ")[0]
        if re.fullmatch(r"[0-9a-f]{32}", digits):
            found.add(str(ipaddress.IPv6Address(int(digits, 16))))
    return frozenset(found)
