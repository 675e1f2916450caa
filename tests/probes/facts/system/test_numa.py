from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system import numa
from probes.facts.system.numa import (
    CpusetFacts,
    MemoryFacts,
    NumaFacts,
    parse_memory,
    parse_status,
    probe_cpuset,
    probe_memory,
)
from probes.host.machine.local import LocalHost
from tests.support.trees import add_numa_node, write


def facts(root: Path) -> NumaFacts:
    found = numa.probe(LocalHost(str(root)))
    assert isinstance(found, NumaFacts)
    return found


def test_two_nodes(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0-3", "10 21")
    add_numa_node(tmp_path, 1, "4-7", "21 10")
    nodes = facts(tmp_path).nodes
    assert [(node.number, node.cpulist, node.memory_bytes) for node in nodes] == [
        (0, "0-3", 1 << 30),
        (1, "4-7", 1 << 30),
    ]
    assert nodes[0].distances == {0: 10, 1: 21}


def test_numbers_with_gaps(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0-3", "10 40")
    add_numa_node(tmp_path, 8, "4-7", "40 10")
    assert facts(tmp_path).nodes[1].distances == {0: 40, 8: 10}


def test_an_offline_node_is_left_out(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "", "10")
    add_numa_node(tmp_path, 1, "4-7", "10")
    write(tmp_path, "/sys/devices/system/node/online", "1\n")
    assert [node.number for node in facts(tmp_path).nodes] == [1]


def test_distances_that_do_not_fit_are_malformed(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0", "10 21 x")
    assert isinstance(facts(tmp_path).nodes[0].distances, Unknown)


@pytest.mark.parametrize(
    ("cpumap", "cpulist"), [("0000000f", "0-3"), ("1,00000001", "0,32"), ("00000000", ""), ("xyz", None)]
)
def test_cpu_maps_of_old_kernels(cpumap: str, cpulist: str | None) -> None:
    assert numa.list_from_map(cpumap) == cpulist


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    numa.parse_list(text)
    numa.list_from_map(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", ()), ("0-2,4", (0, 1, 2, 4)), ("3-1", None), ("0-99999", None), ("1-2-3", None), ("²", None)],
)
def test_lists(text: str, numbers: tuple[int, ...] | None) -> None:
    assert numa.parse_list(text) == numbers


def test_an_old_kernels_cpu_map_stands_for_the_list(tmp_path: Path) -> None:
    write(tmp_path, "/sys/devices/system/node/node0/cpumap", "00000000,000000f0\n")
    (node,) = facts(tmp_path).nodes
    assert node.cpulist == "4-7"
    assert isinstance(node.memory_bytes, Unknown)
    assert isinstance(node.distances, Unknown)


def test_a_cpu_list_that_is_none_is_malformed_not_shown(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "\x1b[31mall", "10")
    assert isinstance(facts(tmp_path).nodes[0].cpulist, Unknown)


def test_a_node_of_memory_only_has_no_cpus(tmp_path: Path) -> None:
    add_numa_node(tmp_path, 0, "0-3", "10 80")
    add_numa_node(tmp_path, 255, "", "80 10")
    node = facts(tmp_path).nodes[1]
    assert node.cpulist == ""
    assert node.distances == {0: 80, 255: 10}


def test_a_kernel_without_numa_says_so(tmp_path: Path) -> None:
    found = numa.probe(LocalHost(str(tmp_path)))
    assert isinstance(found, Unknown)
    assert found.reason is Reason.NOT_THERE


# The cpuset


STATUS = (
    "Name:\tgdrtop\nCpus_allowed:\t00ff\nCpus_allowed_list:\t0-55,112-167\n"
    "Mems_allowed:\t1\nMems_allowed_list:\t0\nSeccomp:\t2\n"
)


def test_a_jobs_part_of_the_node(tmp_path: Path) -> None:
    write(tmp_path, "/proc/self/status", STATUS)
    assert probe_cpuset(LocalHost(str(tmp_path))) == CpusetFacts("0-55,112-167", "0")


def test_a_tree_without_the_file(tmp_path: Path) -> None:
    assert isinstance(probe_cpuset(LocalHost(str(tmp_path))), Unknown)


def test_missing_or_malformed_lines_are_unknown() -> None:
    facts = parse_status("Cpus_allowed_list:\tall\x1b[2J\n")
    for fact in (facts.cpus, facts.memory_nodes):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.MALFORMED
        assert "\x1b" not in str(fact)


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(parse_status(f"Cpus_allowed_list:\t{text}\n"), CpusetFacts)


def test_memory_of_the_node(tmp_path: Path) -> None:
    lines = ("MemTotal: 8 kB", "MemAvailable:    4 kB", "CmaTotal:       0 kB", "CmaFree:        940604 kB")
    write(tmp_path, "/proc/meminfo", "\n".join(lines) + "\n")
    assert probe_memory(LocalHost(str(tmp_path))) == MemoryFacts(4096, 0, 940604 * 1024)


@pytest.mark.parametrize(
    "text", ["", "CmaFree: -1 kB\n", "CmaFree: 12 MB\n", "CmaFree: 1234567890123456 kB\n", "XCmaFree: 1 kB\n"]
)
def test_lines_of_memory_that_are_missing_or_odd_are_unknown(text: str) -> None:
    facts = parse_memory(text)
    for fact in (facts.available, facts.cma_total, facts.cma_free):
        assert isinstance(fact, Unknown)
