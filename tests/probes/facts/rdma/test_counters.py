"""The table of port counters."""

from __future__ import annotations

from collections import Counter

from probes.facts.rdma.port_health import ERROR_COUNTER_BITS, PORT_COUNTERS, Harm, Place, sampled
from probes.live.model.explanations import explanation_of
from probes.recording.redaction.tokens import is_known
from probes.simulation.node.devices.ports import HW_COUNTERS


def test_a_counter_has_one_row_in_a_place() -> None:
    rows = Counter((counter.name, counter.place) for counter in PORT_COUNTERS)
    assert [row for row, count in rows.items() if count > 1] == []


def test_counters_of_one_name_mean_the_same() -> None:
    first = {counter.name: counter for counter in reversed(PORT_COUNTERS)}
    for counter in PORT_COUNTERS:
        assert (counter.column, counter.rise) == (first[counter.name].column, first[counter.name].rise)


def test_the_standard_counters_are_those_with_a_width() -> None:
    assert set(ERROR_COUNTER_BITS) == {
        counter.name for counter in PORT_COUNTERS if counter.place is Place.STANDARD
    }


def test_every_sample_has_some_of_those_that_are_read() -> None:
    for place in (Place.STANDARD, Place.HARDWARE):
        assert set(sampled(place, is_expected=True)) < set(sampled(place))
    assert "VL15_dropped" not in sampled(Place.STANDARD)


def test_every_harm_is_explained() -> None:
    assert all(map(explanation_of, Harm))


def test_a_recording_and_a_simulated_node_have_counters_of_the_table() -> None:
    names = {counter.name for counter in PORT_COUNTERS}
    assert {name for name in names if not is_known(name)} == set()
    assert set(HW_COUNTERS) <= names
