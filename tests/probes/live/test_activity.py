"""Whether a port moves data: the same answer in Live, in hang and for a job on many nodes."""

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.live.activity import moves_data
from tests.probes.live.live_samples import a_port


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
