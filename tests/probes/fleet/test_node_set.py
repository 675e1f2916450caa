from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Maybe, Reason, Unknown
from probes.fleet.node_set import (
    MOST_NODES,
    NodeSetError,
    fold_nodes,
    is_node_name,
    parse_hosts_file,
    parse_nodes,
    slurm_nodes,
)
from probes.host.protocol import CommandOutput, HostBase


class Slurm(HostBase):
    """A machine whose Slurm prints one answer."""

    def __init__(self, stdout: str = "", status: int = 0, stderr: str = "") -> None:
        self.answer: Maybe[CommandOutput] = CommandOutput((), status, stdout, stderr)
        self.asked: tuple[str, ...] = ()

    def is_root(self) -> bool:
        return False

    def monotonic(self) -> float:
        return 0.0

    def wall_clock(self) -> float:
        return 0.0

    def run(self, argv: Sequence[str], seconds: float = 2.0) -> Maybe[CommandOutput]:
        self.asked = tuple(argv)
        return self.answer


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[009-011],login", ["gpu009", "gpu010", "gpu011", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-4]!n[2-3]", ["n1", "n4"]),
        ("a.example, b-1.example", ["a.example", "b-1.example"]),
        ("root@gpu[1-2]", ["root@gpu1", "root@gpu2"]),
    ],
)
def test_a_set_names_its_nodes(text: str, names: list[str]) -> None:
    assert list(parse_nodes(text)) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no node is named"),
        ("-oProxyCommand=id", "is not a node name; write for example gpu[001-016],login1"),
        ("n1 n2", "'n1 n2' is not a node name"),
        ("n1,-x", "'-x' is not a node name"),
        ("n[1-", "missing bracket"),
        ("n[3-1]", "bad range"),
        ("a,,b", "has an empty name"),
        ("n;reboot", "is not a node name"),
        ("n1!n1", "names no node"),
        (
            "@rack1",
            "no group @rack1; gdrtop looked for groups in no file; for a Slurm partition, use --slurm rack1",
        ),
        ("@$(id)", "is not a node name"),
        (f"n[1-{MOST_NODES + 1}]", "names more than 10000 nodes"),
        ("n[1-999999999]", "names more than 10000 nodes"),
        ("a[1-999]b[1-999]", "names more than 10000 nodes"),
    ],
)
def test_other_text_is_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(NodeSetError, match=problem.replace("[", r"\[")):
        parse_nodes(text)


def test_groups_are_those_of_the_site_and_never_the_examples_of_clustershell(tmp_path: Path) -> None:
    config = tmp_path / "groups.conf"
    config.write_text("[Main]\ndefault: site\nautodir: $CFGDIR\n")
    (tmp_path / "site.yaml").write_text("site:\n  rack1: 'gpu[1-3]'\n  odd: '-oProxyCommand=id'\n")
    assert parse_nodes("@rack1,login", (str(config),)) == ("gpu1", "gpu2", "gpu3", "login")
    with pytest.raises(NodeSetError, match="is not a node name"):
        parse_nodes("@odd", (str(config),))
    with pytest.raises(NodeSetError, match="there is no group @gpu; gdrtop looked for groups in no file"):
        parse_nodes("@gpu")  # ClusterShell's own example has such a group


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("@rack7", "@rack7"),
        ("gpu1,@rack7", "@rack7"),
        ("gpu[1-3]!@rack7", "@rack7"),
        ("@site:rack7", "@site:rack7"),
        ("@other:rack1", "@other:rack1"),
    ],
)
def test_a_group_that_is_not_defined_is_never_an_empty_one(tmp_path: Path, text: str, group: str) -> None:
    config = tmp_path / "groups.conf"
    config.write_text("[Main]\ndefault: site\nautodir: $CFGDIR\n[listed]\nmap: echo $GROUP\n")
    (tmp_path / "site.yaml").write_text("site:\n  rack1: 'gpu[1-3]'\n  idle: ''\n  all: '@rack1'\n")
    with pytest.raises(NodeSetError) as refused:
        parse_nodes(text, (str(config),))
    assert str(refused.value).startswith(f"there is no group {group}; gdrtop looked for groups in {config}")
    assert parse_nodes("@site:rack1!@idle", (str(config),)) == ("gpu1", "gpu2", "gpu3")
    assert parse_nodes("@*,@listed:n1", (str(config),)) == ("gpu1", "gpu2", "gpu3", "n1")


def test_a_group_that_is_empty_now_is_not_called_missing(tmp_path: Path) -> None:
    """As @slurmstate:idle of ClusterShell's example: sinfo lists only the states in use."""
    config = tmp_path / "groups.conf"
    answer = "case $GROUP in idle) ;; mixed) echo n1;; *) exit 1;; esac"
    config.write_text(f"[Main]\ndefault: state\n[state]\nmap: {answer}\nlist: echo mixed\n")
    assert parse_nodes("@state:mixed", (str(config),)) == ("n1",)
    with pytest.raises(NodeSetError, match="group @state:idle has no node now, or there is no such group"):
        parse_nodes("@state:idle", (str(config),))
    with pytest.raises(NodeSetError, match="there is no group @state:none; gdrtop looked for groups in "):
        parse_nodes("@state:none", (str(config),))


def test_a_damaged_group_file_is_an_error_and_no_crash(tmp_path: Path) -> None:
    config = tmp_path / "groups.conf"
    config.write_bytes(b"\xff\xfe[[[")
    with pytest.raises(NodeSetError):
        parse_nodes("@rack1", (str(config),))
    config.write_text("[Main]\ndefault: site\nautodir: $CFGDIR\n")
    (tmp_path / "site.yaml").write_text("site: [")
    with pytest.raises(NodeSetError, match="groups of nodes cannot be read from "):
        parse_nodes("@rack1", (str(config),))


@given(st.text())
def test_no_text_stops_the_parsers(text: str) -> None:
    for parse in (parse_nodes, parse_hosts_file):
        with suppress(NodeSetError):
            assert all(map(is_node_name, parse(text)))
    assert fold_nodes([text, "n1", "n2"]).isprintable()


def test_names_are_folded_and_odd_names_stay_as_they_are() -> None:
    assert fold_nodes(["gpu001", "gpu003", "gpu002"]) == "gpu[001-003]"
    assert fold_nodes(["n1", "n2", "hgx-h100 in all", "@x"]) == "n[1-2], hgx-h100 in all, @x"
    assert fold_nodes(["n1"]) == "n1"


def test_a_file_has_a_node_or_a_set_a_line() -> None:
    text = "# rack 1\ngpu[1-2]\n\nlogin  # not a GPU node\ngpu2\n"
    assert parse_hosts_file(text) == ("gpu1", "gpu2", "login")
    with pytest.raises(NodeSetError, match="line 2: 'b c' is not a node name"):
        parse_hosts_file("a\nb c\n")
    with pytest.raises(NodeSetError, match="the file names no node"):
        parse_hosts_file("# nothing\n")


def test_slurm_names_the_nodes_of_a_partition_and_of_a_job() -> None:
    slurm = Slurm("gpu001\ngpu002\ngpu001\n")
    assert slurm_nodes(slurm, "h100") == ("gpu001", "gpu002")
    assert slurm.asked == ("sinfo", "-h", "-N", "-p", "h100", "-o", "%N")
    slurm = Slurm("gpu[001-003]\n")
    assert len(slurm_nodes(slurm, "4711")) == 3
    assert slurm.asked == ("squeue", "-h", "-j", "4711", "-o", "%N")


def test_slurm_that_does_not_answer_or_answers_otherwise_is_an_error() -> None:
    absent = Slurm()
    absent.answer = Unknown(Reason.NOT_THERE, "sinfo", "not installed")
    slow = Slurm()
    slow.answer = Unknown(Reason.TIMED_OUT, "sinfo", "still running after 10 s")
    for host, problem in (
        (absent, "sinfo is not installed on this machine, or not where gdrtop looks"),
        (slow, "sinfo did not answer"),
        (Slurm(status=1, stderr="sinfo: error: no\x1b[31m such partition"), "does not list the nodes"),
        (Slurm(""), "Slurm's partition h100 has no node"),
        (Slurm("-oProxyCommand=id\n"), "something other than nodes"),
        (Slurm("@gpu\n"), "something other than nodes"),
    ):
        with pytest.raises(NodeSetError, match=problem):
            slurm_nodes(host, "h100")
    for name in ("-p", "a b", ""):
        with pytest.raises(NodeSetError, match="is not the name of a Slurm partition"):
            slurm_nodes(Slurm("n1"), name)
    with pytest.raises(NodeSetError, match="is not the id of a Slurm job"):
        slurm_nodes(Slurm("n1"), "4711x")
