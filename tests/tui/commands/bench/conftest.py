"""Nothing of a test reaches the results of who runs it, nor waits for a node's lock."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tui.bandwidth.session._LOCK", str(tmp_path / "lock"))
