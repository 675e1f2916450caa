"""What launchers, collectors and terminals put around a line is taken off."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.read.lines import FENCE, MOST_OF_A_LINE, Lines, peel

NCCL = "h100:4711:4720 [0] NCCL INFO Using network IB"


def lines_of(text: str, size: int = 1 << 20) -> list[str]:
    lines = Lines()
    found = [line for start in range(0, len(text), size) for line in lines.feed(text[start : start + size])]
    return [*found, *lines.end()]


@pytest.mark.parametrize(
    "wrapped",
    [
        f"> {NCCL}",
        f"&gt; > {NCCL}",
        f"[rank3]: {NCCL}",
        f"[default3]:{NCCL}",
        f"[1,3]<stdout>:{NCCL}",
        f"003: {NCCL}",
        f"(RayTrainWorker pid=4711, ip=10.0.0.1) {NCCL}",
        f"(VllmWorker rank=3 pid=4711) {NCCL}",
        f"[pod/train-0/main] {NCCL}",
        f"2026-11-29T02:23:43.123456789Z stderr F {NCCL}",
        f"2026-11-29T02:23:43.1Z {NCCL}",
        f"[2026-11-29 02:23:43] {NCCL}",
        f"train-1  | {NCCL}",
        f"\x1b[31m{NCCL}\x1b[0m",
        f"[0m{NCCL}[0m",
        json.dumps({"log": f"{NCCL}\n", "stream": "stderr", "time": "2026-11-29"}),
        json.dumps({"ts": 1, "message": NCCL}),
        json.dumps({"jsonPayload": {"message": NCCL}}),
        json.dumps({"MESSAGE": list(NCCL.encode())}),
        f"[pod/train-0/main] 2026-11-29T02:23:43Z [rank3]: {NCCL}",
    ],
)
def test_a_line_is_what_the_program_wrote(wrapped: str) -> None:
    assert peel(wrapped) == (NCCL, False)


@pytest.mark.parametrize(
    "wrapped",
    [
        "Nov 29 02:23:43 h100 kernel: NVRM: Xid 79",
        "Nov 29 02:23:43 h100 kernel: [   12.345678] NVRM: Xid 79",
        "2026-11-29T02:23:43+00:00 h100 kernel: NVRM: Xid 79",
        "[12345.678901] NVRM: Xid 79",
        "[12345.678901] [ T1234] NVRM: Xid 79",
        "[Sun Nov 29 02:23:43 2026] NVRM: Xid 79",
        "<4>[12345.678901] NVRM: Xid 79",
        "kern  :err   : [12345.678901] NVRM: Xid 79",
    ],
)
def test_a_line_of_the_kernel_is_found(wrapped: str) -> None:
    assert peel(wrapped)[0] == "NVRM: Xid 79"


@pytest.mark.parametrize(
    "line",
    ["a [0] x", "BAR 1 [mem size 0x800 64bit]", "GPU0\t X \tNV18", "    state:  PORT_ACTIVE (4)", "1: eth0"],
)
def test_a_line_without_wrapper_stays(line: str) -> None:
    assert peel(line)[0] in (line, line.partition(": ")[2])


def test_entities_and_escapes_of_markdown_are_read() -> None:
    assert peel("0[0] -&gt; 1[1] mlx5\\_0")[0] == "0[0] -> 1[1] mlx5_0"


def test_parts_of_a_line_are_joined() -> None:
    text = "2026-11-29T02:23:43Z stderr P h100:1:2 [0] NCCL I\n2026-11-29T02:23:43Z stderr F NFO x\n"
    assert lines_of(text) == ["h100:1:2 [0] NCCL INFO x"]


def test_an_escaped_text_is_many_lines() -> None:
    assert lines_of('"first\\nsecond\\nthird"') == ['"first', "second", 'third"']


def test_a_progress_bar_is_its_last_state() -> None:
    assert lines_of("10%\r20%\rdone\n") == ["done"]


def test_fences_are_known() -> None:
    assert lines_of("```text\nx y\n```\n") == [FENCE, "x y", FENCE]


@given(st.text(max_size=2000), st.integers(1, 50))
def test_pieces_of_any_size_give_the_same_lines(text: str, size: int) -> None:
    assert lines_of(text, size) == lines_of(text)


def test_an_endless_line_is_cut() -> None:
    assert len(lines_of("x" * (3 * MOST_OF_A_LINE))[0]) == MOST_OF_A_LINE
