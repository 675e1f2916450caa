"""The logs of simulated jobs, read by the log reader: they agree with the paths of the ranks."""

import pytest

from probes.base.unknown import Unknown
from probes.nccl.log.facts import State
from probes.nccl.log.verdict import verdict_of
from probes.simulation.host import SimulatedHost
from tests.support.nccl_logs import read
from tests.support.pilot import SteppedClock

LOG = "/home/alice/llm/slurm-4711.out"


def log_of(host: SimulatedHost, path: str = LOG) -> bytes:
    found = host.read_range(path, 0, 1 << 24)
    assert not isinstance(found, Unknown)
    assert found.size_bytes == len(found.content)
    return found.content


@pytest.mark.parametrize(
    ("name", "state", "text", "reason"),
    [
        ("hgx-h100", State.ALL, "32 of 32 channels on 8 of 8 ranks", ""),
        ("dgx-a100", State.ALL, "32 of 32 channels on 8 of 8 ranks", ""),
        ("hgx-h100+job-rank-staged", State.PARTLY, "28 of 32 channels on 7 of 8 ranks", "does not say why"),
        ("hgx-h100+job-tcp", State.NONE, "0 of 32 channels on 0 of 8 ranks", "TCP sockets"),
    ],
)
def test_the_log_shows_the_path_of_each_rank(name: str, state: State, text: str, reason: str) -> None:
    facts = read(log_of(SimulatedHost(name, clock=SteppedClock())), "log")
    verdict = verdict_of(facts)
    assert (verdict.state, verdict.text) == (state, text)
    assert reason in " / ".join(each.text for each in verdict.reasons)
    assert facts.communicators.largest == 32
    assert facts.communicators.nodes == 4
    assert not facts.problems
    assert not facts.cut_lines


def test_the_log_grows_and_begins_again_with_a_new_run() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100+job-restarted-staged", clock=clock)
    first = log_of(host)
    clock.now += 20.0
    assert log_of(host).startswith(first)
    assert len(log_of(host)) > len(first)
    clock.now += 40.0
    assert len(log_of(host)) < len(first)
    assert verdict_of(read(log_of(host))).state is State.NONE


def test_two_jobs_have_two_logs() -> None:
    host = SimulatedHost("hgx-h100+two-jobs-two-users", clock=SteppedClock())
    for path in (LOG, "/home/bob/llm/slurm-4712.out"):
        assert verdict_of(read(log_of(host, path))).text == "16 of 16 channels on 4 of 4 ranks"
