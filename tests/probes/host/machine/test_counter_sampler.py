"""Counters that are read many times a second, in a thread that ends when nothing asks for them any more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine import counter_files
from probes.host.machine.counter_files import CounterSampler
from tests.support.process_families import wait_for


def read(path: str) -> Maybe[bytes]:
    try:
        return Path(path).read_bytes()
    except OSError:
        return Unknown(Reason.NOT_THERE, path)


def until_some(sampler: CounterSampler) -> Maybe[tuple[tuple[float, int], ...]]:
    """Return the next answer that has a reading, or says why there is none."""
    answers: list[Maybe[tuple[tuple[float, int], ...]]] = []

    def has_come() -> bool:
        answers.append(sampler.readings(0.05))
        return isinstance(answers[-1], Unknown) or bool(answers[-1])

    wait_for(has_come)
    return answers[-1]


def test_it_reads_the_sum_and_says_what_cannot_be_read(tmp_path: Path) -> None:
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_text("1000\n")
    received.write_text("24@1675489372.701036980\n")  # as telemetry of Slingshot NICs
    sampler = CounterSampler(read, [str(sent), str(received)])
    began = time.monotonic()
    first = until_some(sampler)
    assert not isinstance(first, Unknown)
    assert {count for _, count in first} == {1024}
    assert began <= first[0][0] <= time.monotonic()
    second = until_some(sampler)
    assert not isinstance(second, Unknown)
    assert second[0][0] > first[-1][0]  # each reading is returned once


@pytest.mark.parametrize("content", [b"", b"N/A (no PMA)", b"\x1b[31m7", b"9" * 30, b"-4"])
def test_a_file_without_a_number_is_unknown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "counter"
    file.write_bytes(content)
    answer = until_some(CounterSampler(read, [str(file)]))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.MALFORMED
    assert "\x1b" not in str(answer)


def test_a_missing_file_is_unknown_with_its_reason(tmp_path: Path) -> None:
    answer = until_some(CounterSampler(read, [str(tmp_path / "gone")]))
    assert isinstance(answer, Unknown)
    assert answer.reason is Reason.NOT_THERE


def test_it_stops_reading_when_nothing_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_files, "_UNASKED_SECONDS", 0.1)
    file = tmp_path / "counter"
    file.write_text("1")
    sampler = CounterSampler(read, [str(file)])
    until_some(sampler)
    thread = sampler._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    assert until_some(sampler)  # and starts again
