"""Keys arrive, a lone Escape too, and nothing wakes up while nobody types."""

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from textual import events
from textual.message import Message

from tui.terminal.driver import WakingEvent, read_input
from tui.terminal.input_parser import InputParser

LONGEST_SECONDS = 20.0


@contextmanager
def reading() -> Iterator[tuple[int, list[Message], threading.Thread, WakingEvent]]:
    """Yield where to type, what has arrived, and the thread with its end."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    came: list[Message] = []
    end = WakingEvent()
    thread = threading.Thread(target=read_input, args=(slave, end, InputParser(), came.append), daemon=True)
    thread.start()
    try:
        yield master, came, thread, end
    finally:
        end.set()
        thread.join(LONGEST_SECONDS)
        for descriptor in (master, slave):
            with suppress(OSError):
                os.close(descriptor)


def keys(came: list[Message], count: int) -> list[str | None]:
    """Wait for so many keys; a key is its character, or else its name."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(found := [event for event in came if isinstance(event, events.Key)]) < count:
        assert time.monotonic() < deadline, came
        time.sleep(0.005)
    return [event.character if event.is_printable else event.key for event in found]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (b"dq", ["d", "q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        ("ä€".encode(), ["ä", "€"]),
        (b"\xffx", ["\N{REPLACEMENT CHARACTER}", "x"]),
        (b"\x1b", ["escape"]),
    ],
)
def test_keys_arrive(typed: bytes, expected: list[str]) -> None:
    with reading() as (master, came, _, _):
        os.write(master, typed)
        assert keys(came, len(expected)) == expected


def test_a_character_in_two_parts_is_one_key() -> None:
    with reading() as (master, came, _, _):
        os.write(master, b"\xc3")
        time.sleep(0.05)
        os.write(master, b"\xa4q")
        assert keys(came, 2) == ["ä", "q"]


def test_it_ends_when_asked_and_can_begin_again() -> None:
    with reading() as (_, _, thread, end):
        for _ in range(2):
            end.set()
        thread.join(LONGEST_SECONDS)
        assert not thread.is_alive()
        assert select.select([end.descriptor], [], [], 0)[0]
        for _ in range(2):
            end.clear()
        assert not end.is_set()
        assert not select.select([end.descriptor], [], [], 0)[0]


def test_nothing_wakes_up_while_nobody_types_and_after_the_terminal_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakes: list[float | None] = []
    make_poll = select.poll

    class CountedPoll:
        def __init__(self) -> None:
            self._poll = make_poll()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._poll, name)

        def poll(self, milliseconds: float | None) -> list[tuple[int, int]]:
            wakes.append(milliseconds)
            return self._poll.poll(milliseconds)

    monkeypatch.setattr("tui.terminal.driver.select.poll", CountedPoll)
    with reading() as (master, came, thread, end):
        os.write(master, b"d")
        keys(came, 1)
        os.close(master)
        time.sleep(0.3)
        assert wakes == [None] * len(wakes)
        assert len(wakes) <= 3  # the first, behind the key, behind the end
        assert thread.is_alive()
        end.set()
        thread.join(LONGEST_SECONDS)
        assert not thread.is_alive()
