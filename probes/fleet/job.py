"""One job on several nodes, from the samples that each node's live view takes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from probes.base.text import plural
from probes.base.unknown import Maybe, Reason, Unknown, known, map_known
from probes.fleet.job_differences import (
    Port,
    TrafficWatch,
    differences_of_nodes,
    different_ranks,
    some_names,
    standstill_of,
)
from probes.fleet.job_model import Difference, FleetJob, FleetRank, NodeSample, Silence
from probes.fleet.rails import with_equal_numbers
from probes.host.usage import cpu_list
from probes.live.model.activity import rates_of
from probes.live.model.sample import GpuSample, LiveJob, LiveSample, Role, Standstill, program_of
from probes.live.model.transfer import moved_gbps
from probes.live.odd_one_out import (
    LEAST,
    WINDOW_SECONDS,
    Rates,
    Share,
    gbps_text,
    members_of,
    nic_shares,
    rates_at,
)
from probes.live.silence import telling_nics

# The rates of a job's ports over the last seconds: the slow ones, and the rail or node that is slow.

_MOST_NODES = 0.75  # where so many nodes have a slow port on a rail, it is the rail that is slow
_NO_RATE = Unknown(Reason.NOT_YET, "", "needs a second sample")
_NIC_RATES = Unknown(Reason.NOT_THERE, "", "no NIC")


class RateWatch:
    """What each port of a job sends and receives, in Gb/s, in the last seconds."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, Mapping[Port, tuple[float, float]]]] = deque()

    def add(self, at: float, rates: Mapping[Port, tuple[float, float]]) -> None:
        """Append the known rates of one round of samples; `at`: seconds of a clock that never goes back."""
        if rates:
            self._rounds.append((at, rates))
        while len(self._rounds) > 1 and self._rounds[1][0] <= at - WINDOW_SECONDS:
            self._rounds.popleft()

    def mean(self, ports: Iterable[Port]) -> Maybe[float]:
        """Return the mean rate of these ports together, in the busier direction."""
        totals: list[float] = []  # sent, received
        for port in ports:
            totals = totals or [0.0, 0.0]
            seen = [rates[port] for _, rates in self._rounds if port in rates]
            if not seen:
                return _NO_RATE
            for direction in (0, 1):
                totals[direction] += sum(pair[direction] for pair in seen) / len(seen)
        return max(totals) if totals else _NIC_RATES

    def shares(self) -> dict[Port, Share]:
        """Return each port beside all others, those that had a rate all the time; {} if that is too short.

        Of both directions, the one in which it is slow.
        """
        if not self._rounds or self._rounds[-1][0] - self._rounds[0][0] < WINDOW_SECONDS:
            return {}
        ports = sorted(set.intersection(*(set(rates) for _, rates in self._rounds)))
        if len(ports) < LEAST:
            return {}
        names = tuple(" ".join(port) for port in ports)
        window: deque[Rates] = deque()
        for at, rates in self._rounds:
            sent, received = [rates[port][0] for port in ports], [rates[port][1] for port in ports]
            window.append(rates_at(at, names, sent, received))
        both = zip(nic_shares(window, 0), nic_shares(window, 1), strict=True)
        return {
            port: received if received.is_odd and not sent.is_odd else sent
            for port, (sent, received) in zip(ports, both, strict=True)
        }


def slow_ports(
    shares: Mapping[Port, Share], rails: Mapping[Port, int], ranks: Sequence[FleetRank]
) -> list[Difference]:
    """Return slow rails, then nodes all of whose ports are slow, then single slow ports."""
    slow = {port for port, share in shares.items() if share.is_odd}
    if not slow:
        return []
    rest = [share.rate for port, share in shares.items() if port not in slow]
    others = f"carry {gbps_text(median(rest))} (median)" if rest else "carry more"
    found: list[Difference] = []

    def add(aspect: str, subject: str, who: str, ports: Sequence[Port], what: str) -> None:
        rate = gbps_text(median(shares[port].rate for port in ports))
        carries = f"carry {rate} each" if aspect == "node" else f"carries {rate}"
        users = (rank for rank in ranks if any((rank.node, nic) in ports for nic in rank.process.ready_nics))
        keys = tuple(rank.key for rank in users)
        found.append(Difference(aspect, subject, f"{who} {carries}; {what} {others}", keys))
        slow.difference_update(ports)

    nodes = {node for node, _ in shares}
    for rail in sorted({rails[port] for port in slow if port in rails}):
        ports = sorted(port for port in slow if rails.get(port) == rail)
        on_rail = {node for node, _ in (port for port in shares if rails.get(port) == rail)}
        if len(ports) < 2 or len(ports) < _MOST_NODES * len(on_rail):
            continue
        count = f"all {len(ports)}" if len(ports) == len(nodes) else f"{len(ports)} of {len(nodes)}"
        where = f"{count} nodes"
        names = some_names(sorted({device for _, device in ports}))
        add("rail", f"rail {rail}", f"rail {rail} ({names}) on {where}", ports, "the other rails")
    for node in sorted({node for node, _ in slow}):
        ports = sorted(port for port in slow if port[0] == node)
        if 1 < len(ports) == sum(port[0] == node for port in shares):
            add("node", node, f"all {len(ports)} NICs of {node}", ports, "the NICs of other nodes")
    for port in sorted(slow):
        name = " ".join(port)
        add("rate", name, name, [port], f"the other {len(shares) - 1} NICs of this job")
    return found


_SCHEDULERS = ("slurm", "pod", "container")
_MOST_RANKS = 1 << 17  # of a job whose missing ranks are listed
_MISSING_CHARACTERS = 60


def key_of(job: LiveJob) -> str:
    """Return what a job is called on all of its nodes: its scheduler's id, else its name."""
    scheduler, _, rest = job.id.partition(":")
    return f"{scheduler}:{rest.partition(':')[0]}" if scheduler in _SCHEDULERS else job.name


def _is_engine(job: LiveJob, sample: LiveSample) -> bool:
    """Return whether a job serves inference: prefill and decode are jobs of their own."""
    return any(process.serving is not None for process in members_of(job, known(sample.processes, ())))


def is_wanted(job: LiveJob, wanted: str) -> bool:
    """Return whether a user means this job by "4711", "slurm:4711", "train.py" or its whole name."""
    key = key_of(job)
    return wanted in (key, job.id, key.partition(":")[2], job.name, program_of(job.name))


class JobWatch:
    """What the samples of all nodes show about one job over time, in bounded memory."""

    def __init__(self, wanted: str = "") -> None:
        """`wanted`: the job, as for `is_wanted`; "": the NCCL job with the most ranks at first."""
        self._wanted = wanted
        self._latest: dict[str, NodeSample] = {}
        self._rates = RateWatch()
        self._traffic = TrafficWatch()
        self._began: float | None = None

    def add(self, at: float, seen: Mapping[str, NodeSample], unanswered: Mapping[str, str]) -> FleetJob:
        """Return the job after one more round of samples.

        `at`: seconds of this machine's monotonic clock. `seen`: the nodes with a new sample; others keep the
        sample before, unless they are in `unanswered`: what such a node had is left out.
        """
        self._began = at if self._began is None else self._began
        self._latest.update(seen)
        nodes = {name: self._latest[name] for name in sorted(self._latest) if name not in unanswered}
        if not self._wanted:
            self._wanted = _largest(node.sample for node in nodes.values())
        named = {
            name: [job for job in node.sample.jobs if is_wanted(job, self._wanted)]
            for name, node in nodes.items()
        }
        # Of the programs of a job on one node, those that use NCCL if any does.
        jobs = {name: [job for job in own if job.role is Role.NCCL] or own for name, own in named.items()}
        devices = {
            name: sorted({nic for job in own for nic in job.nics}) for name, own in jobs.items() if own
        }
        rates: dict[Port, tuple[float, float]] = {}
        clients = {name: nodes[name].sample.kernel_clients for name in devices}
        telling = {
            name: sorted({nic for job in jobs[name] for nic in telling_nics(job, clients[name])})
            for name in devices
        }
        for name in seen.keys() & devices.keys():
            self._traffic.add(name, seen[name], telling[name])
            for port in seen[name].sample.ports:
                pair = rates_of(port) if port.device in devices[name] else None
                if pair is not None:
                    rates[name, port.device] = pair
        self._rates.add(at, rates)
        rails = {
            (name, rail.nic): rail.number
            for name, own in with_equal_numbers({name: node.rails for name, node in nodes.items()}).items()
            for rail in known(own, ())
        }
        ranks = sorted(
            (rank for name in devices for rank in self._ranks(name, nodes[name], jobs[name], rails)),
            key=lambda rank: (known(rank.process.rank, 1 << 31), rank.key),
        )
        first = next((job for own in jobs.values() for job in own), None)
        serves = any(rank.process.serving is not None for rank in ranks)
        sizes = [size for own in jobs.values() for job in own if isinstance(size := job.world_size, int)]
        missing, notes = _missing(ranks, max(sizes, default=0))
        on_nodes = (job for node in nodes.values() for job in node.sample.jobs if job.role is Role.NCCL)
        others = {job.name for job in on_nodes if not is_wanted(job, self._wanted)}
        silence = self._silence(telling, [job.standstill for own in jobs.values() for job in own if job.nics])
        return FleetJob(
            id="" if first is None else program_of(first.name) if serves else key_of(first),
            name=self._wanted if first is None else program_of(first.name) if serves else first.name,
            ranks=tuple(ranks),
            world_size=max(sizes) if sizes else Unknown(Reason.NOT_THERE, "", "no rank states it"),
            missing_ranks=missing,
            gbps=self._rates.mean(_ports(devices)) if any(devices.values()) else _moved(ranks),
            differences=(
                *different_ranks(ranks, silence is not None and silence.waits is True),
                *(() if silence else self._slow_ports(nodes, devices, rails, ranks)),
                *differences_of_nodes(
                    {name: [odd for job in own for odd in job.odd] for name, own in jobs.items()}, ranks
                ),
            ),
            silence=silence,
            notes=notes,
            absent={
                name: f"processes unknown ({node.sample.processes})"
                if isinstance(node.sample.processes, Unknown)
                else node.sample.missing or "no process of this job"
                for name, node in nodes.items()
                if not jobs[name]
            },
            unanswered=dict(unanswered),
            other_jobs=tuple(sorted(others)),
            watched_seconds=at - self._began,
        )

    def _silence(
        self, devices: Mapping[str, Sequence[str]], stills: Sequence[Maybe[Standstill | None]]
    ) -> Silence | None:
        """Return the silence of a job, with what its ranks do meanwhile; `stills`: on each node."""
        silence, still = self._traffic.silence(devices), standstill_of(stills)
        if silence is None and isinstance(still, Standstill):  # by its queue pairs
            silence = Silence(still.seconds, (), "Which port fell silent first is unknown: others use them")
        return None if silence is None else replace(silence, standstill=still)

    def _slow_ports(
        self,
        nodes: Mapping[str, NodeSample],
        devices: Mapping[str, Sequence[str]],
        rails: Mapping[Port, int],
        ranks: Sequence[FleetRank],
    ) -> list[Difference]:
        """Return the slow ports, without those whose traffic is not only this job's."""
        own = set()
        for name, nics in devices.items():
            users = Counter(nic for job in nodes[name].sample.jobs for nic in job.nics)
            own |= {(name, nic) for nic in nics if users[nic] <= 1}
        shares = {port: share for port, share in self._rates.shares().items() if port in own}
        return slow_ports(shares, rails, ranks)

    def _ranks(
        self, name: str, node: NodeSample, jobs: Sequence[LiveJob], rails: Mapping[Port, int]
    ) -> Iterator[FleetRank]:
        """Yield the ranks of a node: the processes of the job that use a GPU or a NIC."""
        processes = known(node.sample.processes, ())
        users = Counter(nic for process in processes for nic in process.ready_nics)
        gpus = {gpu.bdf: gpu for gpu in node.sample.gpus}
        for process in (process for job in jobs for process in members_of(job, processes)):
            own = [gpus[bdf] for bdf in process.gpus if bdf in gpus]
            yield FleetRank(
                node=name,
                process=process,
                gpus=tuple(gpu.bdf if isinstance(gpu.index, Unknown) else f"GPU{gpu.index}" for gpu in own),
                rails=tuple(sorted(rails[name, nic] for nic in process.ready_nics if (name, nic) in rails)),
                gbps=self._rates.mean((name, nic) for nic in process.ready_nics)
                if process.transfer is None
                else process.transfer.gbps,
                is_shared=any(users[nic] > 1 for nic in process.ready_nics),
                gpu_percent=_least_load(own),
            )


def _largest(samples: Iterable[LiveSample]) -> str:
    """Return the key of the NCCL job with the most ranks on these nodes, else of engines; "": none."""
    ranks: Counter[str] = Counter()
    engines: Counter[str] = Counter()
    for sample in samples:
        for job in sample.jobs:
            if _is_engine(job, sample):
                engines[program_of(job.name)] += len(job.pids)
            elif job.role is Role.NCCL:
                ranks[key_of(job)] += len(job.pids)
    found = ranks or engines
    return max(sorted(found), key=lambda key: found[key], default="")


def _ports(devices: Mapping[str, Sequence[str]]) -> Iterator[Port]:
    return ((name, nic) for name, nics in devices.items() for nic in nics)


def _moved(ranks: Sequence[FleetRank]) -> Maybe[float]:
    """Return what all engines send, or receive, whichever is more: each byte has a sender and a receiver."""
    moved = moved_gbps(rank.process.transfer for rank in ranks)
    if moved is None:
        return 0.0 if any(rank.process.transfer is not None for rank in ranks) else _NIC_RATES
    unread = next((rate for rate in moved if isinstance(rate, Unknown)), None)
    return max(known(rate, 0.0) for rate in moved) if unread is None else unread


def _least_load(gpus: Iterable[GpuSample]) -> Maybe[int]:
    loads = [map_known(gpu.live, lambda live: live.utilization_percent) for gpu in gpus]
    none = Unknown(Reason.NOT_THERE, "NVML", "no GPU is known")
    return min(loads, key=lambda load: known(load, -1), default=none)  # an unknown one comes first


def _missing(ranks: Sequence[FleetRank], world_size: int) -> tuple[str, tuple[str, ...]]:
    """Return the ranks that no node shows, and what is odd about the numbers of the others."""
    numbers = Counter(rank.process.rank for rank in ranks if isinstance(rank.process.rank, int))
    notes = []
    without = len(ranks) - numbers.total()
    if without and not all(rank.process.serving for rank in ranks):
        notes.append(f"The rank of {plural(without, 'process', 'processes')} is unknown.")
    if twice := sorted(number for number, count in numbers.items() if count > 1):
        nodes = sorted({rank.node for rank in ranks if rank.process.rank == twice[0]})
        notes.append(
            f"Rank {twice[0]} occurs {numbers[twice[0]]} times, on {some_names(nodes)}. Several jobs may "
            "have this name; use --job with a scheduler's job ID."
        )
    if not numbers or without or world_size > _MOST_RANKS:
        return "", tuple(notes)
    text = cpu_list(number for number in range(world_size) if number not in numbers)
    return (text if len(text) <= _MISSING_CHARACTERS else f"{text[:_MISSING_CHARACTERS]}…"), tuple(notes)
