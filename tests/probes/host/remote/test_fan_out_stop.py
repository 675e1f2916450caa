"""A reading of many nodes that is stopped ends at once, with what it has started."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from probes.host.remote.remote_host import Answers, Missing
from probes.host.remote.transport import Target


@pytest.mark.parametrize("fan_out", [1, 8])
def test_nodes_without_an_answer_fail_when_the_reading_is_stopped(fan_out: int) -> None:
    from probes.host.remote.fan_out import FanOut, FanOutOptions

    def judge(answers: Answers) -> str | Missing:
        raise AssertionError("no node answers")

    hanging = [Target(f"gpu{number}", ("sh", "-c", "exec sleep 600", "{host}")) for number in range(4)]
    with ThreadPoolExecutor(1) as executor:
        reading = FanOut(hanging, judge, executor, lambda *_: None, FanOutOptions(fan_out, 600.0))
        reading.stop()
        found, failures = reading.run()
    assert not found
    assert set(failures.values()) == {"the reading was stopped"}
    reading.stop()  # of a reading that has ended: nothing happens
