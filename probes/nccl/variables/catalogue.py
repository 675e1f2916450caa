"""The variables of NCCL and of other libraries that decide on NICs and paths, and all that NCCL reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from probes.base.data_files import read_text, read_toml
from probes.base.frozen import frozen
from probes.base.text import version_numbers

NEWEST = (2, 32)
"""The newest NCCL that gdrtop knows (2.32.7 of November 2026), assumed where the version is unknown."""
NEWER = f"newer than {'.'.join(map(str, NEWEST))}, the newest that gdrtop knows"
Version = tuple[int, ...]


def is_newer(version: Version) -> bool:
    """Return whether NCCL is newer than any that gdrtop knows."""
    return version[:2] > NEWEST


class Kind(Enum):
    """How a library reads the value of a variable."""

    LEVEL = "level"  # NCCL's distance: LOC … SYS, or a legacy number
    NUMBER = "number"  # as strtoll(…, 0) reads it
    HCA_LIST = "list of NICs"  # [^][=]NAME[:PORT],…
    INTERFACES = "list of interfaces"  # [^][=]PREFIX,…
    WORD = "word"  # one of `values`, or free text
    WORDS = "list of words"  # [^]WORD,…; since 2.24 also FUNCTION:[^]WORD,… after semicolons
    PATH = "path"


@frozen
class Variable:
    """One variable. Versions are of the library that reads it; "" means from its first version on."""

    name: str
    meaning: str  # begins in lower case, without a full stop
    kind: Kind = Kind.WORD
    defaults: tuple[tuple[str, str], ...] = ()  # (since version, value), oldest first; (): unset
    values: tuple[tuple[str, str], ...] = ()  # value -> what it does
    is_closed: bool = False  # no other values than these
    ignores_case: bool = False  # of the words
    limits: tuple[int, int] | None = None  # of a NUMBER
    since: str = ""
    removed: str = ""  # the first version without it
    instead: str = ""  # the variable that replaced it
    notes: tuple[str, ...] = ()  # sentences: differences between versions, common mistakes
    for_debugging: bool = False  # NVIDIA lists it under "Debugging": not for production
    reference: str = ""

    @property
    def meaning_sentence(self) -> str:
        """The meaning as a sentence: "The RoCE GID; …."."""
        return f"{self.name}: {self.meaning}."

    def unknown_words(self, value: str) -> list[str]:
        """Return the words of a value that a closed variable does not know.

        A list begins with “^” for all but these; since 2.24 NCCL accepts FUNCTION:LIST after semicolons
        (src/graph/tuning.cc).
        """
        if not self.is_closed:
            return []
        words = [value]
        if self.kind is Kind.WORDS:
            lists = (part.rpartition(":")[2].removeprefix("^") for part in value.split(";"))
            words = [word for part in lists for word in part.split(",") if word]
        known = {word.lower() if self.ignores_case else word for word, _ in self.values}
        return [word for word in words if (word.lower() if self.ignores_case else word) not in known]

    def default(self, version: Version = NEWEST) -> str:
        """Return the default of a version; "" if it is unset or depends on the platform."""
        return _default(self.defaults, version)


def parse_version(text: str) -> Version:
    """Return the numbers of "2.21.5"; () for text without numbers."""
    return version_numbers(text)[:4]


def _default(defaults: tuple[tuple[str, str], ...], version: Version) -> str:
    return next((value for since, value in reversed(defaults) if parse_version(since) <= version), "")


_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


def variables() -> Mapping[str, Variable]:
    """Return the variables of variables.toml by name."""
    return _catalogue()[0]


@cache
def _catalogue() -> tuple[Mapping[str, Variable], frozenset[str]]:
    """Return the variables, and the names that nothing describes."""
    rows = read_toml(__package__, "variables.toml")
    others = frozenset(f"NCCL_{name}" for name in rows.pop("undocumented").split())
    return MappingProxyType({name: _variable(name, **row) for name, row in rows.items()}), others


def _variable(name: str, *, kind: str = Kind.WORD.value, anchor: str = "", **row: Any) -> Variable:
    row.setdefault("reference", f"{_GUIDE}#{anchor or name.lower().replace('_', '-')}")
    for field in ("defaults", "values"):
        row[field] = tuple(row.get(field, {}).items())
    for field in ("limits", "notes"):
        if field in row:
            row[field] = tuple(row[field])
    return Variable(name, kind=Kind(kind), **row)


@frozen
class Parameter:
    """A line of parameters.txt."""

    name: str
    first: str  # the first version that reads it
    last: str  # the last version that names it
    defaults: tuple[tuple[str, str], ...]  # (since version, as the source has it), oldest first

    def default(self, version: Version) -> str:
        """Return the default of a version as the source has it; "" if it has none."""
        return _default(self.defaults, version)


@cache
def parameters() -> dict[str, Parameter]:
    """Return the table by the names of the variables."""
    lines = read_text(__package__, "parameters.txt").splitlines()
    found = (_parameter(*line.split()) for line in lines if line[:1] != "#")
    return {parameter.name: parameter for parameter in found}


def newest() -> str:
    """Return the newest version of the table."""
    return max((parameter.last for parameter in parameters().values()), key=parse_version)


def _parameter(name: str, span: str, *defaults: str) -> Parameter:
    first, _, last = span.partition("-")
    pairs = (default.partition("=") for default in defaults)
    return Parameter(f"NCCL_{name}", first, last, tuple((since, value) for since, _, value in pairs))


_OF_VALUE = re.compile(r"(?:^|; )(\w{1,20}): ")


def meaning_of(name: str, value: str | None = None) -> str:
    """Return what a variable means; "" if it is not in the catalogue, or says nothing of this value.

    A meaning may be that of values, "1: NCCL …; 0: …".
    """
    meaning = variables()[name].meaning if name in variables() else ""
    if value is None or not _OF_VALUE.match(meaning):
        return meaning
    _, *parts = _OF_VALUE.split(meaning)
    return dict(zip(parts[::2], parts[1::2], strict=True)).get(value, "")


def is_known(name: str) -> bool:
    """Return whether a library reads the variable, documented or not; NCCL_HOME is no variable of NCCL."""
    return name in variables() or name in _catalogue()[1] or name in parameters()


def similar_name(name: str) -> str:
    """Return the variable that an unknown name is almost; "": none, so only a plugin might read it. Slow."""
    from difflib import get_close_matches  # gdrtop check does not need it

    return next(iter(get_close_matches(name.upper(), variables(), n=1, cutoff=0.92)), "")


_LIBRARIES = r"(?:NCCL|UCX|FI|NVSHMEM)_"
_OF_BUILDS = (  # NCCL_HOME, UCX_DIR: of scripts and build systems; no library reads them
    r"(?:NCCL|UCX)_(?:HOME|ROOT|DIR|PATH|PREFIX|VERSION|VER|LIB|LIB_DIR|INCLUDE|INCLUDE_DIR|SRC|SRC_DIR|BRANCH|TAG)"
    r"(?![A-Za-z0-9_])|NCCL_TESTS?_"
)
VARIABLE_NAME = re.compile(rf"(?!{_OF_BUILDS}){_LIBRARIES}[A-Za-z0-9_]{{1,60}}|RDMAV_FORK_SAFE")
"""The names of variables that gdrtop judges; of FI_ and UCX_ most are not in the catalogue.

NCCL_TESTS_… are variables of nccl-tests.
"""
