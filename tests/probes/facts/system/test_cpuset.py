"""Which CPUs and NUMA nodes this process may use."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.facts.system.cpuset import CpusetFacts, parse_status, probe
from probes.host.local import LocalHost
from tests.trees import write

STATUS = (
    "Name:\tgdrtop\nCpus_allowed:\t00ff\nCpus_allowed_list:\t0-55,112-167\n"
    "Mems_allowed:\t1\nMems_allowed_list:\t0\nSeccomp:\t2\n"
)


def test_a_jobs_part_of_the_node(tmp_path: Path) -> None:
    write(tmp_path, "/proc/self/status", STATUS)
    assert probe(LocalHost(str(tmp_path))) == CpusetFacts("0-55,112-167", "0")


def test_a_tree_without_the_file(tmp_path: Path) -> None:
    assert isinstance(probe(LocalHost(str(tmp_path))), Unknown)


def test_missing_or_malformed_lines_are_unknown() -> None:
    facts = parse_status("Cpus_allowed_list:\tall\x1b[2J\n")
    for fact in (facts.cpus, facts.memory_nodes):
        assert isinstance(fact, Unknown)
        assert fact.reason is Reason.MALFORMED
        assert "\x1b" not in str(fact)


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(parse_status(f"Cpus_allowed_list:\t{text}\n"), CpusetFacts)
