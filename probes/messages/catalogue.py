"""The catalogue of messages: read from its TOML files, once and when first asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property

from probes.base.data_files import read_toml
from probes.messages.form import MOST_CHARACTERS, literal_length, pattern_of, words_of
from probes.messages.message import NOTHING_KNOWN, Case, Code, Context, Found, Meaning, Message, meaning_of

FILES = (
    *("benchmarks", "cuda", "dcgm", "gds", "kernel-mlx", "kernel-nics", "kernel-nvidia", "kernel-pci"),
    *(
        "kubernetes",
        "launchers",
        "modules",
        "mooncake",
        "mpi",
        "mstflint",
        "nccl",
        "nccl-diagnostics",
        "nixl",
        "nvshmem",
        "ofi",
        "opensm",
    ),
    *("operators", "perftest", "pytorch", "rccl", "rdma-core", "sharp", "slurm", "system", "ucx"),
)
"""The files, by the programs that write the messages."""
KERNEL = tuple(name for name in FILES if name.startswith("kernel-"))
KERNEL_OTHER_NICS = "kernel-nics"  # that are not NVIDIA's
MODULES = "modules"  # what modprobe and the like print
CALLS = "calls"  # what failed, in lines of programs that have no file; its forms are in lower case
_WORD = re.compile(r"\w+")
_MOST_CANDIDATES = 1 << 14
_ARTICLE = re.compile(r"\b(?:an?|the) ")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_HEX = re.compile(r"0x[0-9a-fA-F]+")


def shape_of(text: str) -> str:
    """Return the shape of a line or word, which a log repeats with other numbers."""
    return (_HEX.sub("0", text) if "0x" in text else text).translate(_NO_DIGITS)


class Form:
    """A form of a message, compiled when a line first holds its word."""

    def __init__(self, message: Message, form: str, order: int) -> None:
        self.message = message
        self.text = form
        self.words = frozenset(words_of(form))
        self.shape = frozenset(filter(None, map(shape_of, self.words)))
        # The highest form of a line counts.
        self.rank = (not message.is_general, literal_length(form), -order)
        self._pattern: re.Pattern[str] | None = None

    def search(self, line: str) -> re.Match[str] | None:
        """Return where a line has this form."""
        if self._pattern is None:
            self._pattern = re.compile(pattern_of(self.text))
        return self._pattern.search(line)


class Catalogue:
    """The messages of some files, found by the rarest word of each form."""

    def __init__(self, messages: tuple[Message, ...]) -> None:
        self.messages = messages
        self._forms = [
            Form(message, form, order) for order, message in enumerate(messages) for form in message.forms
        ]
        count = Counter(word for form in self._forms for word in form.words)
        self.vocabulary = frozenset(count)
        self._by_word: dict[str, list[Form]] = {}
        for form in self._forms:
            rarest = min(form.words, key=lambda word: (count[word], -len(word), word))
            self._by_word.setdefault(rarest, []).append(form)
        self._candidates: dict[frozenset[str], list[Form]] = {}  # by the words of a line

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of which a line holds one if it has a form."""
        return frozenset(self._by_word)

    def matches(self, line: str, words: frozenset[str] | None = None) -> Iterator[tuple[Form, re.Match[str]]]:
        """Yield each form that a line has; `words`: of the vocabulary that it has, and others, if known."""
        line = line[:MOST_CHARACTERS]
        words = self.vocabulary.intersection(_WORD.findall(line)) if words is None else words
        candidates = self._candidates.get(words)
        if candidates is None:  # a log says the same again and again, with other numbers
            if len(self._candidates) >= _MOST_CANDIDATES:
                self._candidates.clear()
            candidates = self._candidates[words] = [
                form for word in self.words & words for form in self._by_word[word] if form.words <= words
            ]
        for form in candidates:
            if match := form.search(line):
                yield form, match

    def may_match(self, shape: str) -> bool:
        """Return whether a line could have a form that is this text but for its digits."""
        words = frozenset(_WORD.findall(shape))
        return any(words.issuperset(form.shape) for form in self._forms)

    def find(self, line: str, words: frozenset[str] | None = None) -> Found | None:
        """Return the message of a line, by the form that gives most of its words; None if it is not known."""
        best = max(self.matches(line, words), key=lambda match: match[0].rank, default=None)
        if best is None:
            return None
        # A quotation mark that nothing opens is the end of what a program quotes.
        values = {
            name: value.strip().rstrip('.,;"' if value.count('"') % 2 else ".,;")
            for name, value in best[1].groupdict("").items()
        }
        return Found(best[0].message, values)


@cache
def catalogue(*files: str) -> Catalogue:
    """Return the messages of some files; without a name, of all."""
    return Catalogue(tuple(message for name in files or FILES for message in _messages(name)))


def find_failure(line: str) -> Found | None:
    """Return what a line of any program says to have failed; "error" is the errno that it names, or ""."""
    line = _ARTICLE.sub("", line[:MOST_CHARACTERS].lower())
    found = catalogue(CALLS).find(line)
    if found is None:
        return None
    error = _errors().search(line)
    return replace(found, values={"error": (error[1] or error[0]) if error else "", **found.values})


@cache
def _errors() -> re.Pattern[str]:
    names = sorted((name for name in codes()["errno"] if not name.isdigit()), key=len, reverse=True)
    return re.compile(rf"\berrno\b\W{{0,3}}(\d{{1,3}})\b|\b(?:{'|'.join(map(re.escape, names))})\b")


@cache
def codes() -> Mapping[str, Mapping[str, Code]]:
    """Return the tables of numbers, with each row under its number and its names."""
    tables: dict[str, dict[str, Code]] = {}
    for table, rows in read_toml(__package__, "codes.toml").items():
        known = tables.setdefault(table, {})
        for number, row in rows.items():
            code = Code(number, **{**row, "also": tuple(row.get("also", ()))})
            for name in (number, code.name, *code.also):
                known[name.casefold()] = code
    return tables


def explain(found: Found, context: Context = NOTHING_KNOWN) -> Meaning:
    """Return what a message means, given what else is known."""
    return meaning_of(found, codes(), context)


def _messages(name: str) -> Iterator[Message]:
    content = read_toml(__package__, f"{name}.toml")
    for entry in content["message"]:
        cases = tuple(Case(**case) for case in entry.pop("cases", ()))
        forms, samples = tuple(entry.pop("forms")), tuple(entry.pop("samples"))
        yield Message(forms=forms, samples=samples, cases=cases, **{"program": content["program"], **entry})
