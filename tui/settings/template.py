"""The commented file that `gdrtop config --edit` begins with: every setting is in it, none is set."""

from __future__ import annotations

import textwrap

from tui.settings.table import SETTINGS, shown

_COLUMNS = 90
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
            f"{setting.meaning} ({setting.kind})", _COLUMNS, initial_indent="# ", subsequent_indent="# "
        )
        head = f"# [{above}]\n" if above != table else ""
        table = above
        parts.append(f"{head}{text}\n# {key} = {shown(setting.default)}\n")
    return "\n".join([*parts, _KEYS, _SILENCE, _COMBINATION])
