"""Text from a node is untrusted: nothing in it may act on a terminal."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
REDACTED = "redacted-"
"""How the names begin that a redacted recording has instead of a node's own."""
BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # of a PCI function, with its domain
# Modules, commands and libraries with names of letters only, with which titles begin.
_NAMES = frozenset({"nvidia", "modprobe", "perftest", "gdrdrv", "libibverbs", "efa"})
_BLANKS = string.whitespace + "\0"
_NUMBER = re.compile(r"[0-9]{1,6}")
_LEADING_VERSION = re.compile(r"v?[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}")
SHOWN = 8
"""How many names or lines of evidence a limited list has."""


def printable(text: str, limit: int = 4096) -> str:
    """Return one line of at most `limit` characters; replace control, format and surrogate characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\t\n" else REPLACEMENT for c in text)


def printable_lines(text: str) -> str:
    """Return text of many lines with control characters replaced; tabs and newlines stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\t\n" or c.isprintable() else REPLACEMENT for c in text)


def parse_json(text: str) -> object:
    """Return the value of a JSON text; None for anything else."""
    import json

    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def text_of(content: bytes) -> str:
    """Decode a file's content like `Host.read`; some sysfs attributes end with a NUL (cpulist)."""
    return clean_text(content.decode("utf-8", "replace"))


def clean_text(text: str) -> str:
    """Return a file's decoded content like `Host.read`."""
    text = text.strip(_BLANKS)
    return text if text.isprintable() else printable_lines(text)


def xml_comment(text: str) -> str:
    """Return a comment of XML, which must not have "--" in it (XML 1.0, 2.5)."""
    return f"<!-- {printable(text).replace('--', '- -')} -->"


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Return a count with its noun: "1 test", "2 tests", "2 processes" with that as the plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural_noun or f'{noun}s'}"


def spans(numbers: Iterable[int]) -> list[str]:
    """Return numbers as spans, in order: "0-3", "7"."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def binary_size(size_bytes: int) -> str:
    """Format the size of a message: "64 KiB"; in bytes if it is not a whole number of KiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift} {unit}"
    return f"{size_bytes} B"


def minutes(seconds: float) -> str:
    """Format a duration: "13 s", "2 min 5 s", "1 h 4 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def capitalized(text: str) -> str:
    """Return the text with a capital first letter, unless it begins with a name such as mlx5_0 or gdrdrv."""
    first = text.partition(" ")[0].removesuffix("'s")
    return f"{text[0].upper()}{text[1:]}" if first.isalpha() and first not in _NAMES else text


def version_numbers(text: str) -> tuple[int, ...]:
    """Return all numbers of a version: (6, 8, 0, 51) of "6.8.0-51-generic"; () without numbers."""
    return tuple(int(part) for part in _NUMBER.findall(text))


def leading_version(text: str) -> tuple[int, ...]:
    """Return the version with which a text begins: (2, 26, 2) of "2.26.2+cuda12.2"; () for none."""
    match = _LEADING_VERSION.match(text)
    return () if match is None else version_numbers(match[0])


def did_you_mean(
    word: str,
    names: Iterable[str],
    cutoff: float = 0.5,
    *,
    prefix: str = "",
    otherwise: str = "",
    most: int = 3,
) -> str:
    """Return a hint as "; did you mean check or do?"; `otherwise` if no name is similar or has the word.

    `cutoff`: from 0, any name, to 1, the same name; large and small letters are the same. `prefix`: stands
    before each name, and is not compared.
    """
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    # Of names with the word, the shortest says least else.
    parts = sorted((name for name in by_lower if word.lower() in re.split("[-+ ]", name)), key=len)
    close = get_close_matches(word.lower(), by_lower, cutoff=cutoff)
    similar = [prefix + by_lower[name] for name in list(dict.fromkeys([*parts, *close]))[:most]]
    return f"; did you mean {' or '.join(similar)}?" if similar else otherwise


def join_limited(words: Iterable[str], most: int = SHOWN, others: str = "") -> str:
    """Join distinct words, as "mlx5_0, mlx5_1 and 3 more", with `others` as "and 3 more programs"."""
    each = tuple(dict.fromkeys(words))
    more = f" and {len(each) - most} more {others}".rstrip() if len(each) > most else ""
    return ", ".join(each[:most]) + more
