"""Notifications stay on the screen while a test looks at it, and snapshots that differ fail with text."""

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_textual_snapshot import SVGImageExtension, node_to_report_path
from syrupy.assertion import SnapshotAssertion
from textual.app import App

from tests.support.settings_machine import Machine
from tests.tui.snapshot_difference import failure
from tui.settings import load
from tui.settings.current import use


@pytest.fixture(autouse=True)
def lasting_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", 3600.0)


@pytest.fixture(autouse=True)
def enter_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test reads a question at once."""
    monkeypatch.setattr("tui.screens.ask.ENTER_DELAY_SECONDS", 0.0)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, not there yet, in which the facts of a node that works are saved."""
    directory = tmp_path / "state" / "last-ok"
    monkeypatch.setattr("tui.files.since_ok.last_ok_directory", lambda: str(directory))
    return directory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine with a configuration of its own, and no GDRTOP_ variables."""
    os.chmod(tmp_path, 0o755)
    built = Machine(tmp_path)
    for name in [name for name in os.environ if name.startswith("GDRTOP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(built.home))
    monkeypatch.setattr(load, "SITE_DIRECTORY", str(built.site))
    monkeypatch.setattr(load, "TOP", str(tmp_path))
    yield built
    use(None)


@pytest.fixture
def snap_compare(
    snap_compare: Callable[..., bool], snapshot: SnapshotAssertion, request: pytest.FixtureRequest
) -> Callable[..., bool]:
    """Compare as pytest-textual-snapshot does; its failure names only a page for browsers."""

    def compare(*arguments: Any, **options: Any) -> bool:
        if not snap_compare(*arguments, **options):
            _, _, new, *_ = pickle.loads(node_to_report_path(request.node).read_bytes())
            file = Path(SVGImageExtension.get_location(test_location=snapshot.test_location, index=0))
            old = file.read_text(encoding="utf-8") if file.exists() else None
            pytest.fail(failure(os.path.relpath(file), request.node.nodeid, old, new), pytrace=False)
        return True

    return compare
