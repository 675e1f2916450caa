"""Whether a port moves data: the same answer in Live, in hang and for a job on many nodes."""

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.activity import Silence, moves_data
from tests.probes.live.live_samples import a_job, a_port


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


def test_software_rdma_moves_data_at_a_few_megabits() -> None:
    assert moves_data(a_port(sent=0.01, received_gbps=0.0, rates_from="rxe0"))


def test_a_job_is_silent_after_ten_seconds_in_which_no_nic_of_it_is_known_to_move_data() -> None:
    silence, job = Silence(), a_job(ranks=2)
    still, moves = a_port(0, sent=0.0, received_gbps=0.0), a_port(1, sent=50.0)
    stopped = a_port(1, sent=0.0, received_gbps=0.0)
    unknown = a_port(1, sent=Unknown(Reason.NEEDS_ROOT))
    seen = []
    for at, port in enumerate([moves, *[stopped] * 12, unknown, stopped]):
        (now,) = silence.update((job,), (still, port), float(at))
        seen.append(now.silent_seconds)
    assert seen == [0.0] * 10 + [10.0, 11.0, 12.0, 0.0, 0.0]
