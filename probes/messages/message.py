"""A message: the forms of a text, and what it means for GPUDirect RDMA."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from probes.base.frozen import frozen
from probes.base.text import leading_version, printable


class Weight(Enum):
    """What a message weighs for GPUDirect RDMA; not the level at which its program writes it."""

    CRITICAL = "critical"  # a job or the node stops
    WARNING = "warning"  # costs bandwidth, or may break
    NOTE = "note"
    HARMLESS = "harmless"
    FOLLOWS = "follows"  # from another line, which names the cause


class Proof(Enum):
    """What a message proves about the path."""

    GDR = "gdr"  # GPU memory goes through the NIC
    NO_GDR = "no-gdr"  # it does not
    HOST = "host"  # through host memory or TCP
    NVLINK = "nvlink"  # between nodes by NVLink
    NOTHING = ""


NODE_WORDS = {
    "infiniband": "a NIC with an InfiniBand port",
    "roce": "a NIC with RoCE",
    "efa": "EFA",
    "slingshot": "Slingshot (cxi)",
    "gb10": "GB10 (DGX Spark)",
    "vm": "a virtual machine",
    "container": "a container",
    "nvswitch": "GPUs joined by NVSwitch",
}
"""What a case may ask about the node."""


@frozen
class Case:
    """What a message means where all of these conditions hold; an empty one asks nothing."""

    version: str = ""  # of the program that wrote the line: "<2.21", ">=2.29.2 <2.30.7"
    values: Mapping[str, str] = field(default_factory=dict)  # placeholder -> "12|13", or ">other"
    settings: Mapping[str, str] = field(default_factory=dict)  # variable -> "0|1"; "*": any value
    node: str = ""  # a word of NODE_WORDS, or several: "roce|efa"
    beside: str = ""  # ids of messages of which the same text holds one: "ib-open|no-verbs"
    weight: str | None = None
    proves: str | None = None
    title: str | None = None
    cause: str | None = None
    fix: str | None = None


@frozen
class Message:
    """An entry of the catalogue. Texts may name placeholders: {device}."""

    id: str
    forms: tuple[str, ...]
    title: str
    source: str  # where the text, and its meaning, was read
    samples: tuple[str, ...]  # lines of this message
    weight: str = Weight.WARNING.value
    cause: str = ""  # "" with codes: that of the number
    fix: str = ""
    program: str = ""  # of the file, if not given
    versions: str = ""  # that write the text: "2.4.2-2.29.7", "2.30.3-"; "": all that were read
    proves: str = ""
    is_general: bool = False  # it says what any message like this means, where no other entry is known
    codes: Mapping[str, str] = field(default_factory=dict)  # placeholder -> table of codes.toml
    cases: tuple[Case, ...] = ()  # the first one that holds counts


@frozen
class Code:
    """What a number means, of a table of codes.toml."""

    number: str
    name: str
    cause: str = ""
    fix: str = ""
    weight: str | None = None
    also: tuple[str, ...] = ()  # what programs print instead of its name
    is_certain: bool = False  # its cause holds whatever a message suspects


@frozen
class Found:
    """A message in a line, with the words in the place of its placeholders."""

    message: Message
    values: Mapping[str, str]


@frozen
class Context:
    """What is known besides the line."""

    version: tuple[int, ...] | None = None  # of the program that wrote it
    settings: Mapping[str, str] = field(default_factory=dict)
    node: frozenset[str] = frozenset()  # of NODE_WORDS
    beside: frozenset[str] = frozenset()  # ids of the messages of the same text


NOTHING_KNOWN = Context()


@frozen
class Meaning:
    """What a line means, in sentences."""

    id: str
    program: str
    weight: Weight
    proves: Proof
    title: str
    cause: str
    fix: str
    source: str
    versions: str


OTHER_CODE = "other"
"""The row of a table that says what a number means that has no row."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]{}]*\{(\w+)\}[^\[\]{}]*)\]")
_CONDITION = re.compile(r"(<=|>=|<|>|==)(\d[\d.]*)")
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_MOST_OF_A_VALUE = 100


def meaning_of(found: Found, codes: Mapping[str, Mapping[str, Code]], context: Context) -> Meaning:
    """Return what a message means here: by its first case that holds, by itself, or by its number."""
    message, values = found.message, dict(found.values)
    code = None
    for name, table in message.codes.items():
        known = code_of(codes[table], values.get(name, ""))
        code = code or known or codes[table].get(OTHER_CODE)
        values[f"{name}_name"] = values.get(name, "") if known is None else known.name
        if known is not None:
            values[name] = known.number
    case = next((case for case in message.cases if _holds(case, values, context)), Case())

    givers = (case, message, code) if code is None or not code.is_certain else (case, code, message)

    def words(name: str) -> str:
        for giver in givers:
            text: str | None = getattr(giver, name, None)
            if text is not None and (text or giver is case):
                return _filled(text, values)
        return ""

    weight = case.weight or (code.weight if code is not None else None) or message.weight
    return Meaning(
        _filled(message.id, values),
        message.program,
        Weight(weight),
        Proof(message.proves if case.proves is None else case.proves),
        words("title"),
        words("cause"),
        words("fix"),
        message.source,
        message.versions,
    )


def code_of(table: Mapping[str, Code], said: str) -> Code | None:
    """Return the row of a number or a name; None if the table has none."""
    said = said.strip().casefold()
    number = str(int(said, 16)) if re.fullmatch(r"0x[0-9a-f]{1,16}", said) else said.lstrip("-")
    return table.get(said) or table.get(number)


def is_version(condition: str, version: tuple[int, ...] | None) -> bool:
    """Return whether a version is known and within all bounds of a condition."""
    if version is None:
        return False
    for sign, text in _CONDITION.findall(condition):
        bound = leading_version(text)
        here = version[: len(bound)] if sign in ("==", "<=") else version
        if not _COMPARISONS[sign](here, bound):
            return False
    return True


def _holds(case: Case, values: Mapping[str, str], context: Context) -> bool:
    if case.version and not is_version(case.version, context.version):
        return False
    if case.node and not context.node.intersection(case.node.split("|")):
        return False
    if case.beside and not context.beside.intersection(case.beside.split("|")):
        return False
    return _agree(case.values, values) and _agree(case.settings, context.settings)


def _agree(wanted: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Return whether each name has one of its values.

    "*" is any, "" that it is not given, and ">name" a number greater than that of another name.
    """
    for name, choices in wanted.items():
        value = given.get(name, "")
        if choices.startswith(">"):
            is_one = _is_greater(value, given.get(choices[1:], ""))
        else:
            is_one = bool(value) if choices == "*" else value in choices.split("|")
        if not is_one:
            return False
    return True


def _is_greater(value: str, other: str) -> bool:
    try:
        return float(value) > float(other)
    except ValueError:
        return False


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text with what was read in the place of its placeholders; a form may lack some.

    A part in brackets with a placeholder is only there if that was read: "It failed[ on {device}]".
    """

    def word(match: re.Match[str]) -> str:
        return printable(values.get(match[1], ""), _MOST_OF_A_VALUE)

    said = _OPTIONAL.sub(lambda part: part[1] if values.get(part[2]) else "", text)
    return " ".join(_PLACEHOLDER.sub(word, said).split())
