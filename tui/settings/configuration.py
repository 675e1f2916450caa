"""A configuration: values with their origins, and what is wrong with the files."""

from __future__ import annotations

from collections.abc import Mapping

from probes.base.frozen import frozen
from probes.base.site import Floor, Silence, SiteCombination
from tui.settings.table import SETTINGS, Value

DEFAULT = "default"


@frozen
class Configured:
    """A value, and where it is from."""

    value: Value
    origin: str = DEFAULT  # "/etc/gdrtop/config.toml:3", "GDRTOP_INTERVAL", "command line"
    is_locked: bool = False  # the site has set it, and no user can undo it


@frozen
class ConfigFile:
    """A file or folder where settings may be."""

    path: str
    state: str  # "read", "not there", or why it was not read


@frozen
class Configuration:
    """What is configured; a setting that is not in `values` has its default."""

    values: Mapping[str, Configured]
    keys: Mapping[str, Configured]  # names of the key table → keys
    silences: tuple[Silence, ...] = ()
    combinations: tuple[SiteCombination, ...] = ()
    floors: tuple[Floor, ...] = ()
    files: tuple[ConfigFile, ...] = ()
    errors: tuple[str, ...] = ()  # sentences; with one, no command runs
    notes: tuple[str, ...] = ()

    @property
    def is_about_screens(self) -> bool:
        """Return whether something is set that only tui/screens/own_settings.py can check."""
        return bool(self.keys) or any(
            name == "theme" or name.startswith(("live.", "overview.")) for name in self.values
        )

    def configured(self, name: str) -> Configured:
        """Return the value of a setting and where it is from."""
        return self.values.get(name) or Configured(SETTINGS[name].default)


EMPTY = Configuration({}, {})
