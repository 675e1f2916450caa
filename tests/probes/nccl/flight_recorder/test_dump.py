"""What a dump of the flight recorder says about one rank."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Unknown
from probes.nccl.flight_recorder.dump import Dump, parse_dump, rank_in_name
from tests.support.flight_recorder_dumps import dump_value, entry, pickled


def parsed(value: Any) -> Dump:
    dump = parse_dump(pickled(value), 3, "nccl_trace_rank_3")
    assert not isinstance(dump, Unknown)
    return dump


def test_a_group_has_its_newest_called_and_completed_collective() -> None:
    entries = [entry(4, state="completed"), entry(5, state="started"), entry(6)]
    (group,) = parsed(dump_value(entries, {"0": range(8)})).groups
    assert (group.name, group.description, group.ranks) == ("0", "default_pg", tuple(range(8)))
    assert (group.called, group.completed, group.oldest) == (6, 4, 4)
    assert group.operations[6].text == "nccl:all_reduce [[1024]] -> [[1024]] [Float] -> [Float]"


def test_completed_collectives_that_the_launcher_left_out_are_in_the_status() -> None:
    (group,) = parsed(dump_value([entry(9)], {"0": range(8)}, {"0": (9, 8)})).groups
    assert (group.called, group.completed) == (9, 8)


def test_a_group_without_entries_is_known_by_its_status() -> None:
    (group,) = parsed(dump_value([], {"0": range(4)}, {"0": (7, 7)})).groups
    assert (group.called, group.completed, group.ranks) == (7, 7, (0, 1, 2, 3))


def test_sends_and_receives_are_counted_and_not_judged() -> None:
    dump = parsed(dump_value([entry(1), entry(2, is_p2p=True)], {"0": range(2)}))
    assert dump.point_to_point == 1
    assert dump.groups[0].called == 1


def test_json_has_numbers_as_text_and_lists_for_tuples() -> None:
    value = dump_value([entry(9)], {"0": range(2)})
    value["pg_status"] = {"0": {"last_enqueued_collective": "9", "last_completed_collective": "8"}}
    dump = parse_dump(json.dumps(value).encode(), 0, "rank_0.json")
    assert not isinstance(dump, Unknown)
    assert (dump.groups[0].called, dump.groups[0].completed) == (9, 8)


def test_an_old_dump_has_only_seq_id() -> None:
    old = entry(5)
    old["seq_id"] = old.pop("collective_seq_id")
    assert parsed({"version": "1.5", "entries": [old]}).groups[0].called == 5


def test_the_newest_entry_gives_the_time() -> None:
    newest = parsed(dump_value([entry(5), entry(6)], {})).newest_at
    assert newest == pytest.approx(1.7e9)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"garbage", "opcode that gdrtop does not allow"),
        (b"{", "not a dump"),
        (b"{}", "not a dump of the flight recorder"),
        (pickled([1]), "not a dump of the flight recorder"),
        (pickled(dump_value([entry(5)], {}))[:-20], "broken|cut off|allow"),
        (b'{"entries":' + b"[" * 10_000, "not a dump"),
    ],
    ids=lambda value: "",
)
def test_what_is_no_dump_is_unknown_with_the_reason(content: bytes, why: str) -> None:
    dump = parse_dump(content, 0, "file")
    assert isinstance(dump, Unknown)
    assert re.search(why, str(dump))


def test_a_large_file_is_not_parsed() -> None:
    for content, limit in ((b"\x80" * ((32 << 20) + 1), 32), (b"{" + b" " * (8 << 20), 8)):
        assert f"larger than {limit} MiB" in str(parse_dump(content, 0, "file"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(entry(1), JSON)), JSON, JSON)
def test_values_of_any_type_are_left_out(odd: dict[str, Any], config: Any, status: Any) -> None:
    value = {"version": 5, "entries": [odd, entry(1), 7], "pg_config": config, "pg_status": status}
    dump = parsed(value)
    assert any(group.called >= 1 for group in dump.groups)


def test_a_name_cannot_change_the_terminal() -> None:
    evil = entry(1, process_group=("\x1b[2J0", "\x1b]0;x\x07"), profiling_name="\x1b[31m")
    (group,) = parsed(dump_value([evil], {})).groups
    assert "\x1b" not in group.name + group.description + group.operations[1].text


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("_dump_0", 0),
        ("rank_5.json", 5),
        ("comm_lib_trace_rank_", None),
        ("x", None),
    ],
)
def test_the_rank_is_at_the_end_of_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank
