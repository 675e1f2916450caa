"""The drawing of the port counters of a job."""

from dataclasses import replace

from probes.fleet.job_counters import compare
from tests.probes.fleet.test_job_counters import HOUR, after, moment
from widgets.base.lines import plain, width_of
from widgets.fleet.job_counters import draw


def test_problems_come_first_and_each_port_has_a_row() -> None:
    later = {"link_downed": 2, "packet_seq_err": 50_000}
    difference = after(dict.fromkeys(later, 0), later, mlx5_5=10**12)
    lines = [plain(line) for line in draw(difference, 200)]
    assert lines[0] == "Job 4711, 1 h 0 min: 3 problems"
    assert lines[1] == "▲ mlx5_5 carried 1.0 TB; the other 7 ports of its rate carried 3.6 TB (median)."
    assert lines[2].startswith("▲ mlx5_0 lost its link: link_downed +2. ")
    assert lines[-9].split() == ["port", "sent", "received", "paused", "counters", "that", "grew"]
    assert lines[-8].endswith("link_downed +2, packet_seq_err +50,000")
    for width in (60, 100):
        assert all(width_of(line) <= width for line in draw(difference, width))


def test_a_node_without_ports() -> None:
    nothing = replace(moment(0.0), ports={})
    (line,) = draw(compare(nothing, replace(nothing, at=nothing.at + HOUR)), 100)
    assert plain(line) == "Job 4711, 1 h 0 min: the node has no RDMA port"


def test_a_quiet_job_and_a_reboot() -> None:
    assert plain(draw(after({}, {}), 100)[0]) == "Job 4711, 1 h 0 min: no problem on its ports"
    (line,) = draw(compare(moment(0.0, boot="one"), moment(HOUR, boot="two")), 100)
    assert plain(line).startswith("Job 4711, 1 h 0 min: The node was rebooted during the job")
