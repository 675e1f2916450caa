"""Keep what was chosen on a screen: for this run at once, and in the user's configuration."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from textual.app import App

from tui.runtime.background_task import call_in_thread
from tui.settings.configuration import Configured
from tui.settings.current import current, use
from tui.settings.table import SETTINGS

_CHOSEN = "chosen in the dashboard"


def save_setting(app: App[Any], name: str, value: str, what: str) -> None:
    """Use a value from now on and save it; notify where, or why that failed.

    `what`: begins the notification, such as "Theme nord".
    """
    found = current()
    use(replace(found, values={**found.values, name: Configured(value, _CHOSEN)}))
    variable = SETTINGS[name].variable
    over = f" {variable} is set and counts more at the next start." if variable in os.environ else ""

    def work() -> tuple[str, bool]:
        from tui.settings.save import NotSaved, save

        try:
            return f"{what}, saved in {save(name, value)}.{over}", True
        except NotSaved as error:
            return f"{what}, until gdrtop ends. Not saved: {error}", False

    def show(answer: tuple[str, bool]) -> None:
        message, is_saved = answer
        app.notify(message, severity="information" if is_saved else "warning", markup=False)

    call_in_thread(app.call_later, work, show, lambda why: show((f"{what}. Not saved: {why}", False)))
