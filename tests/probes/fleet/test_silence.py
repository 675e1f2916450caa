"""Which port of a hanging job fell silent first, as far as clocks and samples can show it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.job_differences import TrafficWatch, standstill_of
from probes.fleet.job_model import ClockOffset, NodeSample, Silence
from probes.live.model.sample import Standstill, ranks_wait
from tests.support.fleet_samples import EXACT
from tests.support.live_samples import BEGAN, a_port, a_sample

NO_CLOCK = Unknown(Reason.TIMED_OUT, "clock")


def silence(
    stops: Mapping[str, Mapping[str, float]],
    clocks: Mapping[str, Maybe[ClockOffset]] | None = None,
    seconds: int = 40,
    delays: Mapping[str, float] | None = None,
) -> Silence | None:
    """The silence of ports that stop at these seconds; `delays`: of the samples of a node in each second."""
    watch = TrafficWatch()
    for node, ports in stops.items():
        delay = (delays or {}).get(node, 0.0)
        clock = (clocks or {}).get(node, EXACT)
        ahead = 0.0 if isinstance(clock, Unknown) else clock.seconds
        for second in range(seconds):
            at = second + delay
            rates = [
                a_port(int(name[-1]), 370.0 * max(0.0, min(1.0, stop - (at - 1.0))))
                for name, stop in ports.items()
            ]
            sample = a_sample(at + ahead, ports=tuple(rates))
            watch.add(node, NodeSample(sample, clock=clock), ports)
    return watch.silence(stops)


def test_a_job_that_moves_data_or_pauses_for_a_few_seconds_is_not_silent() -> None:
    assert silence({"gpu1": {"mlx5_0": 100.0}}) is None
    assert silence({"gpu1": {"mlx5_0": 35.0, "mlx5_1": 5.0}}) is None
    assert silence({}) is None


def test_a_port_that_stopped_seconds_before_the_others_fell_silent_first() -> None:
    found = silence({"gpu1": {"mlx5_0": 20.0, "mlx5_1": 20.0}, "gpu2": {"mlx5_0": 20.0, "mlx5_1": 16.5}})
    assert found is not None
    assert found.first == ("gpu2 mlx5_1",)
    assert found.sentence == "gpu2 mlx5_1 fell silent first, at least 2.0 s earlier"
    assert found.at is not None
    assert abs(found.at - BEGAN - 17) < 0.01


def test_ports_that_stopped_together_cannot_be_ordered() -> None:
    found = silence({"gpu1": {"mlx5_0": 20.2}, "gpu2": {"mlx5_0": 20.1}}, delays={"gpu2": 0.4})
    assert found is not None
    assert not found.first
    assert "all 2 ports stopped within" in found.sentence


def test_the_ports_of_a_node_may_stop_before_all_others() -> None:
    ports = {f"mlx5_{number}": 15.0 for number in range(8)}
    found = silence({"gpu1": {"mlx5_0": 20.0}, "gpu2": ports})
    assert found is not None
    assert len(found.first) == 8
    assert found.sentence.startswith("8 ports of gpu2 fell silent before the others")


def test_a_clock_that_is_wrong_is_corrected_and_one_that_is_unknown_gives_no_order() -> None:
    stops = {"gpu1": {"mlx5_0": 20.0}, "gpu2": {"mlx5_0": 15.0}}
    ahead = silence(stops, {"gpu2": ClockOffset(30.0, 0.01)})
    assert ahead is not None
    assert ahead.first == ("gpu2 mlx5_0",)
    vague = silence(stops, {"gpu2": ClockOffset(0.0, 8.0)})
    assert vague is not None
    assert not vague.first
    unknown = silence(stops, {"gpu2": NO_CLOCK})
    assert unknown is not None
    assert (
        unknown.sentence
        == "Which port fell silent first is unknown: the clock of gpu2 is unknown (timed out)"
    )
    alone = silence({"gpu2": {"mlx5_0": 20.0, "mlx5_1": 15.0}}, {"gpu2": NO_CLOCK})
    assert alone is not None
    assert alone.first == ("gpu2 mlx5_1",)


def test_a_job_that_was_silent_before_is_silent_without_an_order() -> None:
    found = silence({"gpu1": {"mlx5_0": -1.0, "mlx5_1": -1.0}})
    assert found is not None
    assert found.seconds == 39
    assert "silent before gdrtop began to watch" in found.sentence


def test_a_clock_that_was_set_back_begins_again() -> None:
    watch = TrafficWatch()
    for at in (100.0, 101.0, 2.0, 3.0):
        watch.add("gpu1", NodeSample(a_sample(at, ports=(a_port(0, 0.0),))), ["mlx5_0"])
    assert watch.silence({"gpu1": ["mlx5_0"]}) is None


STILL = Standstill(70.0, True, 8, 8)
NO_NVML = Unknown(Reason.TIMED_OUT, "NVML")


def test_one_rule_judges_the_ranks_of_all_nodes_together() -> None:
    """The node of the rank that does not arrive may have no busy GPU, and another one may have no answer."""
    alone, others = Standstill(65.0, False, 1, 0), Standstill(62.0, True, 1, 1)
    assert ranks_wait(alone) is False
    assert standstill_of([alone, others]) == Standstill(62.0, False, 2, 1)
    assert ranks_wait(standstill_of([alone, others])) is True
    assert ranks_wait(standstill_of([STILL, replace(STILL, busy=0, blocked=("rank 9",))])) is True
    for moves in (None, Unknown(Reason.NOT_YET, "rates")):
        assert standstill_of([STILL, moves, NO_NVML]) is None
    assert standstill_of([STILL, NO_NVML]) == NO_NVML
    assert standstill_of([]) is None


NAMES = st.sampled_from(["gpu1", "gpu2", "gpu3"])
MOMENTS = st.floats(5.0, 15.0)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.dictionaries(
        NAMES, st.dictionaries(st.sampled_from(["mlx5_0", "mlx5_1"]), MOMENTS, min_size=1), min_size=1
    ),
    st.dictionaries(NAMES, st.floats(0.0, 0.99)),
    st.dictionaries(NAMES, st.floats(-50.0, 50.0)),
)
def test_a_port_that_is_called_the_first_was_the_first(
    stops: dict[str, dict[str, float]], delays: dict[str, float], offsets: dict[str, float]
) -> None:
    clocks = {node: ClockOffset(seconds, 0.02) for node, seconds in offsets.items()}
    found = silence(stops, clocks, delays=delays)
    assert found is not None
    moments = {f"{node} {port}": stop for node, ports in stops.items() for port, stop in ports.items()}
    others = [stop for name, stop in moments.items() if name not in found.first]
    # Below 1 Gb/s, a port is silent up to 3 ms of full traffic too early.
    assert all(moments[name] <= stop + 0.01 for name in found.first for stop in others)
