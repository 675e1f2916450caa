"""What Slurm's files on a node say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.facts.system.slurm import SlurmFacts, included_files, parse_setting, probe
from probes.host.machine.local import LocalHost
from probes.host.protocol import CommandOutput
from tests.support.trees import write

UNIT = "/usr/lib/systemd/system/slurmd.service"
CONF = """\
# PropagateResourceLimitsExcept=ALL
propagateresourcelimitsexcept = MEMLOCK,NOFILE   # see the FAQ
Prolog=/etc/slurm/prolog.sh
NodeName=gpu[01-64] Gres=gpu:8
"""


def slurm(root: Path) -> SlurmFacts:
    facts = probe(LocalHost(str(root)))
    assert isinstance(facts, SlurmFacts)
    return facts


def reason(fact: object) -> Reason | None:
    return fact.reason if isinstance(fact, Unknown) else None


def test_a_node_without_slurm(tmp_path: Path) -> None:
    assert reason(probe(LocalHost(str(tmp_path)))) is Reason.NOT_THERE


def test_settings_in_any_case_and_with_comments(tmp_path: Path) -> None:
    write(tmp_path, "/etc/slurm/slurm.conf", CONF)
    write(tmp_path, UNIT, "[Service]\nExecStart=/usr/sbin/slurmd -D\nLimitMEMLOCK=infinity\n")
    facts = slurm(tmp_path)
    assert facts.config == "/etc/slurm/slurm.conf"
    assert facts.propagate_except == "MEMLOCK,NOFILE"
    assert facts.prologs == ("/etc/slurm/prolog.sh",)
    assert reason(facts.version) is Reason.NOT_THERE


def test_all_lines_of_prolog_count_and_the_last_of_others(tmp_path: Path) -> None:
    name = "PropagateResourceLimitsExcept"
    lines = f"Prolog=/a\n{name}=CPU\nprolog=b.sh\nPrologFlags=Alloc\n{name}=MEMLOCK\n"
    write(tmp_path, "/etc/slurm/slurm.conf", lines)
    facts = slurm(tmp_path)
    assert facts.prologs == ("/a", "b.sh")
    assert facts.prolog_flags == "Alloc"
    assert facts.propagate_except == "MEMLOCK"


def test_a_configless_node(tmp_path: Path) -> None:
    write(tmp_path, "/run/slurm/conf/slurm.conf", "Prolog=/x\n")
    write(tmp_path, UNIT, "[Service]\n")
    facts = slurm(tmp_path)
    assert facts.config == "/run/slurm/conf/slurm.conf"


def test_the_file_that_slurmd_is_started_with_counts(tmp_path: Path) -> None:
    write(tmp_path, "/etc/slurm/slurm.conf", "Prolog=/old\n")
    write(tmp_path, "/cm/slurm/slurm.conf", "Prolog=/new\n")
    write(tmp_path, UNIT, "[Service]\nExecStart=/usr/sbin/slurmd -f /cm/slurm/slurm.conf -D\n")
    assert slurm(tmp_path).prologs == ("/new",)


def test_included_files_count(tmp_path: Path) -> None:
    write(tmp_path, "/etc/slurm/slurm.conf", "Include limits.conf\n")
    write(tmp_path, "/etc/slurm/limits.conf", "PropagateResourceLimitsExcept=ALL\n")
    assert slurm(tmp_path).propagate_except == "ALL"


def test_the_version_without_the_suffix_of_the_package(tmp_path: Path) -> None:
    class Debian(LocalHost):
        def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
            text = "slurmd 1:24.05.4-1ubuntu1\n" if "--show" in argv else "slurmd: /usr/sbin/slurmd\n"
            return CommandOutput(tuple(argv), 0, text, "")

    write(tmp_path, "/usr/sbin/slurmd", "")
    facts = probe(Debian(str(tmp_path)))
    assert isinstance(facts, SlurmFacts)
    assert facts.version == "24.05.4"


@given(st.text())
def test_any_text(text: str) -> None:
    value = parse_setting(text, "Prolog")
    assert isinstance(value, Unknown) or value.isprintable()
    assert len(included_files(text)) <= 8
