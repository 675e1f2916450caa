"""The recording in screenshots/ can be played, is small, and shows a diagnosis from DEGRADED to ACTIVE."""

import json
from pathlib import Path

import pytest

from tests.diagnosis import record_diagnosis
from tests.support.emulator import Emulator

RECORDED = Path(__file__).parents[1] / "screenshots" / "diagnosis.cast"
# What one screen after another shows: the overview, Live, the doctor, the plan, the run, the overview.
SEEN = (
    *("DEGRADED", "What changed", "Impact", "8 processes use GPUs and RDMA", "CHECKED AGAIN"),
    "uses GPUDirect RDMA on all 8 ranks",
)


def shows_a_diagnosis(path: Path) -> None:
    """Play a recording of asciicast v2 as a player does, and look for each screen."""
    header, *events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert header["version"] == 2
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert 25 < times[-1] < 35
    assert {kind for _, kind, _ in events} == {"o"}
    assert path.stat().st_size < 200_000
    terminal = Emulator(header["width"], header["height"])
    expected = list(SEEN)
    for _, _, written in events:
        terminal.feed(written)
        if expected and expected[0] in terminal.text:
            del expected[0]
    assert not expected
    assert "ACTIVE" in terminal.text


def test_the_recording_shows_a_diagnosis() -> None:
    shows_a_diagnosis(RECORDED)


@pytest.mark.slow
async def test_a_new_recording_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        await record_diagnosis(tmp_path / name)
    shows_a_diagnosis(tmp_path / "first")
    assert (tmp_path / "first").read_text() == (tmp_path / "second").read_text()
