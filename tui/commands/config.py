"""`gdrtop config`: every setting with its value and where it is from."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TextIO, TypedDict

from probes.base.origin import Origin, Source
from probes.base.site import Silence, SiteCombination, components
from probes.base.text import did_you_mean, plural, printable
from probes.fleet.node_set import fold_nodes
from tui.command_line.arguments import EXIT_WRONG_USAGE, UsageError, add_arguments
from tui.runtime.json_values import Changed, document, object_from, object_of, silence_json, write_json
from tui.runtime.printing import print_lines, text_width
from tui.settings import load
from tui.settings.configuration import ConfigFile, Configuration, Configured
from tui.settings.current import current, is_configured
from tui.settings.table import KEYS, SETTINGS, Value, shown
from widgets.base.lines import Line, Run, Tone, wrapped

_COMMAND_LINE = "command line"


_KEYS = Annotated[Configured, Changed(without=("is_locked",), name=str, value=str)]


class _Value(TypedDict):
    name: str
    value: Value
    default: Value
    origin: str  # FILE:LINE, a GDRTOP_ variable, "command line" or "default"
    locked: bool  # no user can undo it


_SILENCE = Annotated[Silence, Changed(device=str | None, expired=bool)]
_COMBINATION = Annotated[
    SiteCombination, Changed(board=str | None, source=str | None, versions=Mapping[str, str])
]


class _Floor(TypedDict):
    origin: str  # FILE:LINE
    reason: str
    board: str | None
    firmware: tuple[str, ...]  # the first version of each train that this site accepts
    driver: tuple[str, ...]  # the same for branches of the NVIDIA driver
    source: str | None


class ConfigDocument(TypedDict):
    """`gdrtop config --json`."""

    node: str  # host name of this machine
    source: Literal["live"]
    values: tuple[_Value, ...]
    keys: tuple[_KEYS, ...]
    silences: tuple[_SILENCE, ...]
    combinations: tuple[_COMBINATION, ...]
    floors: tuple[_Floor, ...]
    files: tuple[ConfigFile, ...]
    errors: tuple[str, ...]
    notes: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--files": "print the files that are read, one a line",
            "--json": "print JSON (gdrtop schema config)",
        },
        files={"dest": "path", "action": "store_true"},
    )


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Show the configuration."""
    if options.path and options.json:
        raise UsageError("use only one of --files and --json")
    found = current() if is_configured() else load.load()
    if options.path:
        print_lines([(Run(file.path),) for file in found.files], out, options.ascii)
        return 0
    values = {name: _in_force(found, name, options) for name in SETTINGS}
    errors = (*found.errors, *more_errors(found))
    if options.json:
        write_json(_json(found, values, errors), out)
    else:
        print_lines(_text(found, values, errors, text_width(out)), out, options.ascii)
    return EXIT_WRONG_USAGE if errors else 0


def _in_force(found: Configuration, name: str, options: argparse.Namespace) -> Configured:
    """Return a value; an option of the command line counts more than the files."""
    configured, option = found.configured(name), SETTINGS[name].option
    given = getattr(options, option, configured.value) if option else configured.value
    return configured if given == configured.value else Configured(given, _COMMAND_LINE)


def _text(
    found: Configuration, values: dict[str, Configured], errors: Sequence[str], width: int
) -> list[Line]:
    named = {**values, **{f"{KEYS}.{name}": keys for name, keys in found.keys.items()}}
    cells = max(map(len, named))
    texts = {name: shown(configured.value) for name, configured in named.items()}
    room = min(40, max(map(len, texts.values())))
    lines: list[Line] = []
    for name, configured in named.items():
        lock = " (no user can undo it)" if configured.is_locked else ""
        origin = Run(f"{configured.origin}{lock}", Tone.DIM)
        lines.append((Run(f"{name:<{cells}}  "), Run(f"{texts[name]:<{room}}  "), origin))
    silenced = plural(len(found.silences), "silence")
    lines += [(), (Run(silenced, Tone.TITLE),)] if found.silences else []
    for silence in found.silences:
        on = f" on {printable(silence.device, 40)}" if silence.device else ""
        on += f" of {printable(fold_nodes(silence.nodes), 200)}" if silence.nodes else ""
        ended = "expired, last day" if silence.is_expired(time.time()) else "until"
        text = (
            f"{printable(silence.id, 80)}{on}, {ended} {silence.until}: {silence.reason} ({silence.origin})"
        )
        lines.extend(wrapped(text, width, Tone.PLAIN, "  "))
    if found.combinations:
        lines += [(), (Run("Versions that do not work here", Tone.TITLE),)]
    for row in found.combinations:
        source = f"{row.source}, {row.origin}" if row.source else row.origin
        lines.extend(
            wrapped(f"{components(row)}: {row.symptom} {row.cure} ({source})", width, Tone.PLAIN, "  ")
        )
    if found.floors:
        lines += [(), (Run("Versions that this site requires", Tone.TITLE),)]
    for floor in found.floors:
        source = f"{floor.source}, {floor.name}" if floor.source else floor.name
        nics = f"NIC {floor.board}" if floor.board else "NVIDIA NICs"
        both = ((f"{nics}, firmware", floor.firmware), ("NVIDIA driver", floor.driver))
        parts = [f"{what} from {' or '.join(versions)}" for what, versions in both if versions]
        text = f"{'; '.join(parts)}: {floor.reason} ({source})"
        lines.extend(wrapped(text, width, Tone.PLAIN, "  "))
    lines += [(), (Run("Files, the last one counts", Tone.TITLE),)]
    lines += [(Run(f"  {file.path}  "), Run(file.state, Tone.DIM)) for file in found.files]
    for title, texts_, tone in (("Errors", errors, Tone.BAD), ("Notes", found.notes, Tone.WARNING)):
        if texts_:
            lines += [(), (Run(title, Tone.TITLE),)]
            lines += [line for text in texts_ for line in wrapped(text, width, tone, "  ")]
    return lines


def _json(found: Configuration, values: dict[str, Configured], errors: Sequence[str]) -> dict[str, Any]:
    now = time.time()
    content = {
        "values": [
            object_from(
                configured, _Value, name=name, default=SETTINGS[name].default, locked=configured.is_locked
            )
            for name, configured in values.items()
        ],
        "keys": [object_from(keys, _KEYS, name=name) for name, keys in found.keys.items()],
        "silences": [
            silence_json(each, each.is_expired(now), _SILENCE, nodes=sorted(each.nodes))
            for each in found.silences
        ],
        "combinations": [
            object_from(
                row,
                _COMBINATION,
                board=row.board or None,
                versions={name: versions.text for name, versions in row.versions.items()},
                source=row.source or None,
            )
            for row in found.combinations
        ],
        "floors": [
            {
                "origin": floor.name,
                "reason": floor.reason,
                "board": floor.board or None,
                "firmware": list(floor.firmware),
                "driver": list(floor.driver),
                "source": floor.source or None,
            }
            for floor in found.floors
        ],
        "errors": list(errors),
        **object_of({"files": found.files, "notes": found.notes}),
    }
    return document("config", os.uname().nodename, Origin(Source.LIVE), now, content)


def more_errors(found: Configuration) -> Iterator[str]:
    """Yield what is wrong with silences, keys, theme and columns. Other commands do not load those tables."""
    if found.silences:
        from probes.checks.registry import CHECKS
        from probes.facts.system.site_checks import PREFIX

        ids = {check.id for check in CHECKS}
        for silence in found.silences:
            if silence.id not in ids and not silence.id.startswith(PREFIX):
                hint = did_you_mean(silence.id, ids) or "; gdrtop check --all lists them"
                yield f"{silence.origin}: unknown check {printable(silence.id, 80)!r}{hint}"
    if found.is_about_screens:
        from tui.screens.own_settings import wrong_settings

        yield from wrong_settings(found)
