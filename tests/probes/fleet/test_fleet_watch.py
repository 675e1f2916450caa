"""What changed between the readings of a fleet, and which nodes no longer answer."""

from dataclasses import replace

from probes.base.evidence import Severity
from probes.fleet.compare import Unanswered, compare
from probes.fleet.fleet_watch import FleetWatch, changes
from probes.fleet.summary import NodeSummary
from probes.fleet.traits import trait
from probes.snapshot.verdict import State
from tests.support.summaries import a_summary, problem

GOOD = a_summary("gpu1")
BAD = a_summary("gpu1", State.DEGRADED, problem("port-down", "An RDMA port has no link"))
SILENT = Unanswered("gpu1", "connection timed out")


def watched(*readings: NodeSummary | Unanswered) -> FleetWatch:
    """One node, read a minute apart."""
    watch = FleetWatch()
    for minute, found in enumerate(readings):
        answered = (found,) if isinstance(found, NodeSummary) else ()
        watch.add(compare(answered, () if isinstance(found, NodeSummary) else (found,)), 60.0 * minute)
    return watch


def test_the_first_reading_changes_nothing() -> None:
    assert watched(BAD).changed == 0
    assert watched(SILENT).changed == 0


def test_another_verdict_and_new_findings_are_a_change_until_the_next_reading() -> None:
    watch = watched(GOOD, BAD)
    (node,) = watch.nodes
    assert node.change is not None
    assert node.change.what == ("was READY", "new: An RDMA port has no link")
    assert watch.changed == 1
    later = watched(GOOD, BAD, BAD)
    assert later.changed == 0
    assert later.nodes[0].change == node.change  # still known, with its time


def test_a_finding_that_is_gone_and_other_devices_are_changes() -> None:
    assert changes(BAD, GOOD) == ("was DEGRADED", "gone: An RDMA port has no link")
    other = replace(
        BAD, findings=(problem("port-down", "An RDMA port has no link", Severity.WARNING, "mlx5_1"),)
    )
    assert changes(BAD, other) == ("other devices: An RDMA port has no link",)


def test_fewer_gpus_with_the_same_verdict_are_a_change() -> None:
    fewer = replace(BAD, verdict=replace(BAD.verdict, gpus_served=6))
    assert changes(BAD, fewer) == ("was 8 of 8 GPUs",)


def test_facts_that_changed_are_named_and_figures_and_unknown_ones_are_not() -> None:
    before = replace(
        GOOD, traits=(trait("driver", "570"), trait("bandwidth", 370.0, "write"), trait("kernel", "6.8"))
    )
    after = replace(GOOD, traits=(trait("driver", "580"), trait("bandwidth", 200.0, "write")))
    assert changes(before, after) == ("NVIDIA driver: 570 → 580",)


def test_a_node_without_an_answer_keeps_its_verdict_and_the_time_since_when() -> None:
    watch = watched(BAD, SILENT, SILENT)
    (node,) = watch.nodes
    assert node.summary == BAD
    assert (node.silent_since, node.reason) == (60.0, "connection timed out")
    assert watch.changed == 0  # it was silent a minute ago, too
    assert watched(BAD, SILENT).changed == 1
    back = watched(BAD, SILENT, GOOD)
    assert back.nodes[0].silent_since is None
    assert back.nodes[0].change is not None
    assert back.nodes[0].change.what == ("answers again", "was DEGRADED", "gone: An RDMA port has no link")


def test_a_node_that_never_answered_has_no_verdict_until_it_does() -> None:
    assert watched(SILENT).nodes[0].summary is None
    assert watched(SILENT, GOOD).nodes[0].change.what == ("answers now",)  # type: ignore[union-attr]
