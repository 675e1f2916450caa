"""Results come back from JSON as they were; no JSON value does any harm."""

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.bandwidth.model.planned_series import Pair
from probes.bandwidth.model.rating import Assessment, Rating
from probes.bandwidth.model.result import MOST_SAMPLES, SCHEMA, Ending, Result, from_json, to_json
from probes.bandwidth.model.samples import About, Fact, Latency, Sample
from probes.bandwidth.tools.failures import Failure, failures_in
from tests.support.sample_results import failed, latency, result


def test_a_failure_keeps_what_to_do() -> None:
    (told,) = failures_in("Failed to modify QP 59 to RTR", ("perftest",))
    assert isinstance(told, Failure)
    read = from_json(to_json(failed(failure=told.text)))
    assert read is not None
    assert (read.failure, read.what_failed) == (told.text, told.text.partition(". ")[0])


def test_a_deep_file_of_an_earlier_version_does_no_harm() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    assert from_json({**to_json(result(190.0)), "samples": deep, "figure": {"latencies": deep}}) is not None


CHARACTERS = st.characters(codec="utf-8", categories=("L", "N", "P"))
TEXT = st.text(CHARACTERS, max_size=40)
NAME = st.text(CHARACTERS, min_size=1, max_size=40)
FIGURE = st.floats(0, 1e6)
COUNT = st.integers(0, 1 << 40)
SAMPLES = st.builds(
    Sample,
    what=TEXT,
    raw=TEXT,
    variant=TEXT,
    size_bytes=st.none() | COUNT,
    gbps=st.none() | FIGURE,
    peak_gbps=st.none() | FIGURE,
    bus_gbps=st.none() | FIGURE,
    messages_per_second=st.none() | FIGURE,
    iterations=st.none() | COUNT,
    time_us=st.none() | FIGURE,
    latencies=st.lists(st.builds(Latency, TEXT, FIGURE), max_size=4).map(tuple),
    wrong=st.none() | COUNT,
    is_bidirectional=st.booleans(),
)
RESULTS = st.builds(
    Result,
    taken_at=st.floats(0, 4e9),
    seconds=FIGURE,
    node=TEXT,
    machine=TEXT,
    origin=TEXT,
    title=NAME,
    tool=NAME,
    setup=TEXT,
    pair=st.builds(Pair, TEXT, TEXT, TEXT, st.integers(0, 254), TEXT, TEXT),
    memory=TEXT,
    size_bytes=st.none() | COUNT,
    queue_pairs=st.integers(1, 16_384),
    is_bidirectional=st.booleans(),
    commands=st.lists(TEXT, max_size=3).map(tuple),
    ending=st.sampled_from(Ending),
    samples=st.lists(SAMPLES, max_size=5).map(tuple),
    facts=st.lists(st.builds(Fact, st.sampled_from(About), TEXT, TEXT), max_size=4).map(tuple),
    figure=st.none() | SAMPLES,
    judgment=st.builds(Assessment, st.sampled_from(Rating), TEXT, TEXT, st.none() | FIGURE),
    limit_gbps=st.none() | FIGURE,
    limit_by=TEXT,
    failure=TEXT,
    failure_line=TEXT,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([field.name for field in fields(Result)])


@pytest.mark.slow
@given(RESULTS)
def test_a_result_comes_back_as_it_was(saved_result: Result) -> None:
    assert from_json(json.loads(json.dumps(to_json(saved_result)))) == saved_result


@pytest.mark.slow
@given(JSON | st.dictionaries(NAMES, JSON))
def test_no_json_value_does_any_harm(value: object) -> None:
    from_json(value)


@pytest.mark.slow
@given(st.dictionaries(NAMES, JSON))
def test_a_result_with_spoilt_fields_is_read_or_passed_over(spoilt: dict[str, object]) -> None:
    read = from_json({**to_json(result()), **spoilt})
    if read is not None:
        assert from_json(json.loads(json.dumps(to_json(read), allow_nan=False))) == read


def test_units_stand_in_the_names() -> None:
    told = to_json(result())
    assert told["schema"] == SCHEMA
    assert told["gbps"] == 186.0
    assert told["size_bytes"] == 1 << 20
    assert told["limit_gbps"] == 200.0
    assert told["figure"]["gbps"] == 186.0
    assert to_json(latency(2.5))["samples"][0]["latencies"][1] == {
        "statistic": "typical",
        "microseconds": 2.5,
    }
    assert to_json(failed())["ending"] == "failed"


def test_another_schema_is_not_guessed_at() -> None:
    for schema in (SCHEMA + 1, "1", True, None):
        assert from_json({**to_json(result()), "schema": schema}) is None


def test_hostile_text_is_harmless_and_bounded() -> None:
    told = {**to_json(result()), "title": "\x1b[2J" + "x" * 100_000, "commands": ["\x07"] * 1000}
    read = from_json(told)
    assert read is not None
    assert "\x1b" not in read.title
    assert len(read.title) < 1000
    assert len(read.commands) < 100
    assert "\x07" not in read.commands[0]


def test_only_so_many_rows_are_read() -> None:
    row = to_json(result())["figure"]
    read = from_json({**to_json(result()), "samples": [row] * 100_000})
    assert read is not None
    assert len(read.samples) == MOST_SAMPLES
