"""Samples with labels that anything may have written: both of Prometheus' parsers read them back."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from probes.base.text import printable
from probes.base.unknown import Reason, Unknown
from probes.metrics.metric_list import MOST_SAMPLES, Family, Kind, Metric, family
from tui.commands.metrics.reading import OPEN_METRICS, encode

GAUGE = Metric("gdrtop_sample", "A sample.")
HOSTILE = (
    *('mlx5_0"} 1\ngdrtop_verdict{state="active', "\\", "a\\nb", "\x1b[31m\x00"),
    *("\ud800", "{}", "é", "#"),
)


def read_back(family: Family) -> list[dict[str, str]]:
    text = encode([family]).decode()
    (read,) = parse_text(text)
    (strict,) = parse_openmetrics(encode([family], OPEN_METRICS).decode())
    assert [sample.labels for sample in read.samples] == [sample.labels for sample in strict.samples]
    return [sample.labels for sample in read.samples]


def test_hostile_names_stay_in_their_label() -> None:
    made = family(GAUGE, (({"device": name}, 1) for name in HOSTILE))
    assert [labels["device"] for labels in read_back(made)] == [printable(name) for name in HOSTILE]


@given(st.dictionaries(st.sampled_from(["device", "title"]), st.text(max_size=200)), st.floats())
def test_any_label_and_value_is_read_back(labels: dict[str, str], value: float) -> None:
    made = family(GAUGE, [(labels, value)])
    (read,) = read_back(made)
    assert read == made.samples[0].labels
    assert all(len(text) <= 128 for text in read.values())


def test_samples_with_equal_labels_would_cost_the_whole_scrape() -> None:
    long = "x" * 200
    made = family(GAUGE, [({"device": f"{long}{number}"}, number) for number in range(3)])
    assert [sample.value for sample in made.samples] == [0]
    assert made.omitted == 2


def test_a_metric_has_a_bounded_number_of_samples() -> None:
    made = family(GAUGE, (({"device": str(number)}, 1) for number in range(MOST_SAMPLES + 5)))
    assert (len(made.samples), made.omitted) == (MOST_SAMPLES, 5)


def test_an_unknown_value_is_counted_and_never_0() -> None:
    absent, unread = Unknown(Reason.NOT_THERE), Unknown(Reason.NEEDS_ROOT)
    made = family(GAUGE, [({"port": "1"}, absent), ({"port": "2"}, unread), ({"port": "3"}, 7)])
    assert [sample.labels["port"] for sample in made.samples] == ["3"]
    assert made.unknown == 1


def test_a_counter_ends_in_total_once_in_both_formats() -> None:
    made = family(Metric("gdrtop_pause_seconds", "Pauses.", Kind.COUNTER), [({}, 2.5)])
    assert b"\ngdrtop_pause_seconds_total 2.5\n" in encode([made])
    assert b"\ngdrtop_pause_seconds_total 2.5\n# EOF" in encode([made], OPEN_METRICS)
    assert b"_created" not in encode([made])
