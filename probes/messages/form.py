r"""The forms of messages: their own words, with placeholders for what differs.

    {name}           a word: characters that are not blank
    {name:text}      any text, also blanks
    {name:number}    a decimal number, also negative
    {name:hex}       a hexadecimal number, with or without 0x
    {name:a|b|c}     one of these words; of a single one, the line is found by it
    *                any text, of no interest
    \{ \* \\         the character itself

A blank stands for blanks of any length. A form may stand anywhere in a line, but begins and ends with whole
words. What it leaves open is bounded, so that a long line costs no more than a short one.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 2000
"""Of a line, which are compared."""
_TOKEN = re.compile(r"\\(.)|\{(\w+)(?::([^{}]+))?\}|(\*)|(\s+)|([^\\{*\s]+|.)", re.DOTALL)
_KINDS = {
    "": r"\S{1,200}?",
    "text": r".{1,300}?",
    "number": r"-?\d{1,20}",
    "hex": r"(?:0x)?[0-9a-fA-F]{1,32}",
}
_WORD = re.compile(r"\w+")


def pattern_of(form: str) -> str:
    """Return the regular expression of a form, whose groups are its placeholders."""
    parts: list[str] = []
    for escaped, name, kind, anything, blank, words in _TOKEN.findall(form):
        if name:
            parts.append(f"(?P<{name}>{_KINDS.get(kind) or '|'.join(map(re.escape, kind.split('|')))})")
        elif anything:
            parts.append(".{0,300}?")
        else:
            parts.append(r"\s+" if blank else re.escape(escaped or words))
    begin = r"(?<!\w)" if re.match(r"\w|\{\w+:(?!text)", form) else ""
    end = r"(?!\w)" if re.search(r"\w$|\{\w+:(?!text\})[^{}]+\}$", form) else ""
    # A word or text at the end is the longest that there is.
    open_end = re.search(r"\{\w+(?P<text>:text)?\}$", form)
    if open_end and parts[-1].endswith("?)"):
        parts[-1] = f"{parts[-1][:-2]})"
    return begin + "".join(parts) + end


def placeholders_of(form: str) -> set[str]:
    """Return the names of the placeholders."""
    return {name for _, name, *_ in _TOKEN.findall(form) if name}


def words_of(form: str) -> list[str]:
    """Return the words that a line must hold to have this form; parts of words that differ are none."""
    literal = []
    for escaped, name, kind, anything, blank, words in _TOKEN.findall(form):
        is_given = kind not in _KINDS and "|" not in kind
        # A letter in place of what differs joins it to the word that it touches.
        differs = anything or (name and not is_given)
        literal.append("\0" if differs else " " if blank else escaped or words or kind)
    text = "".join(literal)
    return [word[0] for word in _WORD.finditer(text) if not _touches(text, word.start(), word.end())]


def _touches(text: str, start: int, end: int) -> bool:
    return text[start - 1 : start] == "\0" or text[end : end + 1] == "\0"


def literal_length(form: str) -> int:
    """Return how many characters are given: the more, the better a form describes its message."""
    return sum(
        len(escaped or words or ("" if kind in _KINDS or "|" in kind else kind))
        for escaped, _, kind, _, _, words in _TOKEN.findall(form)
    )
