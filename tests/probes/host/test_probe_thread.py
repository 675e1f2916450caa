"""Probes share threads, and one that hangs holds up no other."""

from __future__ import annotations

import threading

from probes.base.unknown import Unknown
from probes.host.machine.local import LocalHost
from probes.host.probe_thread import start_probe


def test_probes_one_after_another_need_no_further_threads() -> None:
    host = LocalHost()
    for _ in range(3):
        start_probe(host, "warm up", lambda: 0).wait(5.0)
    threads: set[int] = set()
    for number in range(50):
        probe = start_probe(host, f"probe {number}", lambda: threads.add(threading.get_ident()) or 7)
        assert probe.answer(5.0) == 7
    assert len(threads) <= 3


def test_a_probe_that_hangs_holds_up_no_other() -> None:
    host, released = LocalHost(), threading.Event()
    stuck = start_probe(host, "stuck", lambda: released.wait(30.0))
    try:
        answers = [start_probe(host, f"probe {number}", lambda: 7).answer(5.0) for number in range(8)]
        assert answers == [7] * 8
        assert isinstance(stuck.answer(0.01), Unknown)
    finally:
        released.set()
    assert stuck.answer(5.0) is True


def test_everyone_who_waits_for_a_probe_gets_its_answer() -> None:
    host, released = LocalHost(), threading.Event()
    probe = start_probe(host, "slow", lambda: released.wait(30.0))
    assert not probe.wait(-1.0)
    answers: list[object] = []
    waiting = [threading.Thread(target=lambda: answers.append(probe.answer(20.0))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    released.set()
    for thread in waiting:
        thread.join(20.0)
    assert answers == [True] * 3
    assert probe.answer(0.0) is True


def test_an_error_ends_one_probe_and_not_its_thread() -> None:
    host = LocalHost()

    def fail() -> int:
        raise OSError(5, "Input/output error")

    assert isinstance(start_probe(host, "fails", fail).answer(5.0), Unknown)
    assert start_probe(host, "works", lambda: 7).answer(5.0) == 7
