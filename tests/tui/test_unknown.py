"""Where nothing can be read, nothing is said to be fine, absent or none: by no screen and by no command."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from probes.base.unknown import Maybe, Reason, Unknown
from probes.host.machine.local import LocalHost
from probes.host.protocol import Host
from probes.recording.recording_host import RecordingHost
from probes.simulation.host import SimulatedHost
from tests.support.pilot import SteppedClock, examined, overview, stepped_app, until
from tui import cli
from tui.runtime import open_host as opener
from widgets.base.lines_view import LinesView

T = TypeVar("T")
COMMANDS = (
    *("check", "check --one-line", "check --for nagios", "check --for npd", "forecast", "topo"),
    *("modules", "env", "explain", "live --seconds 1", "ras", "setup", "topo --nccl-xml", "report {file}"),
    *(
        "prove --dry-run",
        "bench --dry-run",
        "manifest machineconfig",
        "manifest nicclusterpolicy",
        "check --for nfd",
        "metrics",
    ),
)
NOT_ON_TREES = ("live", "ras", "setup", "bench", "forecast")
CLAIM = re.compile(
    r"✓|●|\bok\b|\b(?:[Nn]o|[Nn]one|[Nn]othing|not (?:there|usable|loaded|needed|in use))\b|\b0 "
)
# What may stand there all the same: a claim that says what it does not cover, or one about gdrtop itself.
ALLOWED = (
    r"an example, derived from no\s+(?:# )?real machine",  # the head of a saved text
    r"this tree has no(?: /\w*)?…?|a (?:directory tree|tree of files) has no [\w, ]+",  # reasons
    r"unknown(?: \(|: )not there|\| not there \||The recording has no kernel messages",
    r"\(not there\)|not there: this kernel's config was not found|[Nn]o installed kernel can be read",
    r"no findings; \d checks passed, \d+ could not run|found nothing by the checks",
    r"lists checks that are ok|The checks that could run found nothing",
    r"target path DMA-BUF · 0 of \d+ steps done · \d+ unknown|not needed for DMA-BUF",  # a choice, not read
    r"no \w+ manifest for this node|no labels: |nothing was registered",  # refusals
    r"no topology file: GPUs or NICs are unknown",
    r"gdrtop has no (?:record|saved results)",  # of gdrtop's own files
    r"# (?:HELP|TYPE) .*|gdrtop_\w+(?:\{.*\})? 0\.0",  # metrics: a value that is unknown has no line
    r"critical=0;;0;0 warnings=0;0;;0 checks_unknown=[1-9]",
)


class UnreadableHost(RecordingHost):
    """A node whose connection was cut: every question ends with an I/O error."""

    def __init__(self) -> None:
        super().__init__(SimulatedHost("hgx-h100", clock=SteppedClock()), lambda _: None)

    def _ask(self, kind: str, subject: tuple[str, ...], ask: Callable[[], Maybe[T]]) -> Maybe[T]:
        return Unknown(Reason.IO_ERROR, " ".join(subject) or kind, "the connection was lost")

    def _ask_each(
        self, kind: str, keys: Sequence[T], ask: Callable[[Sequence[T]], Mapping[T, Maybe[object]]]
    ) -> Mapping[T, Maybe[object]]:
        return {key: Unknown(Reason.IO_ERROR, str(key), "the connection was lost") for key in keys}


def claims(text: str) -> list[str]:
    """The lines that claim something, without what may stand there."""
    for allowed in ALLOWED:
        text = re.sub(allowed.replace(" ", r"\s+") if "#" not in allowed else allowed, "…", text)
    return [line.strip() for line in text.splitlines() if CLAIM.search(line)]


def unreadable(kind: str, folder: Path) -> Host:
    return UnreadableHost() if kind == "cut off" else LocalHost(str(folder))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["cut off", "empty"])
def test_a_command_claims_nothing(
    kind: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kind == "empty" and command.startswith(NOT_ON_TREES):
        pytest.skip("needs a running node")
    file = tmp_path / "report.md"
    host = unreadable(kind, tmp_path / "tree")
    (tmp_path / "tree").mkdir()
    real = opener.open_host
    cli.main([*command.split()[:1], "--help"])
    capsys.readouterr()
    for module in list(sys.modules.values()):
        if getattr(module, "open_host", None) is real:
            monkeypatch.setattr(module, "open_host", lambda *_, **__: host)
    status = cli.main([word.format(file=file) for word in command.split()] + ["--demo"])
    printed = capsys.readouterr()
    shown = printed.out + printed.err + (file.read_text(encoding="utf-8") if file.exists() else "")
    assert re.search("unknown|could not|cannot|UNKNOWN|No installed kernel can be read", shown)
    assert not claims(shown)
    assert status != 0 or command.split()[0] in ("topo", "env", "metrics", "report")


@pytest.mark.parametrize("kind", ["cut off", "empty"])
async def test_a_screen_claims_nothing(kind: str, tmp_path: Path) -> None:
    clock = SteppedClock()
    app = stepped_app(unreadable(kind, tmp_path))
    async with app.run_test(size=(140, 50)) as pilot:
        await examined(pilot, clock)
        for key in ("", "d", "t", "n"):
            if key:
                await pilot.press(key)
                await until(pilot, lambda: app.screen is not overview(pilot))
            for view in app.screen.query(LinesView):
                text = "\n".join("".join(run.text for run in line) for line in view.lines)
                assert not claims(text), f"{key} {view.id}"
            if key:
                await pilot.press("escape")
                await until(pilot, lambda: app.screen is overview(pilot))


@pytest.mark.parametrize("claim", ["✓ no critical findings", "No GPU–NIC pairs.", "uses none; sees 0 of 0"])
def test_a_claim_is_seen(claim: str) -> None:
    assert claims(claim)
