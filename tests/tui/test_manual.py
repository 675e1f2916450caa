"""The manual: complete, short enough, shown by `gdrtop help`, and in the man page."""

import ast
import io
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from probes.facts.system.tool_names import PROGRAMS
from probes.simulation.node.model.description import simulated_names
from tests import manual_output
from tests.man_page import CODE, examples, man_page
from tui.cli import _COMMANDS, _FLEET, main
from tui.commands.help import command
from tui.commands.manifest import KINDS
from tui.manual import COMMAND_PAGES, GROUPS, SUBJECTS, page, title
from tui.settings.table import SETTINGS
from widgets.live.figures import COUNTER_GROUPS

ROOT = Path(__file__).parents[2]
# Columns of the Live screen that need no row in the manual.
SELF_EXPLANATORY = {
    *("GPU", "rank", "pid", "program", "path", "state", "CPU", "last event"),
    *("NIC", "line", "↑Gb/s", "↓Gb/s", "discards/s", "errors/s", "used by"),
    *("use", "memory", "BAR1", "SM MHz", "°C", "W", "throttled", "↑PCIe", "↓PCIe", "↑NVLink", "↓NVLink"),
}


def shown(subject: str, ascii_only: bool = False) -> str:
    out = io.StringIO()
    assert command(subject, out, ascii_only) == 0
    return out.getvalue()


def test_every_page_is_a_subject() -> None:
    pages = {path.stem for path in (ROOT / "tui" / "manual").glob("*.md")}
    assert pages == set(SUBJECTS)


def test_the_list_names_every_subject() -> None:
    listed = shown("")
    for questions in GROUPS.values():
        for subject, question in questions.items():
            assert re.search(rf"^  {subject} +{re.escape(question)}$", listed, re.M)
    assert max(map(len, listed.splitlines())) <= 80


def test_every_command_has_a_page() -> None:
    assert {*_COMMANDS} <= {*SUBJECTS, *COMMAND_PAGES}
    assert {f"fleet {part}" for part in _FLEET} <= {*COMMAND_PAGES}


def asked(capsys: pytest.CaptureFixture[str], *asked_words: str) -> tuple[int, str]:
    status = main(["help", *asked_words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


@pytest.mark.parametrize(
    ("named", "subject"),
    [
        ("check", "doctor"),
        ("fleet live", "fleet-live"),
        ("Verdict", "verdict"),
        ("gdrtop bench", "bandwidth"),
    ],
)
def test_a_page_is_found_by_a_command(named: str, subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = asked(capsys, *named.split())
    assert status == 0
    assert text.startswith(title(subject))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("alert", "gdrtop help metrics"),
        ("refcnt", "gdrtop help words"),
        ("acs redirect", "acs-redirect-enabled: ACS redirect is enabled between GPU and NIC"),
        ("ibv_modify_qp failed with error Connection timed out", "Message of NCCL: "),
        ("Couldn't allocate MR with error=14", "Message of perftest"),
    ],
)
def test_words_are_found_in_pages_checks_and_messages(
    wanted: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = asked(capsys, *wanted.split())
    assert status == 0
    assert said in text


def test_what_is_nowhere_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = asked(capsys, "verdikt")
    assert (status, "did you mean verdict or" in text) == (3, True)


PAGES = sorted(path.stem for path in manual_output.FOLDER.glob("*.md"))
SHOWN = [(subject, output) for subject in PAGES for output in manual_output.shown(subject)]


def test_the_pages_about_commands_show_what_these_print() -> None:
    assert len(SHOWN) >= 14


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "line"), SHOWN, ids=[line for _, line in SHOWN])
def test_what_a_page_shows_is_printed(subject: str, line: str) -> None:
    told, now = manual_output.shown(subject)[line], manual_output.printed(line)
    assert manual_output.lasting(told) == manual_output.lasting(now), "run `make man`"


def test_every_simulated_node_and_kind_of_section_is_in_the_manual() -> None:
    simulation = shown("simulation")
    missing = [name for name in simulated_names() if name not in simulation]
    assert not missing, f"add {missing} to tui/manual/simulation.md"
    sections = re.findall(r'^\.SH "?([A-Z ]+)"?$', man_page(), re.M)
    assert sections[:5] == ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS"]
    assert sections[-5:] == ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"]
    assert len(set(sections)) == len(sections)


def test_every_kind_of_manifest_is_in_the_manual() -> None:
    missing = [kind for kind in KINDS if f"| `{kind}` |" not in page("manifests")]
    assert not missing, f"add a row to tui/manual/manifests.md for {missing}"


def test_every_setting_is_in_the_manual() -> None:
    missing = [name for name in SETTINGS if f"`{name}`" not in page("config")]
    assert not missing, f"add a row to the settings in tui/manual/config.md for {missing}"


def titles_in(*paths: Path) -> set[str]:
    """The titles of columns in these files."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    return {
        str(call.args[0].value)
        for call in calls
        if getattr(call.func, "id", "").lower() == "column" and isinstance(call.args[0], ast.Constant)
    }


def test_every_column_of_fleet_rows_is_in_the_manual() -> None:
    (row,) = re.findall(r"^\| `--rows` \|.*$", page("fleet"), re.M)
    missing = {
        title for title in titles_in(ROOT / "widgets/fleet/answer.py") if title.isupper() and title not in row
    }
    assert not missing, f"add to the row of --rows in tui/manual/fleet.md: {missing}"


def test_every_benchmark_is_in_the_manual() -> None:
    options = {program.option.removesuffix("-lat") for program in PROGRAMS}
    missing = sorted(option for option in options if f"`{option}`" not in page("bandwidth"))
    assert not missing, f"add to the table of tests in tui/manual/bandwidth.md: {missing}"


def test_every_column_of_live_is_in_the_manual() -> None:
    titles = titles_in(*(ROOT / "widgets/live").glob("*.py"))
    titles |= {f"{group.title}/s" for group in COUNTER_GROUPS}
    assert len(titles) > 25
    unexplained = sorted(title for title in titles - SELF_EXPLANATORY if f"| `{title}` |" not in page("live"))
    assert not unexplained, f"add a row to the columns in tui/manual/live.md for {unexplained}"


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_the_page_without_a_warning_and_breaks_no_option(tmp_path: Path) -> None:
    page_file = tmp_path / "gdrtop.1"
    page_file.write_text(man_page(), encoding="utf-8")
    done = subprocess.run(
        ["man", "-l", "--warnings", str(page_file)],
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
    )
    assert done.stderr == ""
    usages = re.findall(r"^       gdrtop [a-z-]+ \[-h\].*(?:\n {14}.*)*", done.stdout, re.M)
    assert len(usages) == len(_COMMANDS)
    lines = [line for usage in usages for line in usage.splitlines()]
    assert max(map(len, lines)) <= 80
    assert all(line.count("[") == line.count("]") for line in lines)
    _, _, shown_examples = done.stdout.rpartition("\nEXAMPLES\n")
    assert "       gdrtop check\n" in shown_examples
    assert max(map(len, shown_examples.splitlines())) <= 80
    code = [block[0] for subject in SUBJECTS for block in CODE.finditer(page(subject))]
    copied = {line.strip() for block in code if not examples(block) for line in block.splitlines()}
    assert copied <= {line.strip() for line in done.stdout.splitlines()}, "no line is joined with the next"


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_page_is_plain_text_in_a_pipe(subject: str) -> None:
    text = shown(subject)
    assert text.startswith(title(subject))
    assert "\x1b" not in text
    assert "**" not in text
    assert "|---" not in text
    assert shown(subject, ascii_only=True).isascii()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 6 * 1024
