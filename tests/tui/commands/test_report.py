"""The report as an admin gets it: three formats of every node, files, tokens, hostile words."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from probes.base.unknown import Unknown
from probes.checks.judgment import Judgment
from probes.host.machine.local import LocalHost
from probes.setup.report import Change, Measured, Report
from probes.simulation.host import SimulatedHost
from probes.simulation.node.model.description import simulated_names
from tests.support.documents import valid
from tests.support.pilot import SteppedClock
from tests.support.recordings import recorded
from tests.support.sample_plan import LOAD, PLAN
from tests.support.sample_results import failed, result
from tests.support.tiers import usual
from tui.actions.audit_log import Actor, Audit, MemoryLog
from tui.actions.dispatcher import Dispatcher
from tui.actions.events import RunOutcome
from tui.bandwidth.results_store import MemoryResultsStore
from tui.cli import main
from tui.commands.report import read_report, text_of

FORMATS = ("md", "html", "json")
VOID = {"meta", "br", "rect", "line"}
HOSTILE = (
    "<script>alert(1)</script>`*[x](javascript:alert(1))*\x1b[31m \"'><img src=x onerror=y> @all"
    " http://evil.example |"
)
# What may be on the page: nothing that runs, loads or links.
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "article"),
    *("h1", "h2", "h3", "p", "div", "ul", "li", "dl", "dt", "dd", "pre", "code", "span", "br"),
    *("table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "line", "text", "tspan"),
}


def waiting(clock: SteppedClock) -> Callable[[float], object]:
    def wait(seconds: float) -> None:
        clock.now += seconds

    return wait


@cache
def report_on(name: str, redact: bool = False) -> Report:
    clock = SteppedClock()
    return read_report(SimulatedHost(name, clock=clock), redact, waiting(clock))


def with_saved(report: Report) -> Report:
    change = Change(
        1.8e9, "1-2-3", "Load nvidia_peermem", "root", "done", ("modprobe x",), ("rmmod x",), "", "keys"
    )
    results = (result(186.0), result(120.0, title="GPU1 → mlx5_1 · DMA-BUF"), failed())
    measured = tuple(Measured(result, ("186 Gb/s: the same",)) for result in results)
    return replace(report, measured=measured, changes=(change, replace(change, undo=(), no_undo="too late")))


class Page(HTMLParser):
    """Elements and text of a page; every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += text


def harmless(text: str) -> Page:
    page = Page(text)
    assert {tag for tag, _ in page.elements} <= ALLOWED
    for tag, attributes in page.elements:
        assert not {"src", "href", "style", "xlink:href", "srcset", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = (
        attributes["content"] or ""
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    return page


@pytest.mark.slow
@pytest.mark.parametrize("name", [*simulated_names(), "hgx-h100+acs-on", "hgx-h100+nvidia-not-loaded"])
def test_every_node_has_a_page_in_each_format(name: str) -> None:
    report = report_on(name)
    assert report.sample is not None
    page = harmless(text_of(report, "html"))
    markdown = text_of(report, "md")
    for text in (page.text, markdown):
        assert f"SIMULATED: the simulated node {name}" in text
        assert report.judgment.verdict.state.value in text
        assert "To measure, run on the node" in text
        assert "no record of a change" in text
    found = [finding for finding in report.judgment.findings if finding.status.value == "found"]
    for finding in found:
        assert finding.title in page.text
        assert finding.id in markdown
    assert page.text.count("Evidence") >= sum(bool(finding.evidence) for finding in found)
    assert sum(tag == "svg" for tag, _ in page.elements) == 1
    for end in (*report.examination.topology.gpus, *report.examination.topology.nics):
        assert end.label in page.text


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(simulated_names(), {"pcie-l40s"}))
def test_the_json_of_every_node_is_what_its_schema_says(name: str) -> None:
    document = valid("report", text_of(report_on(name), "json"))
    assert document["check"]["node"] == document["topo"]["node"] == document["live"]["node"]


def test_results_and_changes_are_drawn_and_listed() -> None:
    report = with_saved(report_on("pcie-l40s"))
    page = harmless(text_of(report, "html"))
    assert sum(tag == "svg" for tag, _ in page.elements) == 2
    bars = [
        attributes for _, attributes in page.elements if (attributes.get("class") or "").startswith("bar ")
    ]
    assert len(bars) == 2
    assert float(bars[0]["width"] or 0) / float(bars[1]["width"] or 1) == pytest.approx(186 / 120, 0.01)
    markdown = text_of(report, "md")
    for text in (page.text, markdown):
        assert "186 of 200 Gb/s, 93 %" in text
        assert "It broke." in text
        assert "rmmod x" in text
        assert "too late" in text
        assert "To measure" not in text
    document = valid("report", text_of(report, "json"))
    assert [result["gbps"] for result in document["bench"]["results"]] == [186.0, 120.0, None]
    assert document["changes"][0]["undo"] == ["rmmod x"]


def test_hostile_words_are_text_in_every_format() -> None:
    report = with_saved(report_on("hgx-h100+acs-on"))
    findings = tuple(
        replace(finding, title=HOSTILE, cause=HOSTILE, impact=HOSTILE, devices=(HOSTILE,), reference=HOSTILE)
        for finding in report.judgment.findings
    )
    measured = tuple(
        replace(
            pair_result,
            result=replace(pair_result.result, title=HOSTILE, commands=(HOSTILE,), limit_by=HOSTILE),
        )
        for pair_result in report.measured
    )
    changes = tuple(
        replace(change, title=HOSTILE, user=HOSTILE, commands=(HOSTILE,)) for change in report.changes
    )
    hostile = replace(
        report,
        judgment=Judgment(replace(report.judgment.verdict, reason=HOSTILE), findings),
        measured=measured,
        changes=changes,
        versions={"kernel": HOSTILE},
        unread=(HOSTILE,),
    )
    html, markdown = text_of(hostile, "html"), text_of(hostile, "md")
    assert "<script>alert(1)</script>" in harmless(html).text
    assert "\x1b" not in html + markdown
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    assert not re.search(r"<(?:script|img|a)\b", rendered)
    assert rendered.count("<h2>") == text_of(report, "md").count("\n## ")
    assert "</td>" in rendered


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hgx-h100"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_redacted_report_has_none_of_the_identifiers(name: str, form: str) -> None:
    plain, redacted = text_of(report_on(name), "json"), text_of(report_on(name, redact=True), form)
    guids = re.findall(r"\b(?:[0-9a-f]{4}:){3}[0-9a-f]{4}\b", plain)
    uuids = re.findall(r"GPU-[0-9a-f-]{36}", plain)
    addresses = re.findall(r"\b10(?:\.\d{1,3}){3}\b", plain)
    identifiers = {*guids, *uuids, *addresses, "alice", "train.py", "4711", "hgx-h100"}
    identifiers -= {"0000:0000:0000:0000", "fe80:0000:0000:0000"}  # prefixes
    assert len(identifiers) > 20
    assert not [identifier for identifier in identifiers if identifier in redacted]
    assert "host-1" in redacted
    assert "user-1" in redacted


@pytest.mark.slow
def test_saved_results_and_runs_get_the_same_tokens() -> None:
    clock = SteppedClock()
    host = SimulatedHost("hgx-h100", clock=clock)
    name = report_on("hgx-h100").node_name
    store, log = MemoryResultsStore(), MemoryLog()
    store.add(
        result(186.0, node=name, origin="simulated hgx-h100", commands=("ssh alice@node-7.acme.example x",))
    )
    store.add(result(100.0, node="another", origin="simulated hgx-h100"))
    audit = Audit(log, Actor(name, "boot", "root (sudo by alice)", 1))
    audit.begin("load-peermem", PLAN)
    audit.begin_step(1, LOAD, "")
    audit.end_step(1, RunOutcome.DONE, 0, 0.25, "")
    audit.end(RunOutcome.DONE, "")
    dispatcher = Dispatcher(host, log=log)
    plain = read_report(host, False, waiting(clock), store, dispatcher)
    (measured,) = plain.measured
    (change,) = plain.changes
    assert (measured.result.gbps, change.commands) == (186.0, ("modprobe nvidia_peermem",))
    redacted = read_report(host, True, waiting(clock), store, dispatcher)
    (measured,) = redacted.measured
    (change,) = redacted.changes
    assert measured.result.node == "host-1"
    assert measured.result.title == "GPU0 → mlx5_0 · DMA-BUF"
    assert change.user == "root (sudo by user-1)"
    assert change.title == "Load nvidia_peermem"
    for form in FORMATS:
        text = text_of(redacted, form)
        assert "alice" not in text
        assert "acme" not in text
        assert "node-7" not in text


def test_the_evidence_can_be_read_without_gdrtop() -> None:
    report = report_on("hgx-h100+acs-on")
    _, _, by_hand = text_of(report, "md").partition("### The same without gdrtop")
    commands = by_hand.split("```")[1].splitlines()
    assert any(re.fullmatch(r"setpci -s [0-9a-f:.]+ ECAP_ACS\+6\.w", command) for command in commands)
    assert "The same without gdrtop" in text_of(report, "html")


@pytest.mark.slow
def test_a_recording_and_a_tree_have_a_report_and_say_so(tmp_path: Path) -> None:
    clock = SteppedClock()
    host = recorded(SimulatedHost("gb200", clock=clock), clock, 2)
    report = read_report(host, False, waiting(clock))
    assert "RECORDED: SIMULATED" in text_of(report, "md")
    assert "RECORDED: " in text_of(read_report(host, True, waiting(clock)), "html")
    tree = read_report(LocalHost(str(tmp_path)), False, waiting(clock))
    assert "not from a running node" in text_of(tree, "md")
    harmless(text_of(tree, "html"))
    document = valid("report", text_of(tree, "json"))
    assert document["live"] is None
    assert document["unknown"]["live"]


def test_an_unknown_fact_shows_its_reason_and_not_a_blank() -> None:
    report = report_on("pcie-l40s")
    unknown = {name: value for name, value in report.versions.items() if isinstance(value, Unknown)}
    assert unknown
    assert "| GDRCopy | not installed |" in text_of(report, "md")
    document = json.loads(text_of(report, "json"))
    assert document["versions"]["GDRCopy"] is None
    assert "not installed" in document["versions"]["unknown"]["GDRCopy"]


# The command


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.commands.report.read_report", lambda *_, **__: report_on("cloud-vm"))


@pytest.mark.usefixtures("_quick")
def test_the_name_or_the_option_chooses_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, begins in (("a.html", "<!DOCTYPE html>"), ("a.MD", "# GPUDirect"), ("a.json", "{")):
        assert main(["report", "--demo", "cloud-vm", name]) == 0
        assert (tmp_path / name).read_text().startswith(begins)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert main(["report", "--demo", "cloud-vm", "--html", "ticket"]) == 0
    assert (tmp_path / "ticket").read_text().startswith("<!DOCTYPE")
    told = capsys.readouterr().err
    assert "Written to" in told
    assert "names, addresses and serial numbers" in told
    assert main(["report", "--demo", "cloud-vm", "--redact", "b.md"]) == 0
    assert "Identifiers are replaced with tokens" in capsys.readouterr().err
    assert main(["report", "--demo", "cloud-vm", "-"]) == 0
    assert capsys.readouterr().out.startswith("# GPUDirect RDMA on ")
    assert main(["report", "--demo", "cloud-vm", "--ascii", "--html", "-"]) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.usefixtures("_quick")
def test_what_exists_is_never_overwritten_nor_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.html").write_text("mine")
    (tmp_path / "link.html").symlink_to(tmp_path / "target")
    for name in ("old.html", "link.html"):
        assert main(["report", "--demo", "cloud-vm", str(tmp_path / name)]) == 3
        assert "already exists; choose another name" in capsys.readouterr().err
    assert (tmp_path / "old.html").read_text() == "mine"
    assert not (tmp_path / "target").exists()
    assert main(["report", "--demo", "cloud-vm", str(tmp_path / "no" / "x.md")]) == 3
    assert main(["report", "--demo", "cloud-vm", str(tmp_path / "x.txt")]) == 3
    assert "choose a format with --md, --html or --json" in capsys.readouterr().err
    assert main(["report", "--demo", "no-such-node", "-"]) == 3


def test_a_certificate_has_its_checksum_and_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    assert main(["report", "--demo", "hgx-h100", "--certificate", str(old)]) == 0
    assert "INCOMPLETE: 10 criteria passed, 0 failed, 2 not shown" in capsys.readouterr().err
    digest = hashlib.sha256(old.read_bytes()).hexdigest()
    assert (tmp_path / "old.json.sha256").read_text() == f"{digest}  old.json\n"
    arguments = ["report", "--demo", "hgx-h100+acs-on", "--certificate", "--since", str(old)]
    assert main([*arguments, str(new)]) == 0
    valid("report", new.read_text())
    certificate = json.loads(new.read_text())["certificate"]
    assert certificate["changes"] == ["criterion detours: fail, was pass"]
    for form in ("md", "html"):
        assert main([*arguments, f"--{form}", "-"]) == 0
        text = capsys.readouterr().out
        assert certificate["fingerprint_sha256"] in text
        assert "criterion detours: fail, was pass" in text
    assert main([*arguments, str(old)]) == 3
    assert "MT2245" in old.read_text()
    assert main(["report", "--demo", "hgx-h100", "--redact", "--certificate", "--md", "-"]) == 0
    redacted = capsys.readouterr().out
    assert "GPU3 serial number | serial-4" in redacted
    assert "MT2245" not in redacted
    assert "16509230" not in redacted
    (tmp_path / "taken.md.sha256").touch()
    assert main(["report", "--demo", "hgx-h100", "--certificate", str(tmp_path / "taken.md")]) == 3
    assert not (tmp_path / "taken.md").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--since", "x"), "add --certificate"),
        (("--certificate", "--since", "no-such"), "No such file"),
        (("--certificate", "--since", "/dev/null"), "not a regular file"),
        (("--certificate", "--profile", "other"), "gdrtop brings"),
        (("--certificate", "--since", "x", "--redact"), "--since compares identifiers"),
    ],
)
def test_what_a_certificate_cannot_use_is_named(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--demo", "cloud-vm", *arguments, "-"]) == 3
    assert words in capsys.readouterr().err
