"""A redaction rule, and rules that others are built from."""

from __future__ import annotations

import re
from collections.abc import Callable

from probes.recording.redaction.tokens import Tokens

Rule = Callable[[Tokens, bytes], bytes]


def decoded(content: bytes) -> str:
    """Decode any bytes; bytes that are not UTF-8 become part of an unknown word."""
    return content.decode("utf-8", "surrogateescape")


def of_text(rule: Callable[[Tokens, str], str]) -> Rule:
    """Turn a rule for text into a rule for bytes."""
    return lambda tokens, content: rule(tokens, decoded(content)).encode("utf-8", "replace")


def of_lines(keep: str, rule: Callable[[Tokens, str], str] | None = None) -> Rule:
    """Keep lines that start with `keep`; the others become empty, so that line numbers stay."""
    pattern = re.compile(keep)
    change = Tokens.text if rule is None else rule

    def keep_matching(tokens: Tokens, text: str) -> str:
        lines = text.split("\n")
        return "\n".join(change(tokens, line) if pattern.match(line) else "" for line in lines)

    return of_text(keep_matching)


_COUNT = re.compile(r"((?:Node [0-9]+ )?[A-Z][A-Za-z_()]*:?\s+|)[0-9]{10,20}(?: kB)?\s*")


def figures(tokens: Tokens, text: str) -> str:
    """Replace unknown words, but keep a long number at the end of a line of known words: it is a count."""
    return "\n".join(
        line if (match := _COUNT.fullmatch(line)) and tokens.keeps(match[1]) else tokens.text(line)
        for line in text.split("\n")
    )


def kept_where(pattern: str) -> Rule:
    """Keep text of this form as it is; in other text, replace unknown words."""
    form = re.compile(pattern)
    return of_text(lambda tokens, text: text if form.fullmatch(text) else tokens.text(text))
