"""All settings: name, default, what it does, what it may be, and the option that it is the default of."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TypeAlias

from probes.base.frozen import frozen
from probes.base.text import printable
from tui.settings import PREFIX
from widgets.live import TABLE_NAMES

Value: TypeAlias = "bool | int | float | str"
KEYS, SILENCE, COMBINATION = "keys", "silence", "combination"  # [keys], [[silence]], [[combination]]
_MOST_TEXT = 1000
_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@frozen
class Text:
    """What a text may be."""

    pattern: str
    expects: str  # "the name of a theme"


@frozen
class Setting:
    """One value of the configuration; its type is that of its default."""

    name: str  # "interval", "fleet.fanout"
    default: Value
    meaning: str  # one sentence
    limits: tuple[float, float] | Text = (0, 0)  # the least and the most, of a number
    option: str = ""  # where argparse stores the option that has this default
    command: str = ""  # the command that has the option; "": several
    runs_command: bool = False  # as root, only a file of the site may set it

    @property
    def variable(self) -> str:
        """Return the environment variable that sets it."""
        return PREFIX + self.name.upper().replace(".", "_")

    @property
    def key(self) -> str:
        """Return its key within its table."""
        return self.name.rpartition(".")[2]

    @property
    def kind(self) -> str:
        """Return what it must be."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.limits, Text):
            return self.limits.expects
        number = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{number} from {self.limits[0]:g} to {self.limits[1]:g}"


_PANELS = Text(r".*", "names of panels with commas between them")
_COLUMNS = Text(r".*", "names of columns with commas between them")
_COLUMN = Text(r".*", "the name of a column, or -name for the reversed order")
_FILE = "the absolute path of a file"
_ROWS = (
    Setting("interval", 1.0, "Seconds between two readings of the dashboard.", (0.1, 60), "interval"),
    Setting(
        "read_only",
        False,
        "Disable all actions and bandwidth tests. Set in /etc/gdrtop, no user can undo it.",
        option="read_only",
    ),
    Setting(
        *("theme", "ansi-dark"),
        "The theme of the dashboard. The ansi themes use the terminal's own colors.",
        Text(r"[a-z0-9_-]{1,40}", "the name of a theme"),
    ),
    Setting(
        "overview.hide", "", "Panels that the overview does not show; Columns hides and shows them.", _PANELS
    ),
    Setting("overview.view", "1", "The view that the overview starts with.", Text(r"[1-4]", "1 to 4")),
    *(
        Setting(
            *(f"live.hide_{table}", ""),
            f"Columns of the {what} that Live does not show; Columns chooses them.",
            _COLUMNS,
        )
        for table, what in TABLE_NAMES.items()
    ),
    *(
        Setting(
            *(f"live.sort_{table}", ""),
            f"The column by which Live sorts the {what}; empty: the worst first. View chooses it.",
            _COLUMN,
        )
        for table, what in TABLE_NAMES.items()
    ),
    Setting("terminal.title", False, "Show the node and its verdict in the title of the terminal."),
    Setting("terminal.bell", False, "Ring the terminal's bell at each new critical finding."),
    Setting(
        *("bandwidth.expected", "/etc/gdrtop/expected.toml"),
        "The table of what the machines of this site reach.",
        Text(r"/.*", _FILE),
    ),
    Setting(
        *("cluster.commands", ""),
        "The directory of sinfo, squeue, scontrol, kubectl and oc, if it is not a usual one.",
        Text(r"|/.*", "the absolute path of a directory"),
        runs_command=True,
    ),
    Setting(
        *("cluster.slurm_conf", ""),
        "The slurm.conf of Slurm's commands where SLURM_CONF is not set.",
        Text(r"|/.*", _FILE),
        runs_command=True,
    ),
    Setting("fleet.fanout", 64, "How many nodes are asked at once.", (1, 1000), "fan_out", "fleet"),
    Setting(
        *("fleet.timeout", 60),
        "Give up on a node after this many seconds; also of --host.",
        (1, 3600),
        *("timeout", "fleet"),
    ),
    Setting(
        *("fleet.over", ""),
        "The command that reaches a node instead of ssh, such as 'srun -w {host}'; also of --host.",
        Text(r"|.*\{host\}.*", "a command with {host} in it"),
        option="over",
        runs_command=True,
    ),
    Setting("fleet.sudo", False, "Read the nodes with sudo -n; also with --host.", option="sudo"),
    Setting(
        *("fleet.tolerate", 0),
        "Ignore this many of the worst nodes in the exit status of gdrtop fleet check.",
        (0, 100_000),
        *("tolerate", "fleet"),
    ),
)
SETTINGS = {setting.name: setting for setting in _ROWS}
TABLES = tuple(dict.fromkeys(name.partition(".")[0] for name in SETTINGS if "." in name))


def keys_in(table: str) -> tuple[str, ...]:
    """Return the keys of a table, such as "fleet"; of the top level for ""."""
    own = tuple(setting.key for name, setting in SETTINGS.items() if name.rpartition(".")[0] == table)
    return own if table else (*own, *TABLES, KEYS, SILENCE, COMBINATION)


def checked(setting: Setting, value: object) -> Value:
    """Return a value as the setting has it; ValueError, "must be true or false, not 3", if it cannot be."""
    default = setting.default
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
    elif isinstance(setting.limits, Text):
        is_text = isinstance(value, str) and value.isprintable() and len(value) <= _MOST_TEXT
        if is_text and re.fullmatch(setting.limits.pattern, str(value)):
            return str(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        is_whole = isinstance(value, int) or not isinstance(default, int)
        if is_whole and setting.limits[0] <= value <= setting.limits[1]:  # nan is in no range
            return type(default)(value)
    raise ValueError(f"must be {setting.kind}, not {shown(value)}")


def from_text(setting: Setting, text: str) -> Value:
    """Return the value of an environment variable; ValueError as `checked`."""
    value: object = text
    try:
        if isinstance(setting.default, bool):
            value = _WORDS.get(text.lower(), text)
        elif not isinstance(setting.default, str):
            value = type(setting.default)(text)
    except ValueError:
        value = text
    return checked(setting, value)


def shown(value: object) -> str:
    """Return a value as TOML has it, on one line, of at most 80 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(printable(value, 80), ensure_ascii=False)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else printable(str(value)[:80], 80)
    return {"dict": "a table", "list": "a list"}.get(type(value).__name__, printable(str(value)[:80], 80))


DROPPED = dict.fromkeys(
    (f"overview.view_{number}" for number in (2, 3, 4)), "the panels of views 2 to 4 are fixed"
)
"""Settings of earlier versions, and why they have no effect."""

_WIDTH = 90
_HEAD = """\
# Configuration of gdrtop. gdrtop help config explains it, and gdrtop config shows what is in force.
# Remove the # before a line to set a value.
"""
_SILENCE = """\
# A silenced finding is listed with its reason, and counts for neither the verdict nor the exit status.
# [[silence]]
# id = "acs-redirect-enabled"
# device = "mlx5_3"          # optional; without it, the finding on all devices
# nodes = "gpu[17-18]"       # optional; without it, on all nodes that are judged here
# reason = "BIOS update planned, ticket 4711"
# until = 2026-12-31
"""
_COMBINATION = """\
# Versions that do not work on this site, in addition to those of gdrtop help versions.
# [[combination]]
# board = "MT_0000000838"    # a NIC's board id; also driver, kernel and nccl
# firmware = "before 28.43"  # or "28.39.1002", "28.39 to 28.41", "28.43 or newer"
# symptom = "Transfers to GPU memory time out."
# cure = "Update the firmware to 28.43.2566"
# source = "ticket 4711"     # optional
"""
_KEYS = """\
# Keys of the dashboard. gdrtop help config lists the names; "" disables a key.
# [keys]
# fix = "f,f6"
"""


def template() -> str:
    """Return the text of a new file."""
    parts, table = [_HEAD], ""
    for name, setting in SETTINGS.items():
        above, _, key = name.rpartition(".")
        text = textwrap.fill(
            f"{setting.meaning} ({setting.kind})", _WIDTH, initial_indent="# ", subsequent_indent="# "
        )
        head = f"# [{above}]\n" if above != table else ""
        table = above
        parts.append(f"{head}{text}\n# {key} = {shown(setting.default)}\n")
    return "\n".join([*parts, _KEYS, _SILENCE, _COMBINATION])
