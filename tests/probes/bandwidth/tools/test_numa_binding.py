"""Whether a test is bound to the NIC's NUMA node, and what is said where it is not."""

from dataclasses import replace

import pytest

from probes.bandwidth.model.request import Mode, Request
from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.numa import CpusetFacts, NumaFacts
from probes.snapshot.examination import Examination
from tests.support.bandwidth_nodes import lacking, node, only

TO_PEER = Request(setup=Mode.BOTH_ENDS, peer="node2")


def within(cpus: Maybe[str], memory_nodes: Maybe[str]) -> Examination:
    return replace(node(), cpuset=CpusetFacts(cpus, memory_nodes))


def changed(**facts: object) -> Examination:
    """A node whose first NUMA node is another one."""
    whole = node()
    numa = whole.node.numa
    assert isinstance(numa, NumaFacts)
    first = replace(numa.nodes[0], **facts)  # type: ignore[arg-type]
    return replace(whole, node=replace(whole.node, numa=NumaFacts((first, *numa.nodes[1:]))))


def commands(request: Request, examination: Examination | None = None) -> list[str]:
    return [" ".join(end.command.argv) for end in only(request, examination).processes]


@pytest.mark.parametrize(
    "wanted", [Request(), Request(far_nic="mlx5_7"), TO_PEER, Request(tool="gdrcopy_copybw")]
)
def test_a_test_is_bound_unless_the_request_says_no(wanted: Request) -> None:
    assert all("numactl" in command for command in commands(wanted))
    unbound = replace(wanted, binds=False)
    assert not [command for command in commands(unbound) if "numactl" in command]
    assert only(unbound).notes == ()


def test_the_command_for_the_peer_is_not_bound_either() -> None:
    for request in (Request(setup=Mode.SERVER), Request(setup=Mode.CLIENT, peer="node2")):
        assert "numactl" in only(request).for_peer
        assert "numactl" not in only(replace(request, binds=False)).for_peer


@pytest.mark.parametrize(
    ("examination", "told"),
    [
        (within("56-111", "0-1"), "is not allowed to use its CPUs (Cpus_allowed_list 56-111)"),
        (within("0-111", "1"), "is not allowed to use its memory (Mems_allowed_list 1)"),
        (changed(memory_bytes=0), "it has no memory"),
        (changed(cpulist=""), "it has no CPUs"),
        (lacking("hgx-h100", "numactl"), "numactl is not installed"),
    ],
)
def test_where_it_cannot_be_bound_it_is_not_and_says_why(examination: Examination, told: str) -> None:
    for request in (Request(), Request(tool="gdrcopy_copybw")):
        assert not [command for command in commands(request, examination) if "numactl" in command]
        (note,) = only(request, examination).notes
        assert note.startswith("not bound to NUMA node 0 (")
        assert told in note


def test_each_end_here_has_its_own_node() -> None:
    server, client = commands(Request(far_nic="mlx5_7"), within("0-111", "1"))
    assert "--membind=1" in server
    assert "numactl" not in client


def test_some_of_the_cpus_are_enough() -> None:
    assert all("--cpunodebind=0" in command for command in commands(Request(), within("0-3", "0")))


def test_the_peer_has_a_cpuset_of_its_own() -> None:
    server, client = commands(TO_PEER, within("56-111", "0-1"))
    assert "--membind=0" in server
    assert "numactl" not in client


@pytest.mark.parametrize(
    "examination",
    [
        replace(node(), cpuset=Unknown(Reason.NOT_RECORDED, "/proc/self/status")),
        within(Unknown(Reason.MALFORMED), Unknown(Reason.MALFORMED)),
    ],
)
def test_what_is_not_known_keeps_nobody_from_trying(examination: Examination) -> None:
    assert all("--membind=0" in command for command in commands(Request(), examination))
