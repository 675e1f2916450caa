"""Reading a pickle without the unpickler: the same values, and nothing else."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nccl.flight_recorder.pickle_values import NotPlain, plain_values

KEYS = st.text(max_size=8)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(KEYS, inner, max_size=5)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.lists(inner, min_size=3, max_size=5).map(tuple)
    ),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([2, 4]))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    assert plain_values(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(os.system, 2),
        pickle.dumps(os.system, 4),
        pickle.dumps(ValueError("x"), 2),
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02Q.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02]q\x00b.",
    ],
)
def test_what_names_code_is_refused(content: bytes) -> None:
    with pytest.raises(NotPlain, match="not allow"):
        plain_values(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02(.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x02h\x05.",
        b"\x80\x02K\x01a.",
        b"\x80\x02]K\x01K\x02u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02\x87.",
        b"e.",
    ],
)
def test_a_broken_pickle_is_an_error_with_a_reason(content: bytes) -> None:
    with pytest.raises(NotPlain):
        plain_values(content)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    with contextlib.suppress(NotPlain):
        plain_values(b"\x80\x02" + content)


@pytest.mark.parametrize("key", [7, (2**61 - 1) * 5, True, None, 0.5, ("a",), "x" * 1001])
def test_keys_that_could_be_made_to_collide_are_refused(key: Any) -> None:
    """Multiples of 2**61-1 all have the hash 0: 60,000 of them in one opcode took 14 seconds."""
    with pytest.raises(NotPlain, match="a key that is no short text"):
        plain_values(pickle.dumps({key: None}, 2))
    with pytest.raises(NotPlain, match="a key that is no short text"):
        plain_values(pickle.dumps({"a": 1, key: None, "b": 2}, 4))


def test_many_nested_lists_need_no_recursion() -> None:
    value = plain_values(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert isinstance(value, list)
    depth = 0
    while value:
        (value,) = value
        depth += 1
    assert depth == 99_999


def test_reading_ends_when_the_time_is_up() -> None:
    with pytest.raises(NotPlain, match="too long"):
        plain_values(pickle.dumps(list(range(100_000)), 2), lambda: True)
