"""The reports: what a pipe, a ticket and a script get."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.base.unknown import Reason, Unknown
from probes.checks.judgment import Judgment, conclude
from probes.facts.node import Node, probe_node
from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.nccl.topology_file import Element, parse_system
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from probes.snapshot.verdict import assess
from probes.topology.paths import build
from tests.support.documents import valid
from tests.support.trees import NVIDIA, add_function, add_rdma_device
from tui.cli import main
from tui.command_line.options import TableOptions
from tui.commands.modules import write_modules
from tui.commands.topo import TopologyOptions, topology_json, write_topology
from tui.runtime.json_values import object_of

NIC = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
GPU = ("pci0000:00", "0000:00:02.0", "0000:02:00.0")


class Stream(io.TextIOWrapper):
    """Standard output as it may be: of any encoding, a terminal or not."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


@pytest.fixture(params=simulated_names(), scope="module")
def host(request: pytest.FixtureRequest) -> SimulatedHost:
    return SimulatedHost(request.param, clock=lambda: 1000.0)


@pytest.fixture
def hgx() -> SimulatedHost:
    return SimulatedHost("hgx-h100", clock=lambda: 1000.0)


def topology_text(host: Host, out: Stream | None = None, ascii_only: bool = False) -> str:
    out = out or Stream()
    write_topology(host, out, TopologyOptions(ascii=ascii_only))
    return out.text()


def told_of(node: Node) -> dict[str, Any]:
    topology = build(node)
    content = topology_json(node, topology, Judgment(conclude(assess(node, topology, None), None)), 0.0)
    told: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    return told


def widest(text: str) -> int:
    """The longest of the lines that are drawn; sentences are as long as they are."""
    return max(len(line) for line in text.splitlines() if line[:1] in "╭│╰")


# Text


def test_the_first_lines_are_the_node_and_the_verdict(host: SimulatedHost) -> None:
    first, second, *_ = topology_text(host).splitlines()
    assert f"SIMULATED {host.origin.label}" in first
    assert any(word in second for word in ("ACTIVE", "READY", "DEGRADED", "BROKEN", "UNKNOWN", "NOT"))


@pytest.mark.slow
def test_every_gpu_has_a_line_with_its_best_nic(host: SimulatedHost) -> None:
    topology = build(probe_node(host))
    text = topology_text(host)
    told = [row.split() for row in text.partition("Best NIC of each GPU\n")[2].split("\n\n")[0].splitlines()]
    if "All NICs are equally close" in text:
        assert told == []
    else:
        assert [row[0] for row in told] == [gpu.label for gpu in topology.gpus]
        assert [row[1] for row in told] == [topology.best_nics[gpu.id][0] for gpu in topology.gpus]


def test_a_path_is_named_in_both_vocabularies_where_they_differ(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", NIC)
    other_bridge = ("pci0000:40", "0000:40:02.0", "0000:41:00.0")
    add_function(tmp_path, other_bridge, NVIDIA, 0x2330, 0x030200)
    assert "mlx5_0   NODE (NCCL PHB)" in topology_text(LocalHost(str(tmp_path)))


def test_a_best_nic_that_is_down_is_said_to_be_so(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700)
    add_rdma_device(tmp_path, "mlx5_0", NIC, state="1: DOWN")
    add_function(tmp_path, GPU, NVIDIA, 0x2330, 0x030200)
    best = topology_text(LocalHost(str(tmp_path))).partition("Best NIC of each GPU")[2]
    assert "no port is ACTIVE" in best


def test_a_nic_without_an_rdma_device_is_said_to_be_so(tmp_path: Path) -> None:
    add_function(tmp_path, NIC, 0x15B3, 0x1021, 0x020700)
    add_function(tmp_path, GPU, NVIDIA, 0x2330, 0x030200)
    host = LocalHost(str(tmp_path))
    assert "no RDMA device" in topology_text(host).partition("Best NIC of each GPU")[2]
    (nic,) = told_of(probe_node(host))["nics"]
    assert nic["ports"] is None
    assert "no RDMA device" in nic["unknown"]["ports"]


def test_drawings_are_120_columns_wide_in_a_pipe(hgx: SimulatedHost) -> None:
    assert widest(topology_text(hgx)) == 120


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_drawings_keep_to_the_columns_asked_for(
    hgx: SimulatedHost, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "1")
    assert widest(topology_text(hgx, Stream(terminal=terminal))) == 90


@pytest.mark.parametrize("columns", ["", "0", "-5", "many", "99999999999", "²"])
def test_columns_that_make_no_sense_are_passed_over(
    hgx: SimulatedHost, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert widest(topology_text(hgx)) == 120


def plain_ways() -> Iterator[Any]:
    yield pytest.param(Stream, True, "xterm", id="asked for")
    yield pytest.param(Stream, False, "dumb", id="dumb terminal")
    yield pytest.param(lambda: Stream("iso8859-1"), False, "xterm", id="encoding")


@pytest.mark.slow
@pytest.mark.parametrize(("stream", "ascii_only", "term"), plain_ways())
def test_ascii_where_no_more_is_possible_or_wanted(
    host: SimulatedHost, stream: Any, ascii_only: bool, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    drawn, listed = stream(), stream()
    write_topology(host, drawn, TopologyOptions(ascii=ascii_only))
    write_modules(host, listed, TableOptions(ascii=ascii_only))
    assert drawn.text().isascii()
    assert listed.text().isascii()


@pytest.mark.slow
def test_ascii_has_a_sign_of_its_own_for_everything_drawn(host: SimulatedHost) -> None:
    # "?" stands for "not known"; a character without a sign would read as that.
    assert topology_text(host, ascii_only=True).count("?") == topology_text(host).count("?")
    drawn, plain = Stream(), Stream()
    write_modules(host, drawn, TableOptions())
    write_modules(host, plain, TableOptions(ascii=True))
    assert plain.text().count("?") == drawn.text().count("?")


def test_what_is_missing_stands_below_the_modules_with_why_it_matters(tmp_path: Path) -> None:
    add_function(tmp_path, GPU, NVIDIA, 0x2330, 0x030200)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("ib_core 400000 0 - Live 0x0000000000000000\n")
    (tmp_path / "sys/module").mkdir()
    out = Stream()
    write_modules(LocalHost(str(tmp_path)), out, TableOptions())
    below = out.text().partition("✗ nvidia:")[2]
    assert "why it matters: The GPU driver" in below


# JSON


def test_every_null_in_a_fact_has_its_reason(host: SimulatedHost) -> None:
    told = told_of(probe_node(host))
    for thing in (*told["gpus"], *told["nics"], *(hop for path in told["paths"] for hop in path["hops"])):
        nulls = {name for name, value in thing.items() if value is None}
        assert nulls == set(thing.get("unknown", {}))


def test_every_unordered_pair_is_there_once(host: SimulatedHost) -> None:
    pairs = [frozenset((path["from"], path["to"])) for path in told_of(probe_node(host))["paths"]]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)


def test_the_paths_of_a_scripts_first_look(hgx: SimulatedHost) -> None:
    told = told_of(probe_node(hgx))
    assert (told["source"], told["label"]) == ("simulated", "hgx-h100")
    assert told["verdict"].keys() >= {"state", "path", "reason"}
    nvlink = next(path for path in told["paths"] if path["nvlinks"])
    assert nvlink["nccl"] == "NVL"
    near = {(path["from"], path["to"]): path["smi"] for path in told["paths"]}
    for gpu in told["gpus"]:
        assert near[gpu["bdf"], gpu["best_nics"][0]] == "PIX"


def test_devices_that_could_not_be_listed_are_null_not_none(hgx: SimulatedHost) -> None:
    lost = Unknown(Reason.TIMED_OUT, "/sys/bus/pci/devices", "no answer for 5 s")
    told = told_of(replace(probe_node(hgx), pci=lost, gpus=lost, rdma=lost))
    assert told["gpus"] is None
    assert told["nics"] is None
    assert told["unknown"]["gpus"] == "timed out: no answer for 5 s"
    assert told["unknown"]["nics"] == "timed out: no answer for 5 s"


def test_a_gpu_of_which_only_the_bus_is_known_keeps_its_keys(hgx: SimulatedHost) -> None:
    lost = Unknown(Reason.TIMED_OUT, "gpus", "no answer for 5 s")
    told = told_of(replace(probe_node(hgx), gpus=lost))
    assert len(told["gpus"]) == 8
    for gpu in told["gpus"]:
        assert gpu["name"] is None
        assert gpu["unknown"] == {"name": str(lost), "uuid": str(lost)}


def test_a_node_without_devices_has_empty_lists(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    told = told_of(probe_node(LocalHost(str(tmp_path))))
    assert (told["gpus"], told["nics"], told["paths"]) == ([], [], [])


def test_json_of_the_modules_is_the_ladder_in_load_order(host: SimulatedHost) -> None:
    out = Stream()
    write_modules(host, out, TableOptions(json=True))
    rungs = json.loads(out.text())["modules"]
    names = [rung["name"] for rung in rungs]
    wanted = {"state", "refcnt", "version", "origin", "on_disk", "used_by", "needs", "core", "why"}
    wanted |= {"explanation", "blacklisted", "install_line", "persistent"}
    for rung in rungs:
        assert wanted <= rung.keys()
        assert set(rung["needs"]) <= set(names[: names.index(rung["name"])])


def test_modules_that_could_not_be_read_are_null(hgx: SimulatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Unknown(Reason.TIMED_OUT, "modules", "no answer for 5 s")
    node = replace(probe_node(hgx), modules=lost)
    monkeypatch.setattr("tui.commands.modules.probe_node", lambda _: node)
    out, text = Stream(), Stream()
    write_modules(hgx, out, TableOptions(json=True))
    write_modules(hgx, text, TableOptions())
    document = json.loads(out.text())
    assert document["modules"] is None
    assert document["unknown"]["modules"] == "timed out: no answer for 5 s"
    assert "could not be read: timed out" in text.text()


FACTS = st.one_of(
    st.none(), st.integers(), st.text(), st.sampled_from(Reason), st.builds(Unknown, st.sampled_from(Reason))
)


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1).filter(lambda name: name != "unknown"), FACTS))
def test_an_unknown_field_is_null_and_named_with_its_reason(fields: dict[str, object]) -> None:
    told = json.loads(json.dumps(object_of(fields)))
    unknown = {name: str(value) for name, value in fields.items() if isinstance(value, Unknown)}
    assert told.pop("unknown", {}) == unknown
    assert told.keys() == fields.keys()
    assert all(told[name] is None for name in unknown)


# Graphs


def test_json_holds_the_graph_with_what_is_degraded() -> None:
    out = Stream()
    write_topology(SimulatedHost("hgx-h100+acs-on"), out, TopologyOptions(json=True))
    nodes = {node["id"]: node for node in json.loads(out.text())["graph"]["nodes"]}
    ports = [node for node in nodes.values() if "acs-redirect-enabled" in node.get("findings", "")]
    assert {port["kind"] for port in ports} == {"GPU", "NIC", "upstream port", "downstream port"}
    assert {port["severity"] for port in ports} <= {"critical", "warning"}
    assert nodes["0000:18:00.0"]["label"] == "GPU0"


@pytest.mark.slow
def test_graphs_can_be_written_to_any_terminal(host: SimulatedHost) -> None:
    out, first = Stream("iso8859-1"), "\ngraph gdrtop {"
    write_topology(host, out, TopologyOptions(format="dot"))
    assert out.text().isascii()
    assert first in out.text()
    assert "SIMULATED" in out.text().partition(first)[0]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["topo", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_node_is_written_as_the_xml_that_nccl_reads(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = printed(capsys, "--demo", "hgx-h100", "--nccl-xml")
    assert status == 0
    assert '\n<system version="1">\n  <cpu numaid="0" affinity="' in text
    system = parse_system(text, "out")
    assert isinstance(system, Element)
    assert len([pci for pci in system.walk() if pci.get("class").startswith("0x03")]) == 8


def test_nccls_xml_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = printed(capsys, "--demo", "--json", "--nccl-xml")
    assert status == 3
    assert "--nccl-xml cannot be used with --json" in errors


@pytest.mark.parametrize("name", ["cloud-vm", "cloud-vm+port-down", "dgx-spark"])
def test_no_nic_is_best_where_all_are_equally_near(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["topo", "--demo", name])
    text = capsys.readouterr().out
    assert "•" not in text
    assert "Best NIC" not in text
    assert "All NICs are equally close" in text


def test_a_nearer_nic_is_best(capsys: pytest.CaptureFixture[str]) -> None:
    main(["topo", "--demo", "pcie-l40s"])
    text = capsys.readouterr().out
    assert text.count("•") == 5  # one a GPU, and the legend
    assert "equally close" not in text


@pytest.mark.slow
def test_hops_are_printed_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []
    for words in ([], ["--hops"]):
        assert main(["--demo", "hgx-h100", "topo", "--json", *words]) == 0
        told = valid("topo", capsys.readouterr().out)
        assert all(("hops" in path) == bool(words) for path in told["paths"])
        sizes.append(len(json.dumps(told)))
    assert sizes[0] < sizes[1] / 3
    assert main(["--demo", "hgx-h100", "topo", "--hops"]) == 3


@pytest.mark.parametrize(
    ("node", "mark", "sign"),
    [("hgx-h100+vm-pair-unproven", "doubt", r"\?"), ("hgx-h100+acs-on", "detour", "▲")],
)
def test_marked_paths_are_marked_in_json(node: str, mark: str, sign: str) -> None:
    host = SimulatedHost(node, clock=lambda: 1000.0)
    out = io.StringIO()
    write_topology(host, out, TopologyOptions(json=True))
    paths = json.loads(out.getvalue())["paths"]
    assert valid("topo", out.getvalue())
    marked = [path for path in paths if mark in path]
    assert len(marked) == len(re.findall(f"PIX•?{sign}", topology_text(host))) == 16
    assert {path["smi"] for path in marked} == {"PIX"}


def test_partition_keys_are_shown_where_they_are_not_the_default(hgx: SimulatedHost) -> None:
    keys = "0: 0x8013 full, 1: 0x7fff limited"
    azure = SimulatedHost("azure-nd-h100", clock=lambda: 1000.0)
    assert keys in topology_text(azure)
    assert "Partition keys" not in topology_text(hgx)
    for host, shown in ((azure, keys), (hgx, None)):
        out = io.StringIO()
        write_topology(host, out, TopologyOptions(json=True))
        told = valid("topo", out.getvalue())
        assert told.get("partition_keys", {}).get("mlx5_7") == shown


@pytest.mark.parametrize(
    ("fault", "found", "words"),
    [
        ("optic-dim-lane", "An optical module has too little light", "-2.281"),
        ("optic-fault", "An optical module reports a fault", "Module FW Fault"),
    ],
)
def test_ports_asks_optical_modules_and_judges_them(fault: str, found: str, words: str) -> None:
    """No other command asks them."""
    out = io.StringIO()
    host = SimulatedHost(f"hgx-h100+{fault}", clock=lambda: 1000.0)
    write_topology(host, out, TopologyOptions(ports=True))
    text = out.getvalue()
    assert "1 warning" in text
    assert found in text
    assert words in text
    assert "supply V" in text
    assert " 3.26" in text
    out = io.StringIO()
    write_topology(host, out, TopologyOptions())
    assert found not in out.getvalue()


def test_ports_are_in_the_document() -> None:
    out = io.StringIO()
    host = SimulatedHost("hgx-h100+optic-dim-lane", clock=lambda: 1000.0)
    write_topology(host, out, TopologyOptions(ports=True, json=True))
    document = valid("topo", out.getvalue())
    ports = {port["device"]: port for port in document["ports"]}
    assert [sensor["label"] for sensor in ports["mlx5_2"]["sensors"]] == ["asic", "Module0"]
    assert ports["mlx5_2"]["module"]["received_dbm"] == [1.886, 1.989, -2.281, 1.976]
    assert ports["mlx5_2"]["module"]["alarm_celsius"] == 75.0
    assert ports["mlx5_2"]["module"]["supply_millivolts"] == 3261.2


def test_a_node_without_mlxlink_says_so() -> None:
    out = io.StringIO()
    write_topology(SimulatedHost("hgx-h100", clock=lambda: 1000.0), out, TopologyOptions(ports=True))
    assert "mstlink (mstflint) are not installed" in out.getvalue()


def test_ports_needs_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topo", "--ports", "--format", "dot", "--demo", "hgx-h100"]) == 3
    assert "--ports needs text or --json" in capsys.readouterr().err


def test_where_cables_end_is_shown_on_request() -> None:
    out = io.StringIO()
    write_topology(SimulatedHost("pcie-l40s"), out, TopologyOptions(ports=True))
    assert "  mlx5_1  ens1np0  leaf1   Ethernet1" in out.getvalue()
    out = io.StringIO()
    write_topology(SimulatedHost("pcie-l40s"), out, TopologyOptions("json", ports=True))
    document = valid("topo", out.getvalue())
    ends = [port["cables"][0]["end"] for port in document["ports"]]
    assert [end["switch"] for end in ends] == ["leaf0", "leaf1"]
    out = io.StringIO()
    write_topology(SimulatedHost("hgx-h100"), out, TopologyOptions("json", ports=True))
    document = valid("topo", out.getvalue())
    assert "smpquery" in document["ports"][0]["cables"][0]["unknown"]["end"]
    assert main(["topo", "--demo", "--ports", "--format", "dot"]) == 3
