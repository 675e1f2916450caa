"""What `gdrtop env` recommends, with reasons; written for a shell, Slurm, Kubernetes and nccl.conf."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from enum import Enum

from probes.base.data_files import read_toml_once
from probes.base.frozen import frozen
from probes.base.text import capitalized, printable
from probes.nccl.variables.catalogue import NEWER, Version, is_newer

STATED, OF_JOBS, ASSUMED = "stated", "running jobs", "assumed"  # where a version is from


class State(Enum):
    """Why a variable is not among the settings; the value is the word in JSON."""

    NOT_NEEDED = "not needed"
    IN_FILE = "in /etc/nccl.conf"
    UNKNOWN = "unknown"  # one node cannot show it, or the fact could not be read
    VENDOR = "set by the cloud's software"
    FIX_FIRST = "fix the node first"
    MEASURE = "measure first"  # it helps some nodes and slows or hangs others


@frozen
class Setting:
    """One variable that the node needs."""

    name: str
    value: str
    reason: str  # one sentence without a full stop
    source: str = ""  # the vendor's file or manual; "": derived from this node


@frozen
class Note:
    """One variable that is not set here, and why."""

    variable: str
    state: State
    text: str


def setting_of(id_: str, value: str, **words: object) -> Setting:
    """Return the setting of advice.toml with this id; `words`: what its reason names."""
    row = read_toml_once(__package__, "advice.toml")[id_]
    return Setting(row["variable"], value, row["reason"].format(**words), row.get("source", ""))


def note_of(id_: str, **words: object) -> Note:
    """Return the note of advice.toml with this id; `words`: what its text names."""
    row = read_toml_once(__package__, "advice.toml")[id_]
    return Note(row["variable"], State(row["state"]), row["text"].format(**words))


@frozen
class Advice:
    """Everything that gdrtop recommends for jobs of this node."""

    version: Version  # the NCCL whose defaults apply
    version_from: str  # STATED, OF_JOBS, ASSUMED
    settings: tuple[Setting, ...] = ()
    notes: tuple[Note, ...] = ()
    vendor: str = ""  # "AWS with EFA": its own settings come first
    source_script: str = ""  # a script of the vendor to source before anything else
    nothing: str = ""  # why nothing can be said: no GPU, no NIC
    is_unread: bool = False  # because the GPUs or NICs are unknown

    @property
    def is_complete(self) -> bool:
        """Return whether the node has shown everything that could need a variable."""
        undecided = (State.UNKNOWN, State.MEASURE)
        return not self.nothing and all(note.state not in undecided for note in self.notes)

    @property
    def is_set_by_vendor(self) -> bool:
        """Return whether the cloud's software sets variables here: that of its network, or /etc/nccl.conf."""
        return bool(self.vendor) and any(note.state in (State.VENDOR, State.IN_FILE) for note in self.notes)


FORMATS = ("shell", "slurm", "k8s", "nccl-conf")
_WIDTH = 78
_SAFE = re.compile(r"[A-Za-z0-9_./,:-]+")
_NOT_IN_CONF = "nccl.conf takes only NCCL variables; set these in the job's environment:"


def lines_of(advice: Advice, node: str, form: str, source: str = "") -> list[str]:
    """Return the lines of one of FORMATS, without newlines; `source`: derivation(node), for a saved file."""
    lines = ["#!/bin/sh"] if form == "slurm" else []
    lines.extend(_comments(f"{source}.") if source else ())
    lines.extend(_comments(_heading(advice, node)))
    if form == "slurm" and advice.settings:
        text = "Slurm TaskProlog (slurm.conf): a task gets each line that this script prints."
        lines.extend(_comments(f"{text} Values set by the user are kept."))
    if advice.settings or advice.source_script:
        lines.append("")
    lines.extend(_script(advice, form))
    lines.extend(_settings(advice, form))
    lines.extend(_notes(advice))
    return lines


def _heading(advice: Advice, node: str) -> str:
    """Return the first sentences: what is needed, and by which version of NCCL."""
    if advice.nothing:
        if advice.is_unread:
            return f"What {node} needs is unknown: {advice.nothing}."
        return f"Nothing to recommend for {node}: {advice.nothing}."
    count = len(advice.settings)
    if advice.is_set_by_vendor and not count:
        return f"{node} is on {advice.vendor}, whose software sets the variables. Do not add any."
    number = ".".join(map(str, advice.version))
    origin = {STATED: "as stated", OF_JOBS: "of running jobs"}.get(
        advice.version_from, "assumed; use --nccl to set another"
    )
    version = f"NCCL {number}, {origin}"
    if is_newer(advice.version):
        version = f"{version}; it is {NEWER}"
    if count:
        cloud = f" on {advice.vendor}" if advice.vendor else ""
        return f"{node} needs {count} variable{'s' * (count > 1)}{cloud} ({version})."
    if any(note.state is State.FIX_FIRST for note in advice.notes):
        return f"{node} shows no need for a variable, but fix what is listed below first ({version})."
    if advice.is_complete and not is_newer(advice.version):
        return f"{node} needs no variable: the defaults are right ({version})."
    return f"{node} shows no need for a variable, but not everything is known ({version})."


def _script(advice: Advice, form: str) -> Iterator[str]:
    if not (script := advice.source_script):
        return
    if form == "shell":
        yield f". {script}"
    elif form == "k8s":
        yield f'# In the container: command: ["/bin/bash", "-c", "source {script} && exec …"]'
    else:
        yield f"# In the container, before the job starts: source {script}"


def _settings(advice: Advice, form: str) -> Iterator[str]:
    is_conf = form == "nccl-conf"
    if form == "k8s" and advice.settings:
        yield "# Under the pod's spec.containers[]:"
        yield "env:"
    other = [setting for setting in advice.settings if is_conf and not setting.name.startswith("NCCL_")]
    for setting in advice.settings:
        if setting not in other:
            reason = capitalized(f"{setting.reason} ({setting.source})" if setting.source else setting.reason)
            yield from _comments(reason if reason.endswith(".") else f"{reason}.")
            yield from _assignment(setting, form)
    if other:
        yield from _comments(_NOT_IN_CONF)
        yield from (f"# {setting.name}={setting.value}" for setting in other)


def _assignment(setting: Setting, form: str) -> Iterator[str]:
    name, value = setting.name, printable(setting.value, 1024)
    if form == "shell":
        yield f"export {name}={_quoted(value)}"
    elif form == "slurm":  # everything after the first “=” is the value, without quotation marks
        yield f'[ -n "${{{name}+set}}" ] || echo {shlex.quote(f"export {name}={value}")}'
    elif form == "k8s":
        yield f"  - name: {name}"
        yield f"    value: {json.dumps(value)}"
    else:
        yield f"{name}={value}"


def _quoted(value: str) -> str:
    """Quote a value for every shell; zsh also expands an unquoted word that begins with “=” (zshexpn(1))."""
    apostrophe = "'\"'\"'"
    return value if _SAFE.fullmatch(value) else "'" + value.replace("'", apostrophe) + "'"


def _notes(advice: Advice) -> Iterator[str]:
    order = (State.FIX_FIRST, State.MEASURE, State.UNKNOWN, State.IN_FILE, State.VENDOR, State.NOT_NEEDED)
    for state in order:
        notes = [note for note in advice.notes if note.state is state]
        if notes:
            yield ""
            yield f"# {state.value[:1].upper()}{state.value[1:]}:"
        for note in notes:
            yield from _comments(f"{note.variable}: {printable(note.text, 400)}", "#   ", "#     ")


def _comments(text: str, first: str = "# ", more: str = "# ") -> list[str]:
    wrapper = textwrap.TextWrapper(_WIDTH, first, more, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(printable(text, 2000))
