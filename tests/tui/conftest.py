"""What is told stays to be seen for as long as a test looks, on a slow machine too."""

import pytest
from textual.app import App


@pytest.fixture(autouse=True)
def nothing_told_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(App, "NOTIFICATION_TIMEOUT", 3600.0)
