"""The systemd unit of `gdrtop watch --unit`, and what other units share with it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys

from probes.base.data_files import read_text
from probes.base.text import printable

_TIMES = {"h": 3600, "m": 60, "s": 1}
_SIZES = {"G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "": 1}
_PATH = "/etc/systemd/system/gdrtop-watch.service"


def unit_text(options: argparse.Namespace) -> str:
    """Return the unit, which runs this gdrtop with the options given."""
    asked = None if options.dir is None else os.path.abspath(options.dir)
    directory = "%S/gdrtop/watch" if asked is None else escaped(asked)
    chosen = {
        "--dir": directory,
        "--keep": _in_units(int(options.keep), _TIMES),
        "--max-size": _in_units(options.max_size, _SIZES),
        "--freeze": options.freeze,
        "--before": _in_units(int(options.before), _TIMES),
        "--after": _in_units(int(options.after), _TIMES),
    }
    words = [escaped(program()), "watch", *(word for pair in chosen.items() for word in pair)]
    words += [option for option in ("--redact", "--json") if getattr(options, option[2:])]
    words += ["--on-event", quoted(shlex.join(options.on_event))] if options.on_event else []
    shown = shlex.quote(shown_directory(options.dir))
    text = unit("gdrtop-watch.service", path=_PATH, command=" ".join(words), directory=shown)
    if asked is None:
        return text
    # Without the directory, systemd does not start the unit, in which only this path can be written.
    text = text.replace("#   systemctl", f"#   install -d -m 0700 {shown}\n#   systemctl", 1)
    return text.replace("UMask=0077\n", f"UMask=0077\nReadWritePaths={quoted(asked)}\n")


def unit(name: str, **values: object) -> str:
    """Return a file of tui/commands/units/ with these values in it."""
    return read_text("tui.commands", f"units/{name}").format(**values)


def shown_directory(asked: str | None) -> str:
    """Return the directory of the ring for a person."""
    return "/var/lib/gdrtop/watch" if asked is None else printable(os.path.abspath(asked))


def program() -> str:
    """Return the absolute path of the gdrtop that runs, or else of the one on the search path."""
    if os.path.basename(sys.argv[0]) == "gdrtop" and os.path.exists(sys.argv[0]):
        return os.path.abspath(sys.argv[0])
    return shutil.which("gdrtop") or "/usr/bin/gdrtop"


def _in_units(number: int, units: dict[str, int]) -> str:
    """Return the number in the largest unit without a remainder."""
    name, unit = next((name, unit) for name, unit in units.items() if number % unit == 0)
    return f"{number // unit}{name}"


def escaped(text: str) -> str:
    """Return a word for ExecStart=, where "$" begins a variable (systemd.service(5))."""
    return quoted(text.replace("$", "$$"))


def quoted(text: str) -> str:
    """Return a word, quoted if necessary; "%" begins a specifier (systemd.unit(5))."""
    text = printable(text).replace("%", "%%")
    if any(character in text for character in " \t\"'\\;"):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
