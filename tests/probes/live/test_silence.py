"""Whether a port moves data: the same answer in Live, in hang and for a job on many nodes."""

from dataclasses import replace

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.jobs.process_files import MappedLibrary
from probes.host.rdma_resources import PacketNumbers
from probes.live.model.activity import moves_data, waiting_text
from probes.live.model.paced_source import read_together
from probes.live.model.sample import (
    GpuSample,
    LiveJob,
    LiveProcess,
    LiveSample,
    NicUse,
    PortSample,
    Role,
    Standstill,
    ranks_wait,
)
from probes.live.silence import Silence
from probes.simulation.host import SimulatedHost
from tests.support.live_node import node_with
from tests.support.live_samples import ABSENT, FIRST_PID, a_gpu, a_job, a_port, a_process, a_sample


@pytest.mark.parametrize(
    ("line_gbps", "sent_gbps", "moves"),
    [
        (400.0, 1.1, True),
        (400.0, 0.9, False),
        (10.0, 0.5, True),  # 5 % of the line rate is a job, not noise
        (10.0, 0.05, False),
        (Unknown(Reason.NOT_THERE), 0.9, False),
        (400.0, Unknown(Reason.NEEDS_ROOT), None),
    ],
)
def test_noise_is_below_one_gigabit_or_a_hundredth_of_the_line_rate(
    line_gbps: Maybe[float], sent_gbps: Maybe[float], moves: bool | None
) -> None:
    port = a_port(sent=sent_gbps, received_gbps=sent_gbps, line_rate_gbps=line_gbps)
    assert moves_data(port) is moves


def sample(
    jobs: tuple[LiveJob, ...],
    processes: Maybe[tuple[LiveProcess, ...]],
    ports: tuple[PortSample, ...],
    gpus: tuple[GpuSample, ...],
    at: int,
    clients: tuple[str, ...] = (),
) -> LiveSample:
    storage = dict.fromkeys(clients, ("Lustre",))
    seen = {"jobs": jobs, "processes": processes, "ports": ports, "gpus": gpus}
    return a_sample(float(at), **seen, kernel_clients=storage)


def test_software_rdma_moves_data_at_a_few_megabits() -> None:
    assert moves_data(a_port(sent=0.01, received_gbps=0.0, rates_from="rxe0"))


def test_a_job_is_silent_after_ten_seconds_in_which_no_nic_of_it_is_known_to_move_data() -> None:
    silence, job = Silence(), a_job(ranks=2)
    still, moves = a_port(0, sent=0.0, received_gbps=0.0), a_port(1, sent=50.0)
    stopped = a_port(1, sent=0.0, received_gbps=0.0)
    unknown = a_port(1, sent=Unknown(Reason.NEEDS_ROOT))
    seen = []
    for at, port in enumerate([moves, *[stopped] * 12, unknown, stopped]):
        (now,) = silence.update(sample((job,), (), (still, port), (), at))
        seen.append(now.silent_seconds)
    assert seen == [0.0] * 10 + [10.0, 11.0, 12.0, 0.0, 0.0]


STILL = tuple(a_port(number, 0.0) for number in range(2))
BUSY = tuple(a_gpu(number, 100) for number in range(2))
IDLE = tuple(a_gpu(number, 3) for number in range(2))
UNREAD = tuple(a_gpu(number, Unknown(Reason.TIMED_OUT)) for number in range(2))
RANKS = (a_process(0), a_process(1))


def waits_after(
    seconds: int = 61,
    job: LiveJob | None = None,
    processes: tuple[LiveProcess, ...] = RANKS,
    ports: tuple[PortSample, ...] = STILL,
    gpus: tuple[GpuSample, ...] = BUSY,
    before: int = 0,
    clients: tuple[str, ...] = (),
) -> Maybe[bool]:
    """Whether a job waits after some seconds, the first `before` of them with traffic."""
    silence, moving = Silence(), tuple(a_port(number) for number in range(2))
    now = job or a_job(ranks=2)
    for at in range(before + seconds):
        rates = moving if at < before else ports
        (now,) = silence.update(sample((now,), processes, rates, gpus, at, clients))
    return ranks_wait(now.standstill)


@pytest.mark.parametrize("before", [0, 20])
def test_a_job_waits_if_it_was_silent_and_its_gpus_busy_for_a_minute_seen_before_or_not(before: int) -> None:
    assert waits_after(before=before) is True
    early = waits_after(59, before=before)
    assert early is False if before else isinstance(early, Unknown)
    assert waits_after(gpus=(BUSY[0], IDLE[1]), before=before) is True  # the others wait for the idle one


def test_a_job_with_idle_gpus_loads_data_compiles_or_writes_a_checkpoint() -> None:
    assert waits_after(gpus=IDLE) is False
    for state in ("D", "T"):
        assert waits_after(gpus=IDLE, processes=(RANKS[0], a_process(1, state=state))) is True


def test_what_ranks_that_wait_do_is_said_in_words() -> None:
    assert waiting_text(Standstill(60.0, True, 8, 7)) == "7 of its 8 GPUs are busy"
    assert waiting_text(Standstill(60.0, True, 1, 1)) == "1 of its 1 GPU is busy"
    blocked = Standstill(60.0, True, 0, 0, ("rank 3",))
    assert waiting_text(blocked) == "rank 3 is stopped or blocked"
    many = replace(blocked, gpus=8, busy=8, blocked=tuple(f"rank {number}" for number in range(8)))
    assert waiting_text(many) == (
        "rank 0, rank 1, rank 2 and 5 more ranks are stopped or blocked, and all 8 of its 8 GPUs are busy"
    )


def test_a_moment_without_processes_does_not_begin_anew() -> None:
    silence, job = Silence(), a_job(ranks=2)
    for at in range(70):
        if at == 50:
            assert silence.update(sample((), Unknown(Reason.TIMED_OUT), STILL, BUSY, at)) == ()
            continue
        (job,) = silence.update(sample((job,), RANKS, STILL, BUSY, at))
    assert ranks_wait(job.standstill) is True


def test_what_cannot_be_read_is_neither_silent_nor_ok() -> None:
    assert isinstance(waits_after(gpus=UNREAD), Unknown)
    assert isinstance(waits_after(ports=(a_port(0, Unknown(Reason.NEEDS_ROOT)), STILL[1])), Unknown)
    assert isinstance(waits_after(ports=()), Unknown)


def test_ranks_of_one_node_and_servers_of_requests_need_no_traffic() -> None:
    assert waits_after(job=replace(a_job(ranks=2), world_size=2)) is False
    nixl = MappedLibrary("libnixl", "/opt/libnixl.so", ABSENT)
    serving = tuple(replace(each, process=replace(each.process, libraries=(nixl,))) for each in RANKS)
    assert waits_after(processes=serving) is False
    assert waits_after(job=replace(a_job(ranks=2), role=Role.STORAGE)) is False


def test_ports_that_others_use_do_not_decide_where_the_job_has_one_of_its_own() -> None:
    busy_port = (STILL[0], a_port(1))
    shared = replace(a_job(ranks=2), shared_nics=frozenset({"mlx5_1"}))
    assert waits_after(job=shared, ports=busy_port) is True
    assert waits_after(ports=busy_port, clients=("mlx5_1",)) is True
    assert waits_after(ports=busy_port) is False


@pytest.mark.parametrize(("step", "waits"), [(0, True), (7, False), (None, None)])
@pytest.mark.parametrize("rate", [370.0, Unknown(Reason.NEEDS_ROOT)])
def test_queue_pairs_decide_where_all_ports_are_shared(
    step: int | None, waits: bool | None, rate: Maybe[float]
) -> None:
    class Numbers(SimulatedHost):
        asked = 0

        def packet_numbers(self) -> Maybe[tuple[PacketNumbers, ...]]:
            self.asked += 1
            if step is None:
                return Unknown(Reason.DRIVER_ERROR, "RDMA netlink")
            sent = self.asked * step
            return tuple(
                PacketNumbers(f"mlx5_{n}", q, sent, 0, FIRST_PID + n) for n in (0, 1) for q in (1, 2)
            )

        def read_bytes(self, path: str, limit: int = 65536) -> Maybe[bytes]:
            pid = path.split("/")[2]
            return f"Tgid:\t{pid}\n".encode() if path.endswith("/status") else super().read_bytes(path, limit)

    host, silence = Numbers("hgx-h100"), Silence()
    node = node_with("mlx5_0", "mlx5_1")
    job = replace(a_job(ranks=2), shared_nics=frozenset({"mlx5_0", "mlx5_1"}))
    ranks = tuple(replace(rank, nics=(NicUse(f"mlx5_{n}", 2, 2, 1, 1),)) for n, rank in enumerate(RANKS))
    for at in range(120):
        read_together(host, float(at), *silence.questions(host, node))
        (job,) = silence.update(sample((job,), ranks, (a_port(0, rate), a_port(1, rate)), BUSY, at))
    found = ranks_wait(job.standstill)
    assert isinstance(found, Unknown) if waits is None else found is waits
    assert host.asked <= 13  # a NIC answers for each queue pair
