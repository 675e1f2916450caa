"""Real transfers of two users' jobs on four RDMA devices: who owns what, and what happens to them."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.node_vm.guest import COMMAND_SECONDS, Guest
from tests.node_vm.live_stream import LiveStream, Sample, live_stream, process_of
from tests.node_vm.machine import Machine

JOBS = {"admin": ("4711", (0, 1)), "visitor": ("4712", (2, 3))}  # user: Slurm's job, RDMA devices
SAMPLES = 1 + 3  # until an event is there; the first may be under way
FIRST_SAMPLE_SECONDS = 300.0  # two gdrtops start at once, beside eight transfers
# What says how processes are; under emulation it may answer after its sample.
STATES = "process states"


@dataclass(frozen=True)
class Pair:
    """Two ends of a transfer."""

    user: str
    device: str
    server: int
    client: int


@dataclass(frozen=True)
class Jobs:
    """The node with its jobs, and who looks at it."""

    guest: Guest
    pairs: list[Pair]
    streams: tuple[LiveStream, ...]

    @property
    def pids(self) -> set[int]:
        return {pid for pair in self.pairs for pid in (pair.server, pair.client)}

    def sample_with_all(self, stream: LiveStream, seconds: float = COMMAND_SECONDS) -> Sample:
        """A sample in which everything of all ends has been read."""

        def is_whole(sample: Sample) -> bool:
            processes = [process_of(sample, pid) for pid in self.pids]
            return all(
                process and process["pinned_bytes"] and process["nics"] and process["user"]
                for process in processes
            )

        return stream.until(is_whole, seconds)

    def event(self, script: str, kind: str, subject: str) -> list[str]:
        """What the event that a change of the node makes says, to each who looks."""
        for stream in self.streams:
            self.sample_with_all(stream)  # only what was seen before can change
        since, changed = map(float, self.guest.shell(f"date +%s.%N; {script}; date +%s.%N").split())
        texts = []
        for stream in self.streams:
            source = STATES if kind.startswith("process") else None
            event, number = stream.event(since, kind, subject, source, changed)
            print(f"{kind} in sample {number}")
            assert number <= SAMPLES, event
            texts.append(event["text"])
        return texts

    @contextmanager
    def ended(self, pair: Pair) -> Iterator[None]:
        """A time without this pair; afterwards both ends are started again."""
        self.guest.ask("kill", "-KILL", str(pair.server), str(pair.client))
        self.pairs.remove(pair)
        try:
            yield
        finally:
            self.pairs.extend(start(self.guest, pair.user, [pair.device]))


def start(guest: Guest, user: str, devices: list[str]) -> list[Pair]:
    pids = [int(pid) for pid in guest.run("run-pairs", user, JOBS[user][0], *devices).split()]
    ends = zip(devices, pids[::2], pids[1::2], strict=True)
    return [Pair(user, device, server, client) for device, server, client in ends]


@pytest.fixture(scope="module")
def jobs(rebooting: Machine) -> Iterator[Jobs]:
    guest = rebooting.guest
    guest.run("reset-node")
    guest.shell("modprobe mlx5_ib; modprobe nvidia_peermem")
    with ExitStack() as stack:
        stack.callback(guest.ask, "pkill", "-KILL", "-x", "ib_write_bw")
        pairs: list[Pair] = []
        for user, (_, numbers) in JOBS.items():
            pairs += start(guest, user, [f"mlx5_{number}" for number in numbers])
        streams = tuple(
            stack.enter_context(live_stream(guest.as_user(user), f"{user}-jobs"))
            for user in ("root", "visitor")
        )
        jobs = Jobs(guest, pairs, streams)
        for stream in streams:
            jobs.sample_with_all(stream, FIRST_SAMPLE_SECONDS)
        yield jobs


def test_each_end_has_what_rdma_and_proc_say(jobs: Jobs) -> None:
    queue_pairs = json.loads(jobs.guest.run("rdma", "-j", "resource", "show", "qp"))
    regions = json.loads(jobs.guest.run("rdma", "-j", "resource", "show", "mr"))
    status = jobs.guest.run("grep", "VmPin", *(f"/proc/{pid}/status" for pid in sorted(jobs.pids)))
    pinned = dict(
        zip(sorted(jobs.pids), (int(word) for word in status.split() if word.isdigit()), strict=True)
    )
    counts = Counter((pair.get("pid"), pair["ifname"], pair["state"] == "RTS") for pair in queue_pairs)
    for stream in jobs.streams:
        sample = jobs.sample_with_all(stream)
        for pair in jobs.pairs:
            for pid in (pair.server, pair.client):
                process = process_of(sample, pid)
                assert process is not None
                (nic,) = process["nics"]
                own = [region for region in regions if region.get("pid") == pid]
                ready = counts[pid, pair.device, True]
                assert nic["device"] == pair.device
                assert (nic["queue_pairs"], nic["ready"]) == (ready + counts[pid, pair.device, False], ready)
                assert nic["regions"] == len(own)
                assert nic["registered_bytes"] == sum(-(-region["mrlen"] // 4096) * 4096 for region in own)
                assert process["pinned_bytes"] == pinned[pid] * 1024
                assert process["user"] == pair.user


def test_host_memory_is_called_so(jobs: Jobs) -> None:
    for stream in jobs.streams:
        sample = jobs.sample_with_all(stream)
        for pair in jobs.pairs:
            client, server = process_of(sample, pair.client), process_of(sample, pair.server)
            assert client is not None
            assert server is not None
            assert (client["role"], client["path_text"]) == ("perftest", "host memory")
            # The end that only receives stays in RTR.
            assert server["path_text"] == "unknown: no queue pair is connected (RTS)"


def test_two_jobs_of_two_users(jobs: Jobs) -> None:
    for stream in jobs.streams:
        sample = jobs.sample_with_all(stream)
        assert len(sample["jobs"]) == len(JOBS)
        for user, (number, devices) in JOBS.items():
            (job,) = [job for job in sample["jobs"] if user in job["name"]]
            assert number in job["name"]
            assert job["nics"] == [f"mlx5_{device}" for device in devices]
            ends = {pid for pair in jobs.pairs if pair.user == user for pid in (pair.server, pair.client)}
            assert set(job["pids"]) == ends


def test_a_stopped_process(jobs: Jobs) -> None:
    client = jobs.pairs[0].client
    # With its share of a CPU it takes a while to stop.
    is_stopped = f"grep -q '^State:.T' /proc/{client}/status"
    stop = f"kill -STOP {client}; until {is_stopped}; do sleep 0.1; done"
    try:
        stopped = jobs.event(stop, "process-stopped", f"pid {client}")
    finally:
        resumed = jobs.event(f"kill -CONT {client}", "process-resumed", f"pid {client}")
    for text in stopped:
        assert "ib_write_bw" in text
        assert "stopped" in text
    for text in resumed:
        assert "again" in text or "resumed" in text


def test_a_port_that_goes_down(jobs: Jobs) -> None:
    pair = next(pair for pair in jobs.pairs if pair.device == "mlx5_1")
    with jobs.ended(pair):  # a transfer ends when its port is down for longer than its retries take
        texts = jobs.event("ip link set ens1np0 down", "port-state", "mlx5_1")
        assert texts == ["mlx5_1 went down"] * len(texts)
        for text in jobs.event("ip link set ens1np0 up", "port-state", "mlx5_1"):
            assert text.startswith("mlx5_1 is up again")


def test_a_module_that_is_unloaded(jobs: Jobs) -> None:
    texts = jobs.event("rmmod nvidia_peermem", "module-unloaded", "nvidia_peermem")
    assert texts == ["nvidia_peermem was unloaded"] * len(texts)
    jobs.guest.run("modprobe", "nvidia_peermem")


def test_a_killed_process(jobs: Jobs) -> None:
    pair = jobs.pairs[2]
    client = pair.client
    # With its share of a CPU it takes a while to end.
    kill = f"kill -KILL {client}; while [ -e /proc/{client} ]; do sleep 0.1; done"
    try:
        texts = jobs.event(kill, "process-ended", "")  # the other end may end in the same sample
    finally:
        with jobs.ended(pair):
            pass
    for text in texts:
        assert "ib_write_bw" in text
        assert "ended" in text
